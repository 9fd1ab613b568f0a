"""Capture: a byte pump from the binlog into a sink of whole transactions. It never interprets a value.

`Capture.run` reads until it is stopped. A server that goes away and a log without room are waited for; what no
retry can fix is raised: a gap, rights that are missing. Each session goes on at the sink's end.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Protocol

import structlog

from penstock.errors import GapError, LogFull, LogUnreachable, PenstockError, SourceUnreachable, StreamOutOfStep
from penstock.model.position import Position
from penstock.model.table import TableId, TableSchema
from penstock.source.contract import Report, SegmentSettings, StopFlag
from penstock.source.mysql.catalogue import charsets_by_collation, discover
from penstock.source.mysql.connect import Address, Connection, connect, is_mariadb
from penstock.source.mysql.events import PAYLOAD, START_OVER, BinlogStream, Block
from penstock.source.mysql.gtids import GtidSet
from penstock.source.mysql.positions import epoch_of, head, position_of
from penstock.source.mysql.positions import position_text as shown
from penstock.source.mysql.resume import (
    LogState,
    after_gtids,
    await_visible,
    find_gap,
    gtids_at,
    identity,
    settled_gtids,
)
from penstock.source.mysql.transactions import Transactions
from penstock.source.sink import Origin, SegmentSink
from penstock.source.snapshot_contract import WantedTables

LOG = structlog.get_logger("capture")
MOST_SEGMENT_BYTES = 256 << 20
SILENCE_SECONDS = 60.0
HEARTBEAT_SECONDS = 1.0
REPORT_SECONDS = 0.25
STOP_SECONDS = 1.0
ONE_BY_ONE = 64  # events, before simple transactions are looked for again
FIRST_DELAY, LONGEST_DELAY = 0.25, 4.0
READING = "binlog"


class _Stopped(Exception):
    """The stop flag is set."""


class _Catalogue:
    """Tables that the binlog has not described since capture began, as the catalogue has them now."""

    def __init__(self, connection: Connection, address: Address, wanted: WantedTables) -> None:
        self._connection, self._address, self._wanted = connection, address, wanted
        self._known: dict[TableId, bool] = {}

    def wants(self, table: TableId) -> bool:
        found = self._known.get(table)
        if found is None:
            found = self._known[table] = self._wanted.wants(table)
        return found

    def described(self, table: TableId) -> TableSchema | None:
        found = discover(self._connection, self._address, table.__eq__)
        return found[0].schema if found else None

    def altered(self, table: TableId) -> TableSchema | None:
        """Look when the statement is done: MySQL's binlog has it a moment before."""
        if not is_mariadb(self._connection):
            await_visible(self._connection, self._address)
        return self.described(table)

    def all_wanted(self) -> list[TableSchema]:
        return [one.schema for one in discover(self._connection, self._address, self.wants)]


class CaptureSection(Protocol):
    @property
    def address(self) -> Address: ...

    @property
    def replica_id(self) -> int: ...


