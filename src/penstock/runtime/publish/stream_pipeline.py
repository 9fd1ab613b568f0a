"""One source's change log into one stream destination: a reader of the log, in a thread of its own.

It is to streams what `runtime/destination_pipeline.py` is to tables, and much smaller: there is no structure
to follow and no upkeep. Retries and health are `runtime/retrying_reader.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import replace

from penstock.config.destinations import StreamSection
from penstock.config.model import Pipeline
from penstock.destinations.contract import JobRunner
from penstock.destinations.stream_contract import StreamDestination
from penstock.errors import PenstockError
from penstock.model.position import Position
from penstock.model.table import TableId
from penstock.render.event import Origin
from penstock.runtime.log_reader import LogNeed, Observe
from penstock.runtime.pause_watch import PauseWatch
from penstock.runtime.process.backoff import Backoff
from penstock.runtime.publish.loop import PublishLoop
from penstock.runtime.publish.row_copier import RowCopier
from penstock.runtime.publish.stream_tables import StreamTables
from penstock.runtime.publish.stream_watch import StreamLook, StreamWatch
from penstock.runtime.retrying_reader import Reading, RetryingReader
from penstock.runtime.source_side import SourceSide
from penstock.runtime.watch.catalogue import Catalogue
from penstock.source.contract import Session
from penstock.state.store import StateStore


class _StreamReading:
    """A stream that is open, with its tables taken in: a Reading (retrying_reader.py)."""

    def __init__(self, loop: PublishLoop, tables: StreamTables, rows: RowCopier | None, pauses: PauseWatch) -> None:
        self._loop, self._tables, self._rows, self._pauses = loop, tables, rows, pauses

    @property
    def processed(self) -> Position:
        return self._loop.processed

    @property
    def errored(self) -> list[str]:
        return sorted(str(table.name) for table in self._loop.tables.values() if table.errored)

    @property
    def followed(self) -> int:
        return self._tables.followed

    @property
    def failure(self) -> BaseException | None:
        return None if self._rows is None else self._rows.failure

    @property
    def wants_look(self) -> bool:
        return self._tables.wants_look

    def log_need(self) -> LogNeed | None:
        return LogNeed(self._loop.needed_from, self._loop.held_from) if self._loop.has_begun else None

    def step(self, *, now: bool, stopping: Callable[[], bool]) -> bool:
        self._tables.tend()
        paused = self._pauses.tables
        for table in self._loop.tables.values():
            table.paused = table.name in paused
        return self._loop.step(now=now)

    def is_drained(self, until: Position) -> bool:
        loop = self._loop
        return loop.has_begun and loop.processed >= until and self._tables.is_settled and loop.is_level

    def pass_over(self, before: Position) -> None:
        self._loop.pass_over(before)

    def mark_all_errored(self, error: PenstockError) -> None:
        self._loop.mark_all_errored(error)

    def end(self) -> None:
        self._loop.close()


class StreamPipeline(RetryingReader):
    """Read one source's log into one stream. `pipeline` and `state` are as these two see them."""

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
        retry = section.retry
        super().__init__(
            pipeline, state, side, alone=False, backoff=Backoff(retry.first, retry.longest), tries=retry.tries
        )
        self._pipeline, self._state, self._destination, self._runner = pipeline, state, destination, runner
        self._look, self._section = first, section
        self._watch = StreamWatch(pipeline, state)
        self._tables: StreamTables | None = None

    def begin_look(self) -> Observe:
        def observe(session: Session, catalogue: Catalogue) -> None:
            self._look = look = self._watch.look(session, catalogue)
            if self._tables is not None and self._reading is not None:
                self._tables.looked(look)

        return observe

    def _look_now(self, fresh: Collection[TableId]) -> StreamLook:
        looks: list[StreamLook] = []
        self._side.look(lambda session, catalogue: looks.append(self._watch.look(session, catalogue, fresh)))
        return looks[0]

    def _open(self, cleanup: ExitStack) -> Reading:
        pipeline = self._pipeline
        newest = self._side.log.newest()
        rows = self._copier() if self._section.publishes_rows else None
        if rows is not None:
            cleanup.callback(rows.stop)
        loop = PublishLoop(
            pipeline.source.name,
            self._destination,
            self._runner,
            self._side.log,
            pipeline.batch.of_streams,
            self._state,
            start=self._section.first_position,
            rows=rows,
            dlq=self._section.dlq,
            origin=replace(_origin(pipeline), log_state="" if newest is None else newest.state),
            format=self._section.record_format,
            bound=self._side.end.bound,
        )
        loop.begin()
        holds_rows = rows is not None and self._destination.holds_rows
        tables = StreamTables(
            pipeline, loop, self._state, self._look_now, copies=rows is not None, holds_rows=holds_rows
        )
        tables.looked(self._look)
        tables.tend()
        self._tables = tables
        if rows is not None:
            rows.start()
        self._side.begun()
        return _StreamReading(loop, tables, rows, self._pauses)

    def _copier(self) -> RowCopier:
        side = self._side
        return RowCopier(
            self._pipeline, self._runner, side.log, self._state, side.connections, floor=lambda: self.processed
        )


def _origin(pipeline: Pipeline) -> Origin:
    """Return what events say of the source that this view of the pipeline is of."""
    sid = None if pipeline.sid is None else pipeline.sid.value
    return Origin.of(pipeline.source, sid, tenant=pipeline.tenant)
