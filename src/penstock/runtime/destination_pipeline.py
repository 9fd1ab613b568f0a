"""One source's change log into one destination of tables: batches, copies, the lifecycle of tables, pins and upkeep.

Each runs in a thread of its own (`source_pipeline`), with its own positions, retries and pace: one that is away, slow
or copying holds no other up. What may pass is tried again, from the beginning if it never got that far; what no retry
can fix ends this destination only. In the state store it is the component `destination NAME`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Semaphore

import structlog

from penstock.changelog.log import ChangeLog
from penstock.config.model import Pipeline
from penstock.destinations.contract import JobRunner, TableDestination
from penstock.errors import CheckFailed, GapError, LogDamaged, PenstockError
from penstock.fold.rule import noted
from penstock.model.position import Position, position_text
from penstock.runtime.apply.log_need import log_need, pass_over
from penstock.runtime.apply.loop import ApplyLoop
from penstock.runtime.apply.table_lifecycle import TableLifecycle
from penstock.runtime.apply.target_claims import TargetClaims
from penstock.runtime.copy.copier import Copier
from penstock.runtime.copy.copying_table import CopyingTable, ProgressView
from penstock.runtime.log_reader import EVERYTHING, LogNeed, Observe
from penstock.runtime.pins import Pins
from penstock.runtime.process.backoff import Backoff
from penstock.runtime.process.health import record_health
from penstock.runtime.process.outage import Outage
from penstock.runtime.process.signals import SignalFlag
from penstock.runtime.upkeep.housekeeping import Housekeeping
from penstock.runtime.upkeep.schema_registry import SchemaRegistry
from penstock.runtime.watch.catalogue import Catalogue
from penstock.runtime.watch.findings import Findings, find
from penstock.runtime.watch.table_watch import Look, TableWatch
from penstock.source.contract import Session
from penstock.state.store import HealthState, StateStore

LOG = structlog.get_logger("pipeline")
POLL_SECONDS = 0.05
LONGEST_WAIT = 30.0


@dataclass(frozen=True)
class SourceSide:
    """What a source's pipeline gives to each of its readers.

    `slot_position` is where the log begins if it is empty. `until` is where the run ends; None: it does not. `verified`
    says whether capture has found the log's end in the server's own past. `look` shows the catalogue to one observer;
    `begun` is called when tables depend on the log. `connections` is what the copies of all readers may use at once.
    """

    log: ChangeLog
    registry: SchemaRegistry
    slot_position: Position
    until: Position | None
    verified: Callable[[], bool]
    look: Callable[[Observe], None]
    begun: Callable[[], None]
    connections: Semaphore


@dataclass(frozen=True)
class FirstLook:
    """What the source had when the run was prepared, compared with what the destination held."""

    catalogue: Catalogue
    findings: Findings
    look: Look

    @classmethod
    def take(cls, session: Session, pipeline: Pipeline, state: StateStore, catalogue: Catalogue) -> FirstLook:
        """`pipeline` is as the destination sees it."""
        findings = find(session, pipeline, state, catalogue)
        return cls(catalogue, findings, TableWatch(pipeline, state).look(session, catalogue.schemas))


class _Begun:
    """A destination that is open, with its tables taken in."""

    def __init__(
        self,
        pipeline: Pipeline,
        state: StateStore,
        destination: TableDestination,
        runner: JobRunner,
        side: SourceSide,
        first: FirstLook,
        claims: TargetClaims,
        progress: ProgressView,
        cleanup: ExitStack,
    ) -> None:
        start = side.log.start()
        log_begins = side.slot_position if start is None else start
        self.loop = loop = ApplyLoop(pipeline.key, destination, runner, side.log, pipeline.batch, state)
        cleanup.callback(loop.close)

        def joined(copied: CopyingTable, position: Position) -> None:
            side.registry.held(copied.schema, position)
            state.set_rule(destination.name, copied.feed.name, noted(copied.feed, copied.schema))
            loop.join(copied.feed, copied.schema, position)

        self.copier = Copier(pipeline, destination, runner, side.log, state, joined, progress, side.connections)
        self.tables = TableLifecycle(pipeline, loop, self.copier, state, log_begins, claims)
        self.tables.found(first.findings)
        for schema in first.catalogue.schemas:
            self.tables.admit(schema)
        self.tables.note_missing()
        loop.begin(log_begins)
        for tracked in loop.tables.values():
            if not tracked.errored:
                side.registry.held(tracked.schema, tracked.position)
        self.tables.looked(first.look)
        self.tables.tend()
        side.begun()
        self.copier.start()
        cleanup.callback(self.copier.stop)
        self.pins = Pins(loop, state)
        self.housekeeping = Housekeeping(loop, pipeline.lake.maintenance)
        self.watch = TableWatch(pipeline, state)
        LOG.info("streaming", tables=len(first.catalogue.schemas), position=position_text(loop.processed))

    @property
    def errored(self) -> list[str]:
        own = [tracked.name for tracked in self.loop.tables.values() if tracked.errored]
        return [str(name) for name in sorted([*own, *self.copier.errored, *self.tables.set_aside])]


class DestinationPipeline:
    """A LogReader (log_reader.py). `pipeline` and `state` are as the source and the destination see them."""

    def __init__(
        self,
        pipeline: Pipeline,
        state: StateStore,
        *,
        opened: Callable[[], TableDestination],
        runner: JobRunner,
        side: SourceSide,
        first: FirstLook,
        claims: TargetClaims,
        progress: ProgressView,
        alone: bool,
    ) -> None:
        """`opened` gives the destination, and raises when it cannot be opened now. `alone`: without this destination
        there is nothing to run for, so a failure to begin is raised, not retried."""
        self.name = pipeline.destination.name
        self._pipeline, self._state, self._opened, self._runner = pipeline, state, opened, runner
        self._side, self._claims, self._progress, self._alone = side, claims, progress, alone
        self._first: FirstLook | None = first
        self._begun: _Begun | None = None
        self._backoff, self._outage = Backoff(longest=LONGEST_WAIT), Outage("destination", "pipeline")
        self._given_up: BaseException | None = None
        self._let_go = 0
        self.log_need: LogNeed = EVERYTHING

    @property
    def processed(self) -> Position:
        begun = self._begun
        return begun.loop.processed if begun is not None else 0

    @property
    def is_retrying(self) -> bool:
        return self._backoff.attempts > 0

    def let_go(self, before: Position) -> bool:
        self._let_go = max(self._let_go, before)
        return self._begun is None or self.log_need.needed_from >= before

    def give_up(self, error: BaseException) -> None:
        self._given_up = error

    def begin_look(self) -> Observe:
        begun = self._begun
        if begun is None:
            return lambda session, catalogue: None  # it takes its own look when it begins
        followed = begun.tables.followed_now()

        def observe(session: Session, catalogue: Catalogue) -> None:
            begun.tables.found(find(session, self._pipeline, self._state, catalogue))
            begun.tables.looked(begun.watch.look(session, catalogue.schemas, followed))

        return observe

    def run(self, stop: SignalFlag) -> None:
        while not stop.is_set():
            try:
                with ExitStack() as cleanup:
                    begun = self._begin(cleanup)
                    self._drive(begun, stop)
                    LOG.info("stopped", position=position_text(begun.loop.processed))
                    errored = begun.errored
                self._tell("stopped")
            except PenstockError as error:
                self._begun = None
                if self._alone or self._side.until is not None or not _passes(error):
                    if error is not self._given_up:
                        self._tell("failed", error)
                    raise
                self._retry(error, stop)
                continue
            if self._side.until is not None and errored:
                raise CheckFailed(
                    f"{len(errored)} of {begun.tables.followed} tables are Errored: {', '.join(errored)}",
                    f"`penstock status {self._pipeline.file.name}` says why and what to do",
                )
            return

    def _begin(self, cleanup: ExitStack) -> _Begun:
        first, self._first = self._first, None
        if self._given_up is not None:
            raise self._given_up
        self._let_go = 0  # before the log's start is read: what goes from now on is passed over
        destination = self._opened()
        if first is None:
            first = self._look()
        begun = _Begun(
            self._pipeline,
            self._state,
            destination,
            self._runner,
            self._side,
            first,
            self._claims,
            self._progress,
            cleanup,
        )
        self._begun = begun
        self._works()
        self._tell("ok")
        return begun

    def _look(self) -> FirstLook:
        """Look at the source now: what it had when the run began is too old."""
        looks: list[FirstLook] = []

        def observe(session: Session, catalogue: Catalogue) -> None:
            looks.append(FirstLook.take(session, self._pipeline, self._state, catalogue))

        self._side.look(observe)
        return looks[0]

    def _drive(self, begun: _Begun, stop: SignalFlag) -> None:
        loop, until = begun.loop, self._side.until
        while not stop.is_set() and not self._is_drained(begun):
            if begun.copier.failure is not None:
                raise begun.copier.failure
            try:
                self._require_log(begun)
                begun.tables.tend()
                begun.pins.tend()
                worked = loop.step(now=until is not None or self._backoff.attempts > 0, stopping=stop.is_set)
                begun.housekeeping.run()
                self._publish_need(begun)
            except PenstockError as error:
                if self._lost_log(begun, error):
                    continue
                if not _passes(error):
                    raise
                self._retry(error, stop)
                continue
            self._works()
            if not worked:
                stop.wait(POLL_SECONDS)
        begun.pins.end()

    def _is_drained(self, begun: _Begun) -> bool:
        """With a position where the run ends: whether everything up to there is applied."""
        until = self._side.until
        if until is None or begun.loop.processed < until or begun.copier.busy or not begun.tables.is_settled(until):
            return False
        return begun.loop.level and self._side.verified()  # else the log may go on from a history that is no more

    def _require_log(self, begun: _Begun) -> None:
        """Raise what makes the whole log useless, and do without what the log is letting go of."""
        if self._given_up is not None:
            if isinstance(self._given_up, GapError | LogDamaged):
                begun.loop.mark_all_errored(self._given_up)
            raise self._given_up
        if self._let_go:
            before, self._let_go = self._let_go, 0
            pass_over(begun.loop, before)

    def _lost_log(self, begun: _Begun, error: PenstockError) -> bool:
        """Whether a batch failed because the log let go of it, which the next try puts right."""
        if self._let_go > begun.loop.processed:
            LOG.warning("batch lost to the log's limits", what=error.what)
            return True
        if isinstance(error, LogDamaged):
            begun.loop.mark_all_errored(error)
        return False

    def _publish_need(self, begun: _Begun) -> None:
        copying = begun.copier.needed_from()  # before the loop's
        self.log_need = log_need(begun.loop, copying)

    def _retry(self, error: PenstockError, stop: SignalFlag) -> None:
        since = self._outage.note(error.what, error.solution)
        record_health(self._state, f"destination {self.name}", "retrying", error, self._backoff.attempts + 1, since)
        self._backoff.wait(stop)

    def _works(self) -> None:
        if self._backoff.attempts:
            self._backoff.reset()
            self._outage.end()
            self._tell("ok")

    def _tell(self, health: HealthState, error: PenstockError | None = None) -> None:
        record_health(self._state, f"destination {self.name}", health, error)


def _passes(error: PenstockError) -> bool:
    return error.retry in ("backoff", "at once")