class Capture:
    def __init__(
        self,
        section: CaptureSection,
        wanted: WantedTables,
        settings: SegmentSettings,
        sink: SegmentSink,
        stop: StopFlag,
        report: Report,
    ) -> None:
        self._section, self._wanted, self._settings = section, wanted, settings
        self._sink, self._stop, self._report = sink, stop, report
        self._reached = settings.patient
        self._attempts = 0

    def run(self) -> None:
        """Read until stopped; then what is whole is sealed."""
        while not self._stop.is_set():
            try:
                self._session()
            except _Stopped:
                return
            except (SourceUnreachable, StreamOutOfStep, LogFull, LogUnreachable) as error:
                if not self._reached:
                    raise
                self._wait(error)

    def _wait(self, error: PenstockError) -> None:
        self._attempts += 1
        delay = min(FIRST_DELAY * 2 ** min(self._attempts - 1, 8), LONGEST_DELAY)
        self._report({"event": "waiting", "error": error.what, "solution": error.solution, "attempts": self._attempts})
        self._stop.wait(delay)

    def _session(self) -> None:
        address, sink = self._section.address, self._sink
        connection = connect(address, purpose="penstock capture")
        try:
            self._reached = True
            state, position = self._begin(connection, address)
            arriving, settled = GtidSet(), 0
            if not state.gtids and not is_mariadb(connection):
                arriving, settled = settled_gtids(connection, address)
            stream = BinlogStream(
                address,
                self._section.replica_id,
                state.file,
                position & 0xFFFFFFFF,
                HEARTBEAT_SECONDS,
                after_gtids(state, mariadb=is_mariadb(connection)) if state.taking_over else b"",
            )
            try:
                transactions = Transactions(
                    _Catalogue(connection, address, self._wanted),
                    charsets_by_collation(connection, address),
                    mariadb=stream.mariadb,
                    file=state.file,
                    end=position,
                    gtids=state.gtids or arriving.state(),
                    settled=settled,
                    taking_over=state.taking_over,
                    report=lambda text: LOG.warning("statement not followed by rows", statement=text[:200]),
                )
                self._report({"event": "started", "position": shown(position), "reading": [READING]})
                self._report({"event": "verified", "position": shown(position)})
                session = _Session(self._settings, sink, self._stop, self._report, stream, transactions)
                session.expected = state if state.created else None
                try:
                    session.pump()
                finally:
                    self._attempts = 0 if session.progressed else self._attempts
            finally:
                stream.close()
        finally:
            connection.close()

    def _begin(self, connection: Connection, address: Address) -> tuple[LogState, Position]:
        """Return where to read from, after the sink was told. A new log begins at the end of the binlog."""
        sink = self._sink
        system = identity(connection, address)
        end, origin = sink.end, sink.origin
        if end is not None and origin is not None:
            gap = find_gap(connection, address, end, origin)
            if gap is not None:
                raise gap
            state = LogState.from_json(origin.state)
            if origin.stream == system and epoch_of(end) == address.epoch:
                sink.begin(end, origin)
                return state, end
            state = dataclasses.replace(state, file="binlog.0", created=0, taking_over=True)
            sink.begin(end, Origin(system, state.to_json()))
            return state, max(end, position_of(state.file, 0, address.epoch))
        file, offset = head(connection, address)
        position = position_of(file, offset, address.epoch)
        state = LogState(file, 0, gtids_at(connection, address, file, offset) or {})
        # No transaction begins in the last byte before the end: so the log has a beginning even while nothing happens.
        sink.begin(position - 1, Origin(system, state.to_json()))
        sink.advance(position, state.to_json())
        return state, position


