"""Capture: a byte pump from a replication slot into a sink of whole transactions. It never interprets a value.

`Capture.run` reads until it is stopped. It survives a source that goes away and a log without room, and raises
what no retry can fix: a gap, a slot that stays busy, a server that is set up wrongly. Each session resumes at the
sink's end, and skips a transaction if and only if its `commit_lsn` is below that end. It reads from where the slot
stands, so that what is sent again can be compared with the sink (overlap.py). What is durable in the sink is then, and
only then, confirmed to the server.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NoReturn, Protocol

import psycopg

from penstock import failpoints
from penstock.errors import (
    LogFull,
    LogUnreachable,
    PenstockError,
    SlotBusy,
    SourceError,
    SourceGivenUp,
    SourceUnreachable,
    StreamOutOfStep,
)
from penstock.model.position import Position, position_text
from penstock.model.source_events import NONE_WANTED, WantedEvents
from penstock.source.postgres import pgoutput
from penstock.source.postgres.connect import Connection, connect, replication_connection
from penstock.source.postgres.ddl_messages import DdlMessages
from penstock.source.postgres.overlap import Overlap
from penstock.source.postgres.pgoutput import HEADER_BYTES, KEEPALIVE, ROW_CHANGES, XLOG_DATA, Begin
from penstock.source.postgres.publication import inserts_publication, slot_sees
from penstock.source.postgres.relation_schema import RelationSchemas
from penstock.source.postgres.resume import Resumption, identify, require_unmoved, resume_position, slot_went_away
from penstock.source.postgres.slot import create_temporary_slot
from penstock.source.postgres.stream import PublicationUnseen, ReplicationStream
from penstock.source.postgres.transaction_buffer import Frame, TransactionBuffer, out_of_step
from penstock.source.sink import CapturedSlice, SegmentSink

CHUNK_BYTES = 512 << 10
MOST_SEGMENT_BYTES = 512 << 20  # one Arrow array holds 2 GiB, one message may have 1 GiB
TELL_SECONDS = 10.0
SILENCE_SECONDS = 60.0  # without a word from a server that was asked for one, the stream is lost
TELL_WHILE_WAITING_SECONDS = 1.0
TICK_SECONDS = 0.1
STOP_SECONDS = 1.0  # a stream that never pauses is left after that
REPORT_SECONDS = 0.25
MORE_SECONDS = 2.0
FIRST_DELAY, LONGEST_DELAY = 0.25, 4.0
BUSY_TRIES = 10
APPLICATION = "penstock capture"

Report = Callable[[dict[str, object]], None]


class StopFlag(Protocol):
    """A threading.Event, or what behaves like one."""

    def is_set(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> bool: ...


@dataclass(frozen=True)
class CaptureSettings:
    """`patient`: a source that cannot be reached at the very start is waited for, as one that goes away later is.

    `retries` tries in a row may fail, None: any number. Every `status_every` seconds the server hears what is
    durable; one that has said nothing for `keepalive` is gone. Without `keeps_changes` the slot is a temporary one,
    which capture makes, and which goes with its connection.
    """

    url: str
    slot: str
    publication: str
    segment_bytes: int
    segment_age: float  # seconds, as idle_every
    idle_every: float
    patient: bool = True
    wanted: WantedEvents = NONE_WANTED
    retries: int | None = None
    status_every: float = TELL_SECONDS
    keepalive: float = SILENCE_SECONDS
    keeps_changes: bool = True


class _MorePublications(Exception):
    """The stream has to be opened again, for it can read one more publication."""


class _Stopped(Exception):
    """The stop flag is set."""


class Capture:
    def __init__(self, settings: CaptureSettings, sink: SegmentSink, stop: StopFlag, report: Report) -> None:
        self._settings, self._sink, self._stop, self._report = settings, sink, stop, report
        self._reached = settings.patient
        self._attempts = 0
        self._publications: tuple[str, ...] = ()  # those that the stream reads
        self._unseen = False  # the second publication could not be read
        self._made = False  # the temporary slot

    def run(self) -> None:
        """Capture until stopped; then what is whole is sealed and confirmed."""
        while not self._stop.is_set():
            try:
                self._session()
            except _Stopped:
                return
            except _MorePublications:
                continue
            except (SourceUnreachable, StreamOutOfStep, LogFull, LogUnreachable) as error:
                if not self._reached:
                    raise
                retries = self._settings.retries
                if retries is not None and self._attempts >= retries and isinstance(error, SourceError):
                    raise SourceGivenUp(
                        f"{error.what}; capture has tried {retries + 1} times in a row, as source.retries says",
                        error.solution,
                    ) from error
                try:
                    self._wait(error, self._attempts)
                except _Stopped:
                    return

    def _session(self) -> None:
        settings, sink = self._settings, self._sink
        with ExitStack() as cleanup:
            stream = ReplicationStream(replication_connection(settings.url, application_name=APPLICATION), settings.url)
            cleanup.callback(stream.close)
            connection = connect(settings.url, application_name=APPLICATION)
            cleanup.callback(connection.close)
            self._reached = True
            resumption = self._start(stream, connection)
            require_unmoved(connection, settings.slot, resumption.read_from)
            sink.begin(resumption.position, resumption.origin)
            publications, position = self._publications, position_text(resumption.position)
            self._report({"event": "started", "position": position, "reading": list(publications)})
            waits = len(publications) == 1
            session = _Session(settings, sink, self._stop, self._report, stream, connection, resumption)
            session.sees_more = (lambda: len(self._visible(connection)) > 1) if waits else None
            try:
                session.pump()
            except PublicationUnseen:
                self._unseen = True
                raise
            finally:
                self._attempts = 0 if session.progressed else self._attempts

    def _start(self, stream: ReplicationStream, connection: Connection) -> Resumption:
        """Start the stream. A busy slot is tried again for a while: a predecessor may be on its way out."""
        settings, sink, attempt = self._settings, self._sink, 0
        while True:
            try:
                if settings.keeps_changes:
                    resumption = resume_position(stream.pgconn, connection, settings.slot, sink.end, sink.origin)
                else:
                    resumption = self._begin(stream, connection)
                self._publications = self._visible(connection)
                stream.start(connection, settings.slot, self._publications, resumption.read_from)
                return resumption
            except SlotBusy as error:
                if attempt == BUSY_TRIES:
                    raise
                self._wait(error, attempt)
                attempt += 1

    def _begin(self, stream: ReplicationStream, connection: Connection) -> Resumption:
        """Make the temporary slot, once: what comes after it is lost with it."""
        name = self._settings.slot
        if self._made or self._sink.end is not None:
            raise slot_went_away(name)
        position = create_temporary_slot(stream.pgconn, connection, name, self._tell_who_holds_it_up)
        self._made = True
        return Resumption(position, position, identify(stream.pgconn, connection).stream.to_origin())

    def _tell_who_holds_it_up(self, who: str) -> None:
        if self._stop.is_set():
            raise _Stopped
        what = f"slot {self._settings.slot} waits for open transactions: {who}"
        self._report({"event": "waiting", "error": what, "solution": "End them, or wait for their end", "attempts": 1})

    def _visible(self, connection: Connection) -> tuple[str, ...]:
        """Return the publications to read: the second one as soon as the slot can see it (`slot_sees`)."""
        main = self._settings.publication
        second = inserts_publication(main)
        seen = slot_sees(connection, self._settings.slot, second, strictly=self._unseen)
        return (main, second) if seen else (main,)

    def _wait(self, error: PenstockError, attempt: int) -> None:
        self._attempts += 1
        self._report(_waiting(error, self._attempts))
        if self._stop.wait(_delay(attempt)):
            raise _Stopped


class _Session:
    """One connection's life. `progressed` once something of it became durable."""

    def __init__(
        self,
        settings: CaptureSettings,
        sink: SegmentSink,
        stop: StopFlag,
        report: Report,
        stream: ReplicationStream,
        connection: Connection,
        resumption: Resumption,
    ) -> None:
        self._sink, self._stop, self._report, self._stream, self._connection = sink, stop, report, stream, connection
        self._segment_bytes = min(settings.segment_bytes, MOST_SEGMENT_BYTES)
        self._segment_age, self._idle_every = settings.segment_age, settings.idle_every
        self._status_every, self._keepalive = settings.status_every, settings.keepalive
        position = resumption.position
        self._position = position  # where the session began
        self._durable = resumption.read_from  # until what is sent again has been compared with the log
        self._overlap = Overlap(settings.slot, resumption.read_from, position, sink.last_commit)
        self._buffer = TransactionBuffer(settings.wanted, sink.structure_of)
        self._schemas = RelationSchemas(connection)
        self._ddl_messages = DdlMessages(connection, self._schemas, report)
        self._xid: int | None = None  # of the transaction that is being sent
        self._skipping = False
        self._skipped: Begin | None = None
        self._skipped_changes = False
        self._in_parts = False
        self._closed_since: float | None = None
        self._idle_position = position
        self._idle_at = self._asked_at = self._reported_at = float("-inf")
        self._ticked_at = self._heard_at = time.monotonic()
        self._stopping_since: float | None = None
        self._looked_at: float | None = None
        self._unreported_bytes = 0
        self.progressed = False
        self.sees_more: Callable[[], bool] | None = None  # whether the stream could read more if it were opened again
        self._asked_for_more_at = time.monotonic()

    def pump(self) -> None:
        """Read the stream until it ends. Raise _Stopped, or what ended it."""
        if self._overlap.verified:
            self._verify()
        self._stream.tell(self._durable, reply=True)
        get, append = self._stream.get, self._buffer.frames.append
        chunk = min(CHUNK_BYTES, self._segment_bytes)
        pending = 0
        while True:
            try:
                size, frame = get(1)
            except psycopg.Error as error:
                raise self._stream.lost(str(error)) from error
            if size > 0:
                tag = frame[0]
                if tag == XLOG_DATA:
                    kind = frame[HEADER_BYTES]
                    if kind not in ROW_CHANGES:
                        self._take_message(kind, frame)
                    elif not self._skipping:
                        append(frame)
                        pending += size
                        if pending >= chunk:
                            pending = 0
                            self._take_chunk()
                    else:
                        self._skipped_changes = True
                elif tag == KEEPALIVE:
                    self._take_keepalive(frame)
            elif size == 0:
                self._tick(time.monotonic())
                if self._stop.is_set():
                    self._take_last_look()
                else:
                    self._stream.wait(self._patience())
            else:
                raise self._stream.ended()

    def _take_message(self, kind: int, frame: Frame) -> None:
        body = frame[HEADER_BYTES:]
        if kind == pgoutput.BEGIN:
            begin = pgoutput.read_begin(body)
            if self._xid is not None:
                raise out_of_step(f"transaction {begin.xid} begins within transaction {self._xid}")
            self._xid = begin.xid
            self._skipping = begin.commit_lsn < self._position
            if self._skipping:
                self._skipped, self._skipped_changes = begin, False
            else:
                if not self._overlap.verified:
                    self._verify()
                self._buffer.begin(begin)
        elif kind == pgoutput.COMMIT:
            if self._xid is None:
                raise out_of_step("a transaction ends that did not begin")
            self._xid = None
            if self._skipping:
                self._skipping = False
                if self._skipped is not None:
                    self._overlap.take(self._skipped, has_changes=self._skipped_changes)
            else:
                self._take_commit(pgoutput.read_commit_end(body))
        elif kind == pgoutput.RELATION:
            if self._xid is None:
                raise out_of_step("a table is described outside any transaction")
            self._buffer.relation(self._schemas.schema(pgoutput.read_relation(body), self._xid))
        elif kind == pgoutput.TYPE:
            self._schemas.type_name(*pgoutput.read_type(body))
        elif kind == pgoutput.TRUNCATE:
            self._skipped_changes = self._skipping
            if not self._skipping:
                self._buffer.truncate(frame, pgoutput.read_truncate(body))
        elif kind == pgoutput.MESSAGE:
            self._ddl_messages.take(body, self._xid)
            if not self._skipping:
                self._buffer.message(frame)
        elif kind != pgoutput.ORIGIN:
            raise SourceError(
                f"the server sent a message of kind {chr(kind)!r}, which pgoutput's protocol 1 does not have",
                "Report it as a bug, with the server's version",
            )

    def _take_commit(self, end: Position) -> None:
        buffer, now = self._buffer, time.monotonic()
        self._heard_at = now
        buffer.commit(end)
        if self._in_parts:
            self._seal()
        elif buffer.closed_rows:
            if self._closed_since is None:
                self._closed_since = now
        else:
            self._idle_position = end
        if now - self._ticked_at >= TICK_SECONDS or self._seal_is_due(now):
            self._tick(now)

    def _take_keepalive(self, frame: Frame) -> None:
        position, reply = pgoutput.read_keepalive(frame)
        if self._idle:
            self._idle_position = position
            if not self._overlap.verified and position >= self._position:
                self._verify()
        if reply:
            self._stream.tell(self._durable)
        self._heard_at = time.monotonic()
        self._tick(self._heard_at)

    def _take_chunk(self) -> None:
        buffer = self._buffer
        buffer.pack()
        if buffer.bytes >= self._segment_bytes:
            if buffer.closed_rows:
                self._seal()
            while buffer.open is not None and buffer.bytes >= self._segment_bytes:
                self._write_part(buffer.open.commit_lsn, buffer.take_open())
        self._heard_at = time.monotonic()
        self._tick(self._heard_at)

    def _verify(self) -> None:
        """Everything before the log's end has been sent; what the log has there is the server's own past."""
        self._overlap.passed()
        self._durable = self._position
        self._report({"event": "verified", "position": position_text(self._position)})

    @property
    def _idle(self) -> bool:
        """Nothing is open and nothing unsealed."""
        return self._buffer.open is None and not self._skipping and self._buffer.rows == 0

    def _tick(self, now: float) -> None:
        """Do what is due by the clock."""
        self._ticked_at = now
        if self._stop.is_set():
            self._stopping_since = now if self._stopping_since is None else self._stopping_since
            if now - self._stopping_since >= STOP_SECONDS:
                self._finish()
        if self._seal_is_due(now):
            self._seal()
        between = self._buffer.open is None and not self._skipping and not self._in_parts
        if between and self.sees_more is not None and now - self._asked_for_more_at >= MORE_SECONDS:
            self._asked_for_more_at = now
            if self.sees_more():
                raise _MorePublications  # what is not sealed yet is sent again
        if self._idle:
            due = now - self._idle_at >= self._idle_every
            if due and self._overlap.verified and self._idle_position > self._durable:
                self._idle_at = now
                self._advance(self._idle_position)
            if now - self._asked_at >= max(self._idle_every, TICK_SECONDS):
                self._asked_at = now
                self._stream.tell(self._durable, reply=True)
        if now - self._stream.told_at >= self._status_every:
            self._stream.tell(self._durable, reply=True)
        if now - self._heard_at >= self._keepalive:
            raise self._stream.lost(f"nothing was heard from the server for {self._keepalive:g} seconds")

    def _take_last_look(self) -> None:
        """Take what has arrived already; when nothing has since the last look, that is the end."""
        if self._looked_at is not None and self._heard_at < self._looked_at:
            self._finish()
        self._looked_at = time.monotonic()
        self._stream.wait(0.0)

    def _finish(self) -> NoReturn:
        if self._buffer.closed_rows:
            self._seal()
        raise _Stopped

    def _seal_is_due(self, now: float) -> bool:
        return self._closed_since is not None and now - self._closed_since >= self._segment_age

    def _patience(self) -> float:
        """Return how long to wait for bytes."""
        if self._closed_since is None:
            return TICK_SECONDS
        return min(TICK_SECONDS, max(0.0, self._closed_since + self._segment_age - time.monotonic()))

    def _seal(self) -> None:
        end, slices = self._buffer.take_closed()
        self._durably(lambda: self._sink.append(end, slices))
        self._closed_since, self._in_parts = None, False
        self._unreported_bytes += _size(slices)
        self._confirm(end)

    def _write_part(self, commit_lsn: Position, slices: list[CapturedSlice]) -> None:
        self._durably(lambda: self._sink.write_part(commit_lsn, slices))
        self._in_parts = True
        self._unreported_bytes += _size(slices)

    def _advance(self, position: Position) -> None:
        self._durably(lambda: self._sink.advance(position))
        self._confirm(position)

    def _confirm(self, position: Position) -> None:
        self._durable = position
        self.progressed = True
        self._stream.tell(position)
        failpoints.reach("capture.slot_advanced")
        now = time.monotonic()
        if now - self._reported_at >= REPORT_SECONDS:
            self._reported_at = now
            self._report({"event": "sealed", "end": position_text(position), "bytes": self._unreported_bytes})
            self._unreported_bytes = 0

    def _durably(self, step: Callable[[], None]) -> None:
        """Write, however long there is no room. Meanwhile nothing is read or confirmed, but the stream stays up."""
        if self._stream.complaint is not None:
            raise self._stream.complaint
        attempt = 0
        while True:
            try:
                return step()
            except (LogFull, LogUnreachable) as error:
                self._report(_waiting(error, attempt + 1))
                self._reported_at = float("-inf")  # so that the next progress is reported at once
            again = time.monotonic() + _delay(attempt)
            attempt += 1
            while (remaining := again - time.monotonic()) > 0:
                if self._stop.wait(min(remaining, TELL_WHILE_WAITING_SECONDS)):
                    raise _Stopped
                self._stream.tell(self._durable)
                self._heard_at = time.monotonic()  # nobody listens meanwhile


def _waiting(error: PenstockError, attempts: int) -> dict[str, object]:
    return {"event": "waiting", "error": error.what, "solution": error.solution, "attempts": attempts}


def _delay(attempt: int) -> float:
    return float(min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(attempt, 10)))


def _size(slices: list[CapturedSlice]) -> int:
    return sum(item.batch.nbytes for item in slices)
