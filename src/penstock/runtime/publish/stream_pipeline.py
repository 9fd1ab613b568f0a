"""One source's change log into one stream destination: a reader of the log, in a thread of its own.

It is to streams what `runtime/destination_pipeline.py` is to tables, and much smaller: there is no copy, no structure
to follow and no upkeep. What may pass is tried again; what no retry can fix ends this destination only. In the state
store it is the component `destination NAME`.
"""

from __future__ import annotations

from collections.abc import Collection

import structlog

from penstock.config.destinations import StreamSection
from penstock.config.model import Pipeline
from penstock.destinations.contract import JobRunner
from penstock.destinations.stream_contract import StreamDestination
from penstock.errors import CheckFailed, GapError, LogDamaged, PenstockError
from penstock.model.position import Position, position_text
from penstock.model.table import TableId
from penstock.runtime.destination_pipeline import SourceSide
from penstock.runtime.log_reader import EVERYTHING, LogNeed, Observe
from penstock.runtime.process.backoff import Backoff
from penstock.runtime.process.health import record_health
from penstock.runtime.process.outage import Outage
from penstock.runtime.process.signals import SignalFlag
from penstock.runtime.publish.loop import PublishLoop
from penstock.runtime.publish.stream_tables import StreamTables
from penstock.runtime.publish.stream_watch import StreamLook, StreamWatch
from penstock.runtime.watch.catalogue import Catalogue
from penstock.source.contract import Session
from penstock.state.store import HealthState, StateStore

LOG = structlog.get_logger("pipeline")
POLL_SECONDS = 0.05


class StreamPipeline:
    """A LogReader (log_reader.py). `pipeline` and `state` are as the source and the destination see them."""

    def __init__(
        self,
        pipeline: Pipeline,
        state: StateStore,
        *,
        destination: StreamDestination,
        runner: JobRunner,
        side: SourceSide,
        first: StreamLook,
        section: StreamSection,
    ) -> None:
        """`first` is what the source had when the run was prepared; `section` is the destination's in the file."""
        self.name = destination.name
        self._pipeline, self._state, self._destination, self._runner = pipeline, state, destination, runner
        self._side, self._look, self._section = side, first, section
        self._watch = StreamWatch(pipeline, state)
        self._loop: PublishLoop | None = None
        self._backoff, self._outage = (
            Backoff(section.retry.first, section.retry.longest),
            Outage("destination", "pipeline"),
        )
        self._given_up: BaseException | None = None
        self._let_go: Position = 0
        self.log_need: LogNeed = EVERYTHING
        self._tables: StreamTables | None = None

    @property
    def processed(self) -> Position:
        return self._loop.processed if self._loop is not None else 0

    @property
    def is_retrying(self) -> bool:
        return self._backoff.attempts > 0

    def let_go(self, before: Position) -> bool:
        self._let_go = max(self._let_go, before)
        return self._loop is None or self.log_need.needed_from >= before

    def give_up(self, error: BaseException) -> None:
        self._given_up = error

    def begin_look(self) -> Observe:
        def observe(session: Session, catalogue: Catalogue) -> None:
            self._look = look = self._watch.look(session, catalogue)
            if self._tables is not None:
                self._tables.looked(look)

        return observe

    def _look_now(self, fresh: Collection[TableId]) -> StreamLook:
        looks: list[StreamLook] = []
        self._side.look(lambda session, catalogue: looks.append(self._watch.look(session, catalogue, fresh)))
        return looks[0]

    def run(self, stop: SignalFlag) -> None:
        while not stop.is_set():
            try:
                loop, tables = self._begin()
                self._drive(loop, tables, stop)
                loop.close()
                LOG.info("stopped", position=position_text(loop.processed))
                self._tell("stopped")
            except PenstockError as error:
                self._loop = self._tables = None
                if self._side.until is not None or not self._passes(error):
                    if error is not self._given_up:
                        self._tell("failed", error)
                    raise
                self._retry(error, stop)
                continue
            self._require_well(loop)
            return

    def _begin(self) -> tuple[PublishLoop, StreamTables]:
        if self._given_up is not None:
            raise self._given_up
        self._let_go = 0  # before the log's start is read: what goes from now on is passed over
        pipeline = self._pipeline
        loop = PublishLoop(
            pipeline.source.name,
            self._destination,
            self._runner,
            self._side.log,
            pipeline.batch,
            self._state,
            from_now=self._section.start == "now",
            dlq=self._section.dlq,
        )
        loop.begin()
        tables = StreamTables(pipeline, loop, self._state, self._look_now)
        tables.looked(self._look)
        tables.tend()
        self._loop, self._tables = loop, tables
        self._side.begun()
        self._works()
        self._tell("ok")
        LOG.info("streaming", tables=tables.followed, position=position_text(loop.processed))
        return loop, tables

    def _drive(self, loop: PublishLoop, tables: StreamTables, stop: SignalFlag) -> None:
        while not stop.is_set() and not self._is_drained(loop, tables):
            try:
                self._require_log(loop)
                tables.tend()
                worked = loop.step(now=self._side.until is not None or self._backoff.attempts > 0)
                if loop.has_begun:
                    self.log_need = LogNeed(loop.needed_from, loop.held_from)
            except PenstockError as error:
                if isinstance(error, LogDamaged) and self._let_go <= loop.processed:
                    loop.mark_all_errored(error)
                if not self._passes(error):
                    raise
                self._retry(error, stop)
                continue
            self._works()
            if not worked:
                stop.wait(POLL_SECONDS)

    def _is_drained(self, loop: PublishLoop, tables: StreamTables) -> bool:
        """With a position where the run ends: whether everything up to there is published."""
        until = self._side.until
        if until is None or not loop.has_begun or loop.processed < until:
            return False
        return tables.is_settled and loop.is_level and self._side.verified()

    def _require_log(self, loop: PublishLoop) -> None:
        """Raise what makes the whole log useless, and do without what the log is letting go of."""
        if self._given_up is not None:
            if isinstance(self._given_up, GapError | LogDamaged):
                loop.mark_all_errored(self._given_up)
            raise self._given_up
        if self._let_go:
            before, self._let_go = self._let_go, 0
            loop.pass_over(before)

    def _require_well(self, loop: PublishLoop) -> None:
        errored = sorted(str(table.name) for table in loop.tables.values() if table.errored)
        if self._side.until is not None and errored:
            raise CheckFailed(
                f"{len(errored)} of {len(loop.tables)} tables are Errored: {', '.join(errored)}",
                f"`penstock status {self._pipeline.file.name}` says why and what to do",
            )

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

    def _passes(self, error: PenstockError) -> bool:
        """Whether to try again: what may pass, as often as `retry.tries` says."""
        tries = self._section.retry.tries
        return error.retry in ("backoff", "at once") and (tries == 0 or self._backoff.attempts < tries)