class _Session:
    def __init__(
        self,
        settings: SegmentSettings,
        sink: SegmentSink,
        stop: StopFlag,
        report: Report,
        stream: BinlogStream,
        transactions: Transactions,
    ) -> None:
        self._settings, self._sink, self._stop, self._report = settings, sink, stop, report
        self._stream, self._transactions = stream, transactions
        self._segment_bytes = min(settings.segment_bytes, MOST_SEGMENT_BYTES)
        self._durable = transactions.end
        self._in_parts = False
        self._closed_since: float | None = None
        self._idle_at = self._reported_at = float("-inf")
        self._heard_at = time.monotonic()
        self._stopping_since: float | None = None
        self._unreported = 0
        self.expected: LogState | None = None  # the file that the stream must begin in
        self.progressed = False

    def pump(self) -> None:
        """Read until the stream ends. Raise _Stopped, or what ended it."""
        transactions = self._transactions
        while True:
            blocks = self._stream.read()
            now = time.monotonic()
            if blocks is None:
                if now - self._heard_at > SILENCE_SECONDS:
                    raise SourceUnreachable("the server has not sent a word for a minute", "It is asked again")
            else:
                self._heard_at = now
                for block in blocks:
                    self._take(block)
                if self.expected is not None and transactions.began_in is not None:
                    self._require_same_file(self.expected)
            self._tick(now, quiet=blocks is None)

    def _take(self, block: Block) -> None:
        """Take simple transactions at once, and other events one by one until some of them have passed."""
        transactions, at = self._transactions, 0
        while at < len(block):
            at += transactions.take_simple(block, at)
            for number in range(at, min(at + ONE_BY_ONE, len(block))):
                event = block.event(number)
                for one in transactions.unpacked(event) if event[4] == PAYLOAD else (event,):
                    transactions.take(one)
                    if max(transactions.pending_bytes, transactions.bytes) >= self._segment_bytes:
                        self._make_room()
            at += ONE_BY_ONE
            if transactions.bytes >= self._segment_bytes:
                self._make_room()

    def _require_same_file(self, expected: LogState) -> None:
        self.expected = None
        if self._transactions.began_in != expected.created:
            raise GapError(
                f"the server has another binlog file under the name {expected.file} than when the change log was"
                " written: it was reset",
                START_OVER,
            )

    def _make_room(self) -> None:
        transactions = self._transactions
        if transactions.bytes and (transactions.bytes >= self._segment_bytes or transactions.pending_bytes):
            self._seal()
        opened = transactions.open_position
        if opened is not None and transactions.pending_bytes >= self._segment_bytes:
            slices, begin = transactions.take_open(), opened
            self._when_there_is_room(lambda: self._sink.write_part(begin, slices))
            self._in_parts = True

    def _tick(self, now: float, *, quiet: bool) -> None:
        transactions = self._transactions
        if self._in_parts:
            if transactions.open_position is None:
                self._seal()
        elif transactions.bytes:
            self._closed_since = now if self._closed_since is None else self._closed_since
            due = now - self._closed_since >= self._settings.segment_age
            if due or transactions.bytes >= self._segment_bytes:
                self._seal()
        elif transactions.end > self._durable and now - self._idle_at >= self._settings.idle_every:
            end = transactions.end
            self._when_there_is_room(lambda: self._sink.advance(end, self._state()))
            self._sealed(end)
            self._idle_at = now
        if self._stop.is_set():
            self._stopping_since = now if self._stopping_since is None else self._stopping_since
            if quiet or now - self._stopping_since >= STOP_SECONDS:
                self._finish()

    def _finish(self) -> None:
        transactions = self._transactions
        if transactions.bytes and not self._in_parts:
            self._seal()
        elif transactions.end > self._durable and not self._in_parts:
            self._sink.advance(transactions.end, self._state())
        raise _Stopped

    def _seal(self) -> None:
        transactions = self._transactions
        end, slices, state = transactions.end, transactions.take_closed(), self._state()
        self._when_there_is_room(lambda: self._sink.append(end, slices, state))
        self._in_parts, self._closed_since = False, None
        self._unreported += sum(item.batch.nbytes for item in slices)
        self._sealed(end)

    def _when_there_is_room(self, act: Callable[[], None]) -> None:
        """Do it, again and again while the log is full or away: what was read is kept until then."""
        attempts = 0
        while True:
            try:
                act()
                return
            except (LogFull, LogUnreachable) as error:
                attempts += 1
                self._report(
                    {"event": "waiting", "error": error.what, "solution": error.solution, "attempts": attempts}
                )
                if self._stop.wait(min(FIRST_DELAY * 2 ** min(attempts - 1, 8), LONGEST_DELAY)):
                    raise _Stopped from None
                self._heard_at = time.monotonic()

    def _sealed(self, end: Position) -> None:
        self._durable, self.progressed = end, True
        now = time.monotonic()
        if now - self._reported_at >= REPORT_SECONDS:
            self._report({"event": "sealed", "end": shown(end), "bytes": self._unreported})
            self._reported_at, self._unreported = now, 0

    def _state(self) -> str:
        transactions = self._transactions
        return LogState(transactions.file, transactions.created or 0, transactions.gtids).to_json()
