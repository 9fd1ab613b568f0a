"""Copies tables beside the stream: a snapshot, its ranges on executors, and the hand-off, one set of tables at a time.

A set shares one snapshot, which lives for `copy.snapshot_for` at most; what is left then is read under the next one.
Every finished range is recorded in the state store at once, so a restart goes on where it was: only for tables with a
key, since only by key can the log heal the difference between two snapshots. Other tables are read from one snapshot,
however long that takes, and a restart begins them again. Runs in a thread of its own; Spark shares
its cores fairly between copy and batches.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pyarrow as pa
import structlog

from penstock.changelog.log import ChangeLog
from penstock.config.model import Pipeline
from penstock.decode.undecodable import Undecodable
from penstock.destinations.contract import CopyPlan, JobRunner, TableDestination, WrittenPart
from penstock.errors import (
    ColumnsRequired,
    DestinationError,
    EnvironmentMissing,
    FileUnreadable,
    KeyRequired,
    PenstockError,
    PositionLost,
    RangeVoid,
    Retry,
    SchemaChanged,
    SourceError,
    SourceLocked,
    StaleBase,
    StateError,
    TableDropped,
    TableFailed,
)
from penstock.failpoints import reach
from penstock.fold.layout import layout_of
from penstock.model.dead_letter import DeadLetter
from penstock.model.feed import Feed, Mode
from penstock.model.position import Position, position_text
from penstock.model.rescue import RescueCount
from penstock.model.table import TableId, TableSchema
from penstock.model.table_state import State, TableStatus
from penstock.model.write_counters import WriteCounters
from penstock.runtime.apply.table_boundary import Contained, of_table
from penstock.runtime.copy.connections import CopyConnections
from penstock.runtime.copy.copying_table import CopyingTable
from penstock.runtime.copy.progress_view import CopyFigures, ProgressView
from penstock.runtime.copy.range_planner import RangePlanner
from penstock.runtime.copy.replay import FinishedRange, Unresolved, catch_up
from penstock.runtime.copy.task import AsEvents, CopyTask, RereadTask, copy_range, reread
from penstock.runtime.dead_letter_box import DeadLetterBox
from penstock.runtime.process.log_context import inherited, inheriting
from penstock.source.factory import source_of
from penstock.source.snapshot_contract import CopyRange, Snapshot
from penstock.state.store import CopyRecord, StateStore

LOG = structlog.get_logger("copy")
FIRST_RETRY_SECONDS = 10.0
MOST_RETRIES = 5
FIRST_VOID_SECONDS, LONGEST_VOID_SECONDS = 1.0, 60.0  # a copy starts over at once, then after 1 s, 2 s, 4 s …
IDLE_SECONDS = 0.2
NOT_KEPT = (State.SYNC_WAIT, State.CATCHUP)


class Copier:
    """`add` tables at any time; each is handed to `joined` when its copy is committed at a position."""

    def __init__(
        self,
        pipeline: Pipeline,
        destination: TableDestination,
        runner: JobRunner,
        log: ChangeLog,
        state: StateStore,
        joined: Callable[[CopyingTable, Position], None],
        progress: ProgressView,
        connections: CopyConnections | None = None,
    ) -> None:
        """Set up a copier of one destination.

        `connections` is what the copies of all destinations may read the source with; None: this is the only one.
        """
        self._pipeline, self._settings = pipeline, pipeline.copying
        self._source = source_of(pipeline.source)
        self._destination, self._runner, self._log, self._state = destination, runner, log, state
        self._planner = RangePlanner(pipeline, self._source, destination, state)
        self._letters = DeadLetterBox(state, destination.name, pipeline.destination.dlq)
        self._joined, self._progress = joined, progress
        self._tables: dict[TableId, CopyingTable] = {}
        self._lock = threading.RLock()  # held while a state is set: a copy that is no longer wanted sets none
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=inherited(self._work), name="copier", daemon=True)
        self._ranges = ThreadPoolExecutor(
            self._settings.max_connections, thread_name_prefix="copy", initializer=inheriting()
        )
        self._connections = connections or CopyConnections(self._settings.max_connections)
        self._history: str | None = None  # the log's, once it has begun
        self.failure: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ranges in flight are finished and recorded; the rest is for the next start."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self._ranges.shutdown()

    def add(self, feed: Feed, schema: TableSchema, record: CopyRecord | None = None, why: str = "") -> None:
        """Take a table in.

        `record` is of a copy that was under way at an earlier start. `why` tells operators the reason for another copy.
        """
        positions = [item.position for item in record.ranges if item.position is not None] if record else []
        copying = CopyingTable(feed, schema, replay_from=min(positions, default=None), why=why)
        with self._lock:
            self._tables[feed.name] = copying
            self._set_state(copying, State.INIT)

    def remove(self, table: TableId) -> None:
        with self._lock:
            self._tables.pop(table, None)

    def holds(self, table: TableId) -> bool:
        with self._lock:
            return table in self._tables

    def _still_wanted(self, copying: CopyingTable) -> bool:
        """Return whether nobody has removed the table, or asked for its copy again, since this one began."""
        with self._lock:
            return self._tables.get(copying.name) is copying

    @property
    def busy(self) -> bool:
        """Whether a table is being copied, or will be without anybody's help."""
        with self._lock:
            return any(not copying.waits_for_person for copying in self._tables.values())

    @property
    def errored(self) -> list[TableId]:
        """Tables whose copy waits for an operator."""
        with self._lock:
            return [copying.name for copying in self._tables.values() if copying.waits_for_person]

    def lacks_key(self, table: TableId) -> bool:
        """Return whether the table's copy failed for lack of a key."""
        with self._lock:
            copying = self._tables.get(table)
            return copying is not None and copying.lacks_key

    def lacks_columns(self, table: TableId) -> bool:
        """Return whether the table's copy failed because the table had no columns."""
        with self._lock:
            copying = self._tables.get(table)
            return copying is not None and copying.lacks_columns

    def needed_from(self) -> Position | None:
        """Return the lowest position from which a copy will replay the log."""
        with self._lock:
            positions = [one.replay_from for one in self._tables.values() if one.replay_from is not None]
        return min(positions, default=None)

    def _work(self) -> None:
        try:
            while not self._stopping.is_set():
                due = self._due()
                if due:
                    self._copy_set(due)
                else:
                    self._stopping.wait(IDLE_SECONDS)
        except BaseException as error:  # noqa: BLE001 - handed to the pipeline's thread, which raises it
            self.failure = error

    def _await_history(self, snapshot: Snapshot) -> bool:
        """Wait until the log has begun, and with it its history, which a copy's ranges and its table belong to.

        Making the snapshot has written to the WAL, so there is something for the log. False when it was stopped, or the
        snapshot has gone meanwhile."""
        while self._history is None:
            self._history = self._log.history()
            if self._history is None and (self._stopping.wait(IDLE_SECONDS) or not snapshot.alive()):
                return False
        return True

    def _due(self) -> list[CopyingTable]:
        now = time.monotonic()
        with self._lock:
            return [c for c in self._tables.values() if not c.waits_for_person and c.not_before <= now]

    def _copy_set(self, tables: list[CopyingTable]) -> None:
        """Copy what it can of these tables under one snapshot, and hand over those that are complete."""
        for copying in tables:
            self._set_state(copying, State.INIT)
        try:
            # Before the snapshot: a change that it does not see must not be among those counted.
            with self._source.connect() as session:
                counters = session.counters([copying.schema for copying in tables])
            snapshot = self._source.snapshot(
                timeout=self._settings.snapshot_timeout, waiting=lambda who: self._waiting(tables, who)
            )
        except SourceError as error:
            for copying in tables if not self._stopping.is_set() else ():
                copying.given_up = False
                self._failed(copying, error)
            return
        with snapshot:
            if not self._await_history(snapshot):
                return
            began = time.monotonic()
            ready = [copying for copying in tables if self._prepare(copying, snapshot, counters[copying.feed.table])]
            for copying in sorted(ready, key=lambda copying: -copying.bytes):
                self._set_state(copying, State.DATA_SYNC)
            self._read_ranges(ready, snapshot, began + self._settings.snapshot_for)
            position, passed = snapshot.position, snapshot.passed
        for copying in ready:
            complete = not copying.given_up and not copying.left
            if complete and not self._stopping.is_set() and self._still_wanted(copying):
                self._hand_over(copying, position, passed, snapshot.moment)

    def _prepare(self, copying: CopyingTable, snapshot: Snapshot, counters: WriteCounters) -> bool:
        """Plan the table's ranges. False when that failed, which is recorded."""
        copying.given_up = False
        with self._containing(copying):
            self._planner.prepare(copying, snapshot, counters, self._history)
            return True
        return False

    def _read_ranges(self, tables: list[CopyingTable], snapshot: Snapshot, until: float) -> None:
        """Largest table first, `max_connections` ranges at a time, until all are read or the snapshot's time is up.

        A table that must be read from one snapshot is read to its end.
        """
        work: list[tuple[CopyingTable, CopyRange, CopyPlan]] = []
        for copying in sorted(tables, key=lambda copying: -copying.bytes):
            self._report(copying)
            with self._containing(copying):
                copying.plan = plan = self._planned(copying)
                work += [(copying, item, plan) for item in copying.left]
        running = [self._ranges.submit(self._read, *item, snapshot, until) for item in work]
        for done in running:
            done.result()

    def _planned(self, copying: CopyingTable) -> CopyPlan:
        """Return where the copy goes. A table that somebody dropped at the destination is made again first."""
        destination, key, feed = self._destination, self._pipeline.key, copying.feed
        try:
            return destination.plan_copy(feed.target, key, copying.schema, feed.on_column_drop)
        except TableDropped as dropped:
            if copying.finished:
                raise  # what was read before went with the table
            LOG.warning("table created again", table=str(copying.name), what=dropped.what)
            destination.ensure_table(feed.target, copying.schema, key, None, (), layout_of(feed), feed.sid)
            return destination.plan_copy(feed.target, key, copying.schema, feed.on_column_drop)

    def _read(self, copying: CopyingTable, item: CopyRange, plan: CopyPlan, snapshot: Snapshot, until: float) -> None:
        given_up = copying.given_up or not self._still_wanted(copying)
        late = copying.spans_snapshots and time.monotonic() > until
        if self._stopping.is_set() or given_up or late:
            return
        assert copying.reader is not None
        limit = self._settings.max_rows_per_second
        share = limit / self._settings.max_connections if limit else None
        feed, timeout = copying.feed, self._settings.statement_timeout
        reads = AsEvents(snapshot.position, snapshot.moment) if feed.mode is Mode.EVENTS else None
        task = CopyTask(copying.reader, item, plan, timeout, share, feed, reads)
        with self._containing(copying):
            with self._connections.one(self._destination.name):
                result = self._runner.run(copy_range, [task])[0]
            if result.error is not None:
                raise result.error
            assert result.part is not None
            self._keep_letters(copying.name, result.letters)
            position = snapshot.position if result.position is None else result.position
            self._finish(copying, item, FinishedRange(result.part, position), result.rescues)

    def _finish(
        self, copying: CopyingTable, item: CopyRange, read: FinishedRange, rescues: tuple[RescueCount, ...]
    ) -> None:
        current = self._state.finish_range(
            self._destination.name,
            copying.name,
            copying.copy,
            item.number,
            read.position,
            read.part.to_json(),
            read.part.rows,
        )
        if not current:  # the table's copy was begun again meanwhile
            self._discard([read.part])
            return
        reach("copy.range_finished")
        self._state.add_rescued(self._destination.name, copying.name, rescues)
        copying.finished[item.number] = read
        copying.rows += read.part.rows
        self._report(copying)

    def _hand_over(self, copying: CopyingTable, taken_at: Position, passed: Position, moment: int) -> None:
        self._set_state(copying, State.FINISHED_COPY)
        reach("copy.finished")
        self._set_state(copying, State.SYNC_WAIT)
        self._set_state(copying, State.CATCHUP)
        reach("copy.catching_up")
        position: Position | None = None
        high = passed if passed > taken_at else 0
        with self._containing(copying):
            position = catch_up(
                self._destination,
                self._runner,
                self._log,
                limits=self._pipeline.batch,
                source=self._pipeline.key,
                feed=copying.feed,
                schema=copying.schema,
                ranges=[dataclasses.replace(one, high=high) for _, one in sorted(copying.finished.items())],
                taken_at=taken_at,
                moment=moment,
                stop=self._stopping,
                reread=lambda keys: self._reread(copying, keys),
                rescuing=lambda rescues: self._state.add_rescued(self._destination.name, copying.name, rescues),
                keep=lambda letters: self._keep_letters(copying.name, letters),
            )
        if position is None:
            return
        reach("copy.committed")
        with self._lock:
            if not self._still_wanted(copying):
                return  # somebody has asked for another copy meanwhile, which replaces this one
            self._state.end_copy(self._destination.name, copying.name)
            self._set_state(copying, State.SYNC_DONE)
            reach("copy.done")
            LOG.info("copied", table=str(copying.name), rows=copying.rows, position=position_text(position))
            self._progress.finish(self._destination.name, copying.name)
            self._joined(copying, position)  # first: at every moment somebody says what of the log the table needs
            self.remove(copying.name)

    def _reread(self, copying: CopyingTable, keys: pa.Table) -> FinishedRange:
        """Return rows of the copy that are in doubt, as a new snapshot sees them."""
        LOG.info("uncertain rows read again", table=str(copying.name), rows=keys.num_rows)
        note = f"{keys.num_rows} rows that changed between two snapshots are read again"
        self._state.note_copy(self._destination.name, copying.name, note)
        with self._source.snapshot(
            timeout=self._settings.snapshot_timeout, waiting=lambda who: self._waiting([copying], who)
        ) as snapshot:
            with snapshot.session() as session:
                found = session.describe(self._pipeline, copying.feed.table)
                if found is None or self._planner.structure(copying.feed, found) != copying.schema:
                    raise SchemaChanged(
                        f"table {copying.name}: its structure changed before all of it was copied",
                        "Its copy is tried again with the new structure",
                    )
                reader = session.reader(copying.schema)
            assert copying.plan is not None
            feed, timeout = copying.feed, self._settings.statement_timeout
            task = RereadTask(reader, keys, copying.plan, timeout, feed)
            with self._connections.one(self._destination.name):
                result = self._runner.run(reread, [task])[0]
        if result.error is not None:
            raise result.error
        assert result.part is not None
        self._keep_letters(copying.name, result.letters)
        self._state.add_rescued(self._destination.name, copying.name, result.rescues)
        self._state.note_copy(self._destination.name, copying.name, "")
        return FinishedRange(result.part, snapshot.position)

    def _keep_letters(self, table: TableId, letters: Sequence[DeadLetter]) -> None:
        """Keep rows that processors failed on, before the copy is committed without them."""
        if letters:
            self._letters.keep(table, letters)

    def _give_up(self, copying: CopyingTable) -> bool:
        """For this snapshot; False when another of the table's ranges has done so already."""
        with self._lock:
            first, copying.given_up = not copying.given_up, True
        return first

    def _start_over(self, copying: CopyingTable, why: str) -> None:
        if not self._give_up(copying) or not self._still_wanted(copying):
            return
        LOG.warning("copy starts over", table=str(copying.name), why=why)
        copying.from_zero = why
        self._state.add_event("copy starts again", why, copying.name, destination=self._destination.name)
        self._state.end_copy(self._destination.name, copying.name)
        self._discard([item.part for item in copying.finished.values()])
        copying.ranges, copying.finished, copying.rows, copying.replay_from = {}, {}, 0, None
        delay = _void_delay(copying.voids)
        copying.voids += 1
        copying.not_before = time.monotonic() + delay
        solution = "Nothing: its copy starts again by itself"
        status = TableStatus(State.ERRORED, datetime.now(UTC), why, solution, Retry.AT_ONCE, RangeVoid.code)
        if delay:
            next_try = f"in {delay:.0f} s (started over {copying.voids} times)"
            status = dataclasses.replace(status, retry=Retry.BACKOFF, next_try=next_try)
        self._set_status(copying, status)

    def _discard(self, parts: list[WrittenPart]) -> None:
        """Remove the files of a copy. What cannot be removed now is an orphan, and goes at a later start."""
        try:
            self._destination.discard(parts)
        except DestinationError as error:
            LOG.warning("files not removed", what=error.what)

    def _containing(self, copying: CopyingTable) -> Contained:
        """Make what goes wrong in the block the failure of this copy alone; raises what ends the whole run."""

        def handle(error: Exception) -> None:
            told = self._told(copying, error)
            if isinstance(told, EnvironmentMissing | StateError):
                raise told
            if not self._stopping.is_set():
                self._failed(copying, told)

        return Contained(handle)

    def _failed(self, copying: CopyingTable, error: PenstockError) -> None:
        """Note the failure of one table alone: it is tried again a few times, and then when an operator says so."""
        if isinstance(error, RangeVoid | TableDropped):
            self._start_over(copying, error.what)
            return
        if not self._give_up(copying) or not self._still_wanted(copying):
            return
        copying.failures += 1
        locked = isinstance(error, SourceLocked)  # for as long as it takes: that is for whoever holds the lock to say
        manual = error.retry in (Retry.MANUAL, Retry.NEVER) or (copying.failures > MOST_RETRIES and not locked)
        delay = FIRST_RETRY_SECONDS * 2 ** (min(copying.failures, MOST_RETRIES) - 1)
        copying.waits_for_person, copying.lacks_key = manual, isinstance(error, KeyRequired)
        copying.lacks_columns = isinstance(error, ColumnsRequired)
        copying.not_before = time.monotonic() + delay
        limit = "" if locked else f" of {MOST_RETRIES}"
        retry = Retry.MANUAL if manual else Retry.BACKOFF
        next_try = "" if manual else f"in {delay:.0f} s (try {copying.failures}{limit})"
        self._progress.drop(self._destination.name, copying.name)
        trace = {"exception": error.trace} if isinstance(error, TableFailed) and error.trace else {}
        what, solution = error.what, error.solution
        when = next_try or str(retry)
        LOG.error("copy failed", table=str(copying.name), what=what, solution=solution, retry=when, **trace)
        if isinstance(error, Undecodable):
            self._state.quarantine(self._destination.name, copying.name, error.messages)
        status = TableStatus(State.ERRORED, datetime.now(UTC), what, solution, retry, error.code, next_try)
        self._set_status(copying, status)
        self._state.add_event("errored", error.what, copying.name, destination=self._destination.name)

    def _told(self, copying: CopyingTable, met: Exception) -> PenstockError:
        """Return what went wrong in our words; RangeVoid when the copy has to start over."""
        if isinstance(met, Unresolved | PositionLost):
            return RangeVoid(met.what if isinstance(met, PositionLost) else str(met))
        try:
            return of_table(self._destination, self._pipeline.key, copying.feed, "it was copied", met)
        except StaleBase as error:
            if isinstance(met, FileUnreadable):  # and it is no file of the table: then it is of the copy
                return RangeVoid(f"table {copying.name}: files of its copy are gone: {met.what}")
            return error
        except PenstockError as error:
            return error

    def _waiting(self, tables: Iterable[CopyingTable], blockers: Sequence[str]) -> None:
        who = "; ".join(blockers) or "a snapshot"
        for copying in tables:
            self._state.note_copy(self._destination.name, copying.name, f"waiting for {who}")
        if self._stopping.is_set():
            raise SourceError("the copy was stopped while it waited for a snapshot", "It goes on at the next start")

    def _report(self, copying: CopyingTable) -> None:
        figures = CopyFigures(copying.rows, copying.estimated_rows, copying.bytes_done, copying.bytes)
        self._progress.update(self._destination.name, copying.name, figures)

    def _set_state(self, copying: CopyingTable, state: State) -> None:
        self._set_status(copying, TableStatus(state, datetime.now(UTC), copying.why))

    def _set_status(self, copying: CopyingTable, status: TableStatus) -> None:
        """Set where the table stands, unless another copy of it has been asked for since this one began."""
        name = self._destination.name
        with self._lock:
            if not self._still_wanted(copying):
                return
            present = self._state.table_status(name).get(copying.name)
            if status.state is State.INIT and present is not None and present.state in NOT_KEPT:
                self._state.set_table_status(name, copying.name, TableStatus(State.FINISHED_COPY, status.since))
            self._state.set_table_status(name, copying.name, status)


def _void_delay(voids: int) -> float:
    """Return seconds until a copy starts over that has done so `voids` times before."""
    return 0.0 if voids == 0 else min(LONGEST_VOID_SECONDS, FIRST_VOID_SECONDS * 2 ** min(voids - 1, 30))
