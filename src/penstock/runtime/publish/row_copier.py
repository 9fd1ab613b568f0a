"""Read the rows of tables under a snapshot, beside the stream, for `snapshot: true`: the source's half of a copy.

Runs in a thread of its own. Each range of a table is read by a Spark task into a scratch file and handed to the publish
loop as a piece, which publishes pieces in order, between two batches. At most PIECES_AHEAD of them wait: the rest of
the table is read when these are published. All of a table is read under one snapshot. When the destination takes
nothing for `copy.snapshot_for`, the copy is given up and begun again later under another snapshot: the source's vacuum
must not wait for a destination.

A copy that is begun again, also after a restart, sends its rows again under another id (`RowCopy.snapshot`).
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import structlog

from penstock.changelog.log import ChangeLog
from penstock.changelog.scratch import Scratch
from penstock.config.model import Pipeline
from penstock.decode.verbatim import verbatim
from penstock.destinations.contract import JobRunner
from penstock.errors import (
    DestinationUnreachable,
    EnvironmentMissing,
    LogError,
    PenstockError,
    RangeVoid,
    Retry,
    SourceError,
    StateError,
)
from penstock.failpoints import reach
from penstock.model.feed import Feed
from penstock.model.position import Position, position_text
from penstock.model.rescue import RescueCount
from penstock.model.table import TableId, TableSchema
from penstock.model.write_counters import WriteCounters
from penstock.runtime.copy.connections import CopyConnections
from penstock.runtime.process.log_context import inherited, inheriting
from penstock.runtime.publish.copied_rows import RowCopy, Staged, StageTask, stage_range
from penstock.runtime.publish.stream_watch import TableFacts
from penstock.source.factory import source_of
from penstock.source.snapshot_contract import CopyRange, Snapshot, TableReader
from penstock.state.store import StateStore

LOG = structlog.get_logger("copy")
IDLE_SECONDS = 0.1
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 60.0
PIECES_AHEAD = 8
TRIES = 3  # of a range under one snapshot


@dataclass(frozen=True)
class Piece:
    """What one range gave. `file` is empty when it gave no rows. `last`: it is the last of its copy."""

    copy: RowCopy
    number: int
    file: str
    rows: int
    bytes: int
    last: bool
    rescues: tuple[RescueCount, ...] = ()


@dataclass(frozen=True)
class Begun:
    """A copy that began, with what the catalogue said of its table in the snapshot."""

    copy: RowCopy
    facts: TableFacts
    ranges: Sequence[CopyRange]


@dataclass
class _Wanted:
    """A table whose rows are wanted. `submitted` and `published` count ranges of the copy under way."""

    feed: Feed
    schema: TableSchema
    not_before: float = 0.0
    failures: int = 0
    replay_from: Position | None = None
    copy: RowCopy | None = None
    pieces: dict[int, Piece] = field(default_factory=dict)  # read, and not published yet
    submitted: int = 0
    published: int = 0


class _Abandoned(Exception):
    """The copy is not wanted any more, or the run stops."""


class RowCopier:
    """`add` tables at any time; their pieces come out of `take`. May be called from any thread."""

    def __init__(
        self,
        pipeline: Pipeline,
        runner: JobRunner,
        log: ChangeLog,
        state: StateStore,
        connections: CopyConnections,
        floor: Callable[[], Position],
    ) -> None:
        """Set up a copier of rows for one stream.

        `connections` is what all copies of the source may use at once. `floor` gives a position that no snapshot made
        from now on is before.
        """
        self._pipeline, self._settings, self._runner = pipeline, pipeline.copying, runner
        self._state, self._connections, self._floor = state, connections, floor
        self._source, self._destination = source_of(pipeline.source), pipeline.destination.name
        self.scratch = Scratch(log)
        self._tables: dict[TableId, _Wanted] = {}
        self._begun: list[Begun] = []
        self._failed: list[tuple[TableId, PenstockError]] = []
        self._useless: list[str] = []  # files of copies that were given up
        self._lock = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=inherited(self._work), name="row-copier", daemon=True)
        self._pool = ThreadPoolExecutor(
            self._settings.max_connections, thread_name_prefix="rows", initializer=inheriting()
        )
        self.failure: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ranges in flight are finished; the copies are for the next start."""
        self._stopping.set()
        with self._lock:
            self._lock.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        self._pool.shutdown()
        try:
            self.scratch.remove()
        except LogError as error:
            LOG.warning("scratch files not removed", what=error.what)

    def add(self, feed: Feed, schema: TableSchema) -> None:
        """Copy a table, from its beginning if it is being copied."""
        with self._lock:
            self._forget(feed.name)
            self._tables[feed.name] = _Wanted(feed, schema)

    def remove(self, table: TableId) -> None:
        with self._lock:
            self._forget(table)

    def needed_from(self) -> Position | None:
        """Return the lowest position from which changes will follow a copy."""
        with self._lock:
            return min((one.replay_from for one in self._tables.values() if one.replay_from is not None), default=None)

    def begun(self) -> list[Begun]:
        """Return the copies that began since the last call. They are asked for before `take`."""
        with self._lock:
            found, self._begun = self._begun, []
            return [one for one in found if self._is_wanted(one.copy)]

    def failed(self) -> list[tuple[TableId, PenstockError]]:
        """Return what an operator has to see to, since the last call. These tables are not copied any more."""
        with self._lock:
            found, self._failed = self._failed, []
            return found

    def take(self, most_bytes: int) -> list[Piece]:
        """Return the next pieces of one table, in order; they come again until they are `published`."""
        with self._lock:
            for wanted in self._tables.values():
                found: list[Piece] = []
                while (piece := wanted.pieces.get(wanted.published + len(found))) is not None:
                    if found and sum(one.bytes for one in found) + piece.bytes > most_bytes:
                        break
                    found.append(piece)
                if found:
                    return found
            return []

    def published(self, pieces: Sequence[Piece]) -> None:
        """Forget pieces that every shard has, and files of copies that were given up. No task may be reading any."""
        with self._lock:
            for piece in pieces:
                wanted = self._tables.get(piece.copy.feed.name)
                if wanted is not None and wanted.pieces.get(piece.number) is piece:
                    del wanted.pieces[piece.number]
                    wanted.published = piece.number + 1
                    self._useless.append(piece.file)
            files, self._useless = self._useless, []
            self._lock.notify_all()
        for file in filter(None, files):
            self.scratch.remove_file(file)

    def _is_wanted(self, copy: RowCopy) -> bool:
        wanted = self._tables.get(copy.feed.name)
        return wanted is not None and wanted.copy is copy

    def _forget(self, table: TableId) -> None:
        wanted = self._tables.pop(table, None)
        if wanted is not None:
            self._reset(wanted)

    def _reset(self, wanted: _Wanted) -> None:
        self._useless += [piece.file for piece in wanted.pieces.values()]
        wanted.copy, wanted.replay_from, wanted.pieces = None, None, {}
        wanted.submitted = wanted.published = 0
        self._lock.notify_all()

    def _work(self) -> None:
        try:
            self.scratch.create()
            while not self._stopping.is_set():
                due = self._due()
                if due:
                    self._copy_set(due)
                else:
                    self._stopping.wait(IDLE_SECONDS)
        except BaseException as error:  # noqa: BLE001 - handed to the stream's thread, which raises it
            self.failure = error

    def _due(self) -> list[_Wanted]:
        now = time.monotonic()
        with self._lock:
            return [one for one in self._tables.values() if one.copy is None and one.not_before <= now]

    def _copy_set(self, tables: Sequence[_Wanted]) -> None:
        """Copy these tables under one snapshot, one after the other.

        When its time is up, the rest waits for the next: the source's vacuum is held back as long as it lives.
        """
        for wanted in tables:
            wanted.replay_from = self._floor()
        try:
            # Before the snapshot: a change that it does not see must not be among those counted.
            with self._source.connect() as session:
                counters = session.counters([wanted.schema for wanted in tables])
            snapshot = self._source.snapshot(
                timeout=self._settings.snapshot_timeout, waiting=lambda who: self._waiting(tables, who)
            )
        except SourceError as error:
            for wanted in tables:
                self._give_up(wanted, error)
            return
        with snapshot:
            until = time.monotonic() + self._settings.snapshot_for
            for wanted in tables:
                wanted.replay_from = snapshot.position
            for wanted in tables:
                if time.monotonic() > until:
                    return
                try:
                    self._copy(wanted, snapshot, counters[wanted.feed.table])
                except PenstockError as error:
                    if isinstance(error, StateError | EnvironmentMissing):
                        raise
                    self._give_up(wanted, error)
                except _Abandoned:
                    continue

    def _copy(self, wanted: _Wanted, snapshot: Snapshot, counters: WriteCounters) -> None:
        table = wanted.feed.table
        with snapshot.session() as session:
            found = session.describe(self._pipeline, table)
            if found is None:
                raise RangeVoid(f"table {table} is not at the source", "It is looked for again")
            schema = verbatim(self._pipeline.carried(found))  # as changes are read
            reader = session.reader(schema)
            ranges = session.plan_ranges(schema, range_bytes=self._settings.range_bytes)
            marks, partitions = session.marks([schema])[table], session.partitions([schema]).get(table)
        identity = f"{snapshot.position:016x}-{secrets.token_hex(4)}"
        copy = RowCopy(identity, wanted.feed, schema, snapshot.position)
        with self._lock:
            if self._tables.get(table) is not wanted:
                raise _Abandoned
            wanted.copy = copy
            self._begun.append(Begun(copy, TableFacts(marks, partitions, counters), ranges))
            if not ranges:
                wanted.pieces[0] = Piece(copy, 0, "", 0, 0, last=True)
        LOG.info("rows are copied", table=str(table), ranges=len(ranges), position=position_text(snapshot.position))
        reach("copy.begun")
        running: list[Future[None]] = []
        try:
            for number, item in enumerate(ranges):
                self._await_room(wanted, copy)
                last = number == len(ranges) - 1
                args = wanted, copy, number, item, reader, snapshot.moment, last
                running.append(self._pool.submit(self._stage, *args))
                for done in running:
                    if done.done():
                        done.result()
        finally:
            for done in running:
                done.exception()  # waits: nobody reads under a snapshot that is gone
        for done in running:
            done.result()

    def _await_room(self, wanted: _Wanted, copy: RowCopy) -> None:
        """Wait until few enough pieces wait to be published."""
        with self._lock:
            seen, until = wanted.published, time.monotonic() + self._settings.snapshot_for
            while wanted.submitted - wanted.published >= PIECES_AHEAD:
                if self._stopping.is_set() or not self._is_wanted(copy):
                    raise _Abandoned
                if wanted.published > seen:
                    seen, until = wanted.published, time.monotonic() + self._settings.snapshot_for
                if time.monotonic() > until:
                    raise DestinationUnreachable(
                        f"table {copy.feed.name}: the destination has taken no rows for so long that its snapshot was "
                        "given up",
                        "Nothing: its rows are sent again, under another snapshot",
                    )
                self._lock.wait(1.0)
            if self._stopping.is_set() or not self._is_wanted(copy):
                raise _Abandoned
            wanted.submitted += 1

    def _stage(
        self,
        wanted: _Wanted,
        copy: RowCopy,
        number: int,
        item: CopyRange,
        reader: TableReader,
        moment: int,
        last: bool,
    ) -> None:
        limit = self._settings.max_rows_per_second
        share = limit / self._settings.max_connections if limit else None
        timeout = self._settings.statement_timeout
        task = StageTask(reader, item, copy, moment, self.scratch, timeout, share)
        staged = self._staged(task)
        reach("copy.range_finished")
        with self._lock:
            if self._is_wanted(copy):
                wanted.pieces[number] = Piece(copy, number, staged.file, staged.rows, item.bytes, last, staged.rescues)
            else:
                self._useless.append(staged.file)

    def _staged(self, task: StageTask) -> Staged:
        """Read a range. What may pass, like an executor that dies, is tried again a few times under the snapshot."""
        for number in range(1, TRIES + 1):
            try:
                with self._connections.one(self._destination):
                    staged = self._runner.run(stage_range, [task])[0]
                if staged.error is not None:
                    raise staged.error
            except PenstockError as error:
                if error.retry != "backoff" or number == TRIES or self._stopping.wait(FIRST_RETRY_SECONDS):
                    raise
                LOG.warning("range read again", table=str(task.copy.feed.name), what=error.what)
            else:
                return staged
        raise AssertionError("the last try returns or raises")

    def _give_up(self, wanted: _Wanted, error: PenstockError) -> None:
        """Try again after a while, or leave it to an operator."""
        table = wanted.feed.name
        with self._lock:
            if self._stopping.is_set() or self._tables.get(table) is not wanted:
                return
            self._reset(wanted)
            if error.retry in (Retry.MANUAL, Retry.NEVER):
                del self._tables[table]
                self._failed.append((table, error))
                return
            delay = min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2 ** min(wanted.failures, 30))
            wanted.failures += 1
            wanted.not_before = time.monotonic() + delay
        LOG.warning("copy of rows starts again", table=str(table), what=error.what, seconds=delay)
        self._state.note_copy(self._destination, table, f"starts again: {error.what}")

    def _waiting(self, tables: Sequence[_Wanted], blockers: Sequence[str]) -> None:
        who = "; ".join(blockers) or "a snapshot"
        for wanted in tables:
            self._state.note_copy(self._destination, wanted.feed.name, f"waiting for {who}")
        if self._stopping.is_set():
            raise SourceError("the copy was stopped while it waited for a snapshot", "It goes on at the next start")
