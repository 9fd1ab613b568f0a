"""One source from capture to its destinations: its capture process, change log, registry and watch, and its readers.

A pipeline has one for each of its sources. Each destination reads the log in a thread of its own (`log_reader`); what
belongs to the source is here, once: the source made ready, capture, looks at the catalogue, the registry of structures,
leftovers of a killed run, and the log's retention. Order of things: `prepare`, `start_capture`, `stream`, `close`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from subprocess import Popen

import structlog

from penstock.changelog.log import ChangeLog
from penstock.changelog.scratch import remove_leftovers
from penstock.config.destinations import StreamSection
from penstock.config.model import Pipeline
from penstock.destinations.contract import PooledRunner, TableDestination
from penstock.destinations.stream_contract import StreamDestination
from penstock.errors import EnvironmentMissing, GapError, LogDamaged, PenstockError, SourceError
from penstock.model.position import Position
from penstock.model.table_state import State, TableStatus
from penstock.runtime.apply.target_claims import TargetClaims
from penstock.runtime.capture.preparation import Prepared, prepare_source
from penstock.runtime.capture.publisher import Publisher
from penstock.runtime.capture.supervisor import CaptureSupervisor
from penstock.runtime.commit_policy import needed_by
from penstock.runtime.copy.connections import CopyConnections
from penstock.runtime.copy.progress_view import ProgressView
from penstock.runtime.destination_pipeline import DestinationPipeline, FirstLook
from penstock.runtime.log_reader import LogReader
from penstock.runtime.process.failures import failures_as_one
from penstock.runtime.process.health import record_health
from penstock.runtime.process.outage import Outage
from penstock.runtime.process.signals import SignalFlag
from penstock.runtime.publish.stream_pipeline import StreamPipeline
from penstock.runtime.publish.stream_watch import StreamLook, StreamWatch
from penstock.runtime.reader_thread import ReaderThread
from penstock.runtime.run_end import RunEnd, RunEndWatch
from penstock.runtime.source_side import SourceSide
from penstock.runtime.upkeep.log_retention import LogRetention
from penstock.runtime.upkeep.schema_registry import SchemaRegistry
from penstock.runtime.watch.source_watch import SourceWatch
from penstock.source.contract import Session
from penstock.source.factory import source_of
from penstock.state.lease import Lease
from penstock.state.store import HealthState, StateStore

# By name: what opens a destination of tables, or raises when it cannot be opened now; a stream needs no opening
Opened = Mapping[str, Callable[[], TableDestination] | StreamDestination]

LOG = structlog.get_logger("pipeline")
POLL_SECONDS = 0.05


class SourcePipeline:
    """`pipeline` and `state` are as the source sees them. `end` says when the run ends by itself."""

    def __init__(
        self,
        pipeline: Pipeline,
        state: StateStore,
        owners: Mapping[str, TargetClaims],
        progress: ProgressView,
        *,
        end: RunEnd = RunEnd(),
        may_leave: bool = False,
        lease: Lease | None = None,
        waiting: Popen[str] | None = None,
    ) -> None:
        """`lease` is what the run holds where another may take over, `waiting` a capture that has been started."""
        self.pipeline, self.state, self._lease = pipeline, state, lease
        self._owners, self._progress, self._wanted_end = owners, progress, end
        self._log = ChangeLog(pipeline.log_uri)
        self._source = source_of(pipeline.source)
        self._capture = CaptureSupervisor(pipeline, state, shared=lease is not None, waiting=waiting)
        self._publisher = Publisher(pipeline, state, may_leave=may_leave)
        self._prepared: Prepared | None = None
        self._first: dict[str, FirstLook] = {}  # by destination
        self._first_streams: dict[str, StreamLook] = {}
        self._begun = False  # tables depend on the slot
        self._end: RunEndWatch | None = None

    def prepare(self) -> None:
        """Bring the source to where it can be captured. May wait long, when the slot has to be made."""
        with self._source.connect() as session:
            if self._lease is not None and self._lease.taken_from is not None:
                self._cut_off(session, str(self._lease.taken_from))
            self._prepared = self._prepare(session)
            try:
                catalogue = self._prepared.catalogue
                for view in self.pipeline.destination_views:
                    name = view.destination.name
                    if isinstance(view.destination, StreamSection):
                        self._first_streams[name] = StreamWatch(view, self.state).look(session, catalogue)
                    else:
                        self._first[name] = FirstLook.take(session, view, self.state, catalogue)
                self._end = self._end_watch(session)
            except BaseException:
                self._give_up_slot()
                raise

    def _cut_off(self, session: Session, predecessor: str) -> None:
        """Let go of what a predecessor that did not end still reads; if that is refused, capture waits for it."""
        try:
            reader = session.cut_off()
        except SourceError as error:
            LOG.warning("reader of the slot not ended", of=predecessor, what=error.what, solution=error.solution)
        else:
            if reader is not None:
                LOG.info("reader of the slot ended", of=predecessor, reader=reader)

    def _end_watch(self, session: Session) -> RunEndWatch:
        """Make what watches for the run's end, from where the destination stands that is furthest behind."""
        assert self._prepared is not None
        stands = [self.state.processed(destination.name) for destination in self.pipeline.destinations]
        reached = self._log.end() or self._prepared.retained.position
        begins_at = min((one for one in stands if one is not None), default=reached)
        watch = RunEndWatch(self._wanted_end, self._log, begins_at, head=self._head)
        if self._wanted_end.once:
            watch.end_at(session.head())
        return watch

    def _head(self) -> Position:
        with self._source.connect() as session:
            return session.head()

    def start_capture(self) -> None:
        self._capture.start()

    def close(self) -> None:
        self._capture.stop()

    def ended(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close it; a first start that failed before any table was taken in leaves no slot behind."""
        self.close()
        if kind is not None and not self._begun:
            self._give_up_slot()

    def _give_up_slot(self) -> None:
        """Drop the slot that this start made, with what was captured from it: the server would keep WAL for it."""
        if self._prepared is None or not self._prepared.retained.made:
            return
        try:
            self._log.remove_all()  # first: a log whose source has forgotten what follows would be a gap
            with self._source.connect() as session:
                session.release()
        except PenstockError as error:
            LOG.error(
                "slot left behind by a start that failed",
                source=self._source.endpoint,
                what=error.what,
                solution=f"Run again, or do it by hand. {self._source.advice.give_up()}",
            )
        else:
            LOG.info("slot dropped because the start failed", source=self._source.endpoint)

    def stream(self, destinations: Opened, runner: PooledRunner, stop: SignalFlag) -> None:
        """Return when stopped, or when the run has come to its end. Raise what no retry can fix."""
        begins_at = self._await_slot(stop)
        if begins_at is None:
            return
        assert self._end is not None
        log, end = self._log, self._end
        if remove_leftovers(log):
            LOG.info("removed scratch files left by a killed run", log=log.uri)
        registry = SchemaRegistry(log, self.state, self.pipeline.source.name)
        registry.look()
        halt = SignalFlag(stop)  # for this source's readers
        readers: list[LogReader] = []
        watch = SourceWatch(self.pipeline, self.state, self._publisher, readers, self._reading)
        side = SourceSide(
            log=log,
            registry=registry,
            slot_position=begins_at,
            end=end,
            verified=lambda: self._capture.verified,
            look=lambda observe: watch.look([observe]),
            look_soon=watch.look_soon,
            begun=self._note_begun,
            connections=CopyConnections(self.pipeline.copying.max_connections),
        )
        readers += [self._reader(view, destinations, runner, side) for view in self.pipeline.destination_views]
        threads = [ReaderThread(reader, halt, alone=len(readers) == 1) for reader in readers]
        needed = partial(needed_by, self.pipeline.policy)
        retention = LogRetention(log, self.pipeline.log, readers, needed, registry.prune)
        for thread in threads:
            thread.start()
        watch.start()
        try:
            self._supervise(threads, registry, retention, end, stop)
        except LogDamaged as error:
            self._fail(threads, error)
            raise
        finally:
            halt.set()
            for thread in threads:
                thread.join()
            watch.stop()
        self._raise_failures(threads)

    def _await_slot(self, stop: SignalFlag) -> Position | None:
        """Return where an empty log begins: where the slot stands. None when stopped.

        A temporary slot is there when capture has started, and no copy's snapshot may be older than it.
        """
        assert self._prepared is not None
        if self.pipeline.source.keeps_changes:
            return self._prepared.retained.position
        while self._capture.position is None:
            if self._capture.failure is not None:
                raise self._capture.failure
            if stop.wait(POLL_SECONDS):
                return None
        return self._source.parse_position(self._capture.position)

    def _reader(self, view: Pipeline, destinations: Opened, runner: PooledRunner, side: SourceSide) -> LogReader:
        """Make the reader for one destination. `view` is the pipeline as that sees it."""
        name = view.destination.name
        opened = destinations[name]
        own = runner.for_destination(name)
        if not callable(opened):
            if not isinstance(view.destination, StreamSection):
                raise TypeError(f"destination {name} is not a stream")
            return StreamPipeline(
                view,
                self.state,
                destination=opened,
                runner=own,
                side=side,
                first=self._first_streams[name],
                section=view.destination,
            )
        return DestinationPipeline(
            view,
            self.state,
            opened=opened,
            runner=own,
            side=side,
            first=self._first[name],
            claims=self._owners[name],
            progress=self._progress,
            alone=self._is_only,
        )

    def _supervise(
        self,
        threads: Sequence[ReaderThread],
        registry: SchemaRegistry,
        retention: LogRetention,
        end: RunEndWatch,
        stop: SignalFlag,
    ) -> None:
        """Keep registry and log in step with the readers until all have ended, or none should go on."""
        outage, processed = Outage("change log", "pipeline"), 0
        while not stop.is_set() and not all(thread.has_ended for thread in threads):
            if end.until is not None and self._is_decided(threads):
                return
            if any(isinstance(thread.failure, EnvironmentMissing) for thread in threads):
                return  # of what all share
            if self._capture.failure is not None:
                self._fail(threads, self._capture.failure)
                raise self._capture.failure
            furthest = max(thread.reader.processed for thread in threads)
            try:
                if furthest != processed:
                    registry.look()
                    processed = furthest
                retention.run()
                end.look()
            except LogDamaged:
                raise
            except PenstockError as error:
                if not error.retry.is_automatic:
                    raise
                outage.note(error.what, error.solution)
            else:
                outage.end()
            stop.wait(POLL_SECONDS)

    @staticmethod
    def _fail(threads: Sequence[ReaderThread], error: PenstockError) -> None:
        """End every reader with an error that concerns them all."""
        for thread in threads:
            thread.reader.give_up(error)
        for thread in threads:
            thread.join()

    @property
    def _is_only(self) -> bool:
        """Whether there is one destination."""
        return len(self.pipeline.destination_views) == 1

    def _raise_failures(self, threads: Sequence[ReaderThread]) -> None:
        """Raise what made readers fail, unless those that did not are enough for the commit policy."""
        failed = {thread.reader.name: thread.failure for thread in threads if thread.failure is not None}
        done = {thread.reader.name: thread.failure is None and not thread.reader.is_retrying for thread in threads}
        shared = next((error for error in failed.values() if isinstance(error, EnvironmentMissing)), None)
        if shared is not None:
            raise shared
        if failed and not self.pipeline.policy.is_met(done):
            raise failures_as_one("destination", failed, len(threads))

    def _is_decided(self, threads: Sequence[ReaderThread]) -> bool:
        """Return whether enough destinations have drained, and of the others none makes headway."""
        drained = {thread.reader.name: thread.has_drained for thread in threads}
        others = [thread for thread in threads if not thread.has_ended]
        return self.pipeline.policy.is_met(drained) and all(thread.reader.is_retrying for thread in others)

    def _note_begun(self) -> None:
        self._begun = True

    def tell(
        self,
        component: str,
        health: HealthState,
        error: PenstockError | None = None,
        attempts: int = 0,
        since: datetime | None = None,
    ) -> None:
        """Record a component's health; see `record_health`."""
        record_health(self.state, component, health, error, attempts, since)

    def _prepare(self, session: Session) -> Prepared:
        """Prepare the source. A gap that shows here makes every table Errored."""
        try:
            return prepare_source(session, self.pipeline, self._log, self._publisher)
        except GapError as gap:
            for destination in self.pipeline.destinations:
                for table in self.state.table_status(destination.name):
                    status = TableStatus(State.ERRORED, datetime.now(UTC), gap.what, gap.solution, gap.retry, gap.code)
                    self.state.set_table_status(destination.name, table, status)
            raise

    def _reading(self) -> frozenset[str]:
        """Return what capture reads, or will from its start on, in the source's own names."""
        assert self._prepared is not None
        return self._prepared.reading if self._capture.reading is None else self._capture.reading
