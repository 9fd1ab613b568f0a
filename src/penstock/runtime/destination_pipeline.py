"""One source's change log into one destination of tables: batches, copies, the lifecycle of tables, pins and upkeep.

Each runs in a thread of its own (`source_pipeline`), with its own positions, retries (`retrying_reader`) and pace: one
that is away, slow or copying holds no other up. What no retry can fix ends this destination only.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from penstock.config.destinations import IcebergDestination
from penstock.config.model import Pipeline
from penstock.destinations.contract import JobRunner, TableDestination
from penstock.errors import PenstockError
from penstock.fold.rule import noted
from penstock.model.position import Position
from penstock.runtime.apply.consistent_tags import ConsistentTags
from penstock.runtime.apply.log_need import log_need, pass_over
from penstock.runtime.apply.loop import ApplyLoop
from penstock.runtime.apply.table_lifecycle import TableLifecycle
from penstock.runtime.apply.target_claims import TargetClaims
from penstock.runtime.copy.copier import Copier
from penstock.runtime.copy.copying_table import CopyingTable
from penstock.runtime.copy.progress_view import ProgressView
from penstock.runtime.log_reader import LogNeed, Observe
from penstock.runtime.pause_watch import PauseWatch
from penstock.runtime.pins import Pins
from penstock.runtime.retrying_reader import Reading, RetryingReader
from penstock.runtime.source_side import SourceSide
from penstock.runtime.upkeep.housekeeping import Housekeeping
from penstock.runtime.watch.catalogue import Catalogue
from penstock.runtime.watch.findings import Findings, find
from penstock.runtime.watch.table_watch import Look, TableWatch
from penstock.source.contract import Session
from penstock.state.store import StateStore


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


class _TableReading:
    """A destination that is open, with its tables taken in: a Reading (retrying_reader.py)."""

    def __init__(
        self,
        pipeline: Pipeline,
        state: StateStore,
        *,
        destination: TableDestination,
        runner: JobRunner,
        side: SourceSide,
        first: FirstLook,
        claims: TargetClaims,
        progress: ProgressView,
        pauses: PauseWatch,
        cleanup: ExitStack,
    ) -> None:
        self._pauses = pauses
        start = side.log.start()
        log_begins = side.slot_position if start is None else start
        self.loop = loop = ApplyLoop(
            pipeline.key,
            destination,
            runner,
            side.log,
            pipeline.batch,
            state,
            bound=side.end.bound,
            dlq=pipeline.destination.dlq,
        )
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
        self._pins = Pins(loop, state)
        lake = pipeline.lake
        tagged = lake.consistent_every if isinstance(lake, IcebergDestination) else None
        self._tags = ConsistentTags(loop, tagged, pipeline.scope)
        self._housekeeping = Housekeeping(loop, pipeline.lake.maintenance)
        self.watch = TableWatch(pipeline, state)

    @property
    def processed(self) -> Position:
        return self.loop.processed

    @property
    def errored(self) -> list[str]:
        own = [tracked.name for tracked in self.loop.tables.values() if tracked.errored]
        return [str(name) for name in sorted([*own, *self.copier.errored, *self.tables.set_aside])]

    @property
    def followed(self) -> int:
        return self.tables.followed

    @property
    def failure(self) -> BaseException | None:
        return self.copier.failure

    @property
    def wants_look(self) -> bool:
        return self.tables.wants_look

    def log_need(self) -> LogNeed:
        copying = self.copier.needed_from()  # before the loop's
        return log_need(self.loop, copying)

    def step(self, *, now: bool, stopping: Callable[[], bool]) -> bool:
        self.tables.tend()
        self._follow_pauses()
        self._pins.tend()
        self._tags.tend()
        worked = self.loop.step(now=now, stopping=stopping)
        self._housekeeping.run()
        return worked

    def _follow_pauses(self) -> None:
        paused = self._pauses.tables
        for tracked in self.loop.tables.values():
            if tracked.paused != (tracked.name in paused):
                self.loop.pause(tracked, tracked.name in paused)

    def is_drained(self, until: Position) -> bool:
        if self.loop.processed < until or self.copier.busy or not self.tables.is_settled(until):
            return False
        return self.loop.level

    def pass_over(self, before: Position) -> None:
        pass_over(self.loop, before)

    def mark_all_errored(self, error: PenstockError) -> None:
        self.loop.mark_all_errored(error)

    def end(self) -> None:
        self._pins.end()


class DestinationPipeline(RetryingReader):
    """Read one source's log into one destination. `pipeline` and `state` are as these two see them."""

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
        """Set up a destination's pipeline. `opened` gives the destination, and raises when it cannot be opened now."""
        super().__init__(pipeline, state, side, alone=alone)
        self._pipeline, self._state, self._opened, self._runner = pipeline, state, opened, runner
        self._claims, self._progress = claims, progress
        self._first: FirstLook | None = first
        self._tables: _TableReading | None = None

    def begin_look(self) -> Observe:
        tables = self._tables
        if tables is None or self._reading is not tables:
            return lambda session, catalogue: None  # it takes its own look when it begins
        followed = tables.tables.followed_now()

        def observe(session: Session, catalogue: Catalogue) -> None:
            tables.tables.found(find(session, self._pipeline, self._state, catalogue))
            tables.tables.looked(tables.watch.look(session, catalogue.schemas, followed))

        return observe

    def _open(self, cleanup: ExitStack) -> Reading:
        first, self._first = self._first, None
        destination = self._opened()
        self._tables = _TableReading(
            self._pipeline,
            self._state,
            destination=destination,
            runner=self._runner,
            side=self._side,
            first=first or self._look(),
            claims=self._claims,
            progress=self._progress,
            pauses=self._pauses,
            cleanup=cleanup,
        )
        return self._tables

    def _look(self) -> FirstLook:
        """Look at the source now: what it had when the run began is too old."""
        looks: list[FirstLook] = []

        def observe(session: Session, catalogue: Catalogue) -> None:
            looks.append(FirstLook.take(session, self._pipeline, self._state, catalogue))

        self._side.look(observe)
        return looks[0]
