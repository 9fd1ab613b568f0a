"""The writer of one shard: a chain of messages, the last of which says how far the shard is.

A shard is a stream of JetStream with one writer at a time. Every message says which sequence number it must follow, so
the messages of a writer are a chain: when one is not stored, none behind it is, and nobody else's come in between. Two
things follow. The stream always holds a prefix of what was to be published, so its last message can say how long that
prefix is. And the answer to a chain's last message answers for all of it: one acknowledgement per chunk. The first
message of a chunk is acknowledged as well, because it alone can say why it was refused.

A writer that was overtaken is refused at its first message. One that wakes up before anybody went on adds what was to
come next anyway.

    Penstock-Place    the record's own place
    Penstock-Key      its key, where it has one that a header can hold
    Penstock-More     more records of the same event follow
    Penstock-Work     where the publication starts and ends; only while tables stand behind or are copied
    Penstock-Row      the number of a copied row, or of a dead letter that is sent again, within its publication
    Penstock-Upto     how far the shard is: on the last message of a publication, and on those that move the place alone

A message that moves the place alone has a subject of its own, and replaces the one before it where the stream allows it
(`Nats-Rollup`).
"""

from __future__ import annotations

import base64
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.destinations.nats.client import (
    MESSAGE_NOT_FOUND,
    STREAM_NOT_FOUND,
    WRONG_SEQUENCE,
    ApiError,
    NatsConnection,
    Servers,
)
from penstock.destinations.nats.protocol import (
    BINARY,
    EXPECTED,
    Headers,
    chain,
    header_bytes,
    parse_headers,
    publish,
)
from penstock.destinations.nats.subjects import Subjects
from penstock.destinations.spool import EVENT_LENGTH, Progress, Publication, Spool, after_event, event_of
from penstock.destinations.stream_contract import Published, Records, ShardPlace
from penstock.errors import (
    CommitUnknown,
    DestinationError,
    DestinationUnreachable,
    Overtaken,
    RecordRefused,
    StreamBroken,
)
from penstock.failpoints import reach
from penstock.model.place import Place

AT_ONCE, BYTES_AT_ONCE, UNDER_WAY = 1_000, 4 << 20, 4  # of a chunk; chunks that are not acknowledged yet
SPARE = (
    4_096  # bytes of headers, names and numbers: messages that are this much shorter than the limit are not measured
)
LOOK_BACK = 1_000  # messages at the end of a stream that may have been removed
PLACE, KEY, MORE = "Penstock-Place", "Penstock-Key", "Penstock-More"
WORK, ROW, UPTO = "Penstock-Work", "Penstock-Row", "Penstock-Upto"
_LINE_BREAK = "[\r\n]"


@dataclass(frozen=True)
class StreamFacts:
    """What the server says of a stream. `start` and `start_sequence` are where penstock began."""

    last_sequence: int
    first_sequence: int
    max_message: int
    rollup: bool
    start: Place
    start_sequence: int


@dataclass
class NatsPublisher:
    servers: Servers
    stream: str
    subjects: Subjects
    _facts: StreamFacts | None = field(default=None, repr=False)
    _sequence: int = 0
    _progress: Progress = field(default_factory=lambda: Progress(ShardPlace("")))

    def open(self) -> ShardPlace:
        with self.servers.connected() as connection:
            self._facts = stream_facts(connection, self.stream)
            self._sequence = self._facts.last_sequence
            self._progress = last_progress(connection, self.stream, self._facts)
        return self._progress.at

    def publish(self, records: Iterable[Records], upto: Callable[[], ShardPlace]) -> Published:
        with Spool() as spool:
            out = list(self._progress.out)
            for some in records:
                spool.add(self._without(some, out))
            work = Publication(self._progress, upto())
            with self.servers.connected() as connection:
                self._require_short(connection, spool, work)
                reach("publish.file_written")
                if spool.records > work.first:
                    self._send(connection, spool, work)
                else:
                    self._move(connection, work.end)
            reach("publish.committed")
            self._progress = work.end
            return Published(spool.records, spool.bytes)

    def advance(self, upto: ShardPlace) -> None:
        end = self._progress.moved(upto)
        with self.servers.connected() as connection:
            self._move(connection, end)
        self._progress = end

    @property
    def _opened(self) -> StreamFacts:
        if self._facts is None:
            raise ValueError("the shard is not open")
        return self._facts

    def _move(self, connection: NatsConnection, end: Progress) -> None:
        """Move the place alone, by a message that no consumer needs."""
        headers = [(EXPECTED, str(self._sequence)), (UPTO, end.to_text())]
        if self._opened.rollup:
            headers.append(("Nats-Rollup", "sub"))
        reply = connection.new_reply()
        connection.send(publish(self.subjects.own, b"", headers, reply))
        self._acknowledged(connection, reply)
        self._sequence += 1

    def _send(self, connection: NatsConnection, spool: Spool, work: Publication) -> None:
        waiting: deque[list[str]] = deque()
        sent = work.first
        for records in spool.pieces(AT_ONCE, BYTES_AT_ONCE, work):
            waiting.append(self._send_chunk(connection, records, _headers(records, work, sent, spool.records)))
            sent += len(records)
            if sent < spool.records:
                reach("publish.piece_out")
            if len(waiting) > UNDER_WAY:
                self._stored(connection, waiting.popleft())
        while waiting:
            self._stored(connection, waiting.popleft())

    def _send_chunk(self, connection: NatsConnection, records: Records, headers: Headers) -> list[str]:
        """Send a chunk, and return the subjects where its first and its last message are acknowledged."""
        count = len(records)
        replies = [connection.new_reply() for _ in range(min(count, 2))]
        asked = [f" {replies[0]}".encode(), *[b""] * (count - 2), f" {replies[-1]}".encode()][-count:]
        octets = chain(
            self._subjects(records),
            pc.fill_null(records.values, b""),
            headers,
            after=self._sequence,
            replies=pa.array(asked, BINARY),
        )
        connection.send(octets)
        self._sequence += count
        return replies

    def _stored(self, connection: NatsConnection, replies: list[str]) -> None:
        for reply in replies:
            self._acknowledged(connection, reply)

    def _acknowledged(self, connection: NatsConnection, reply: str) -> None:
        try:
            connection.answer(reply)
        except ApiError as error:
            raise self._refusal(connection, error) from error
        except DestinationUnreachable as error:
            raise CommitUnknown(error.what, "Nothing: the last message of the stream says how far it is") from error

    def _refusal(self, connection: NatsConnection, error: ApiError) -> DestinationError:
        if error.code == WRONG_SEQUENCE:
            return Overtaken(
                f"stream {self.stream} was moved on from sequence {self._opened.last_sequence} by another writer",
                "Nothing: what is not published yet is published from where the other writer ended",
            )
        return connection.refusal(error, self.stream)

    def _subjects(self, records: Records) -> pa.Array:
        names = [self.subjects.of(topic).encode() for topic in records.topics.dictionary.to_pylist()]
        return pa.array(names, BINARY).take(records.topics.indices)

    def _without(self, records: Records, out: list[tuple[str, str]]) -> Records:
        """Leave out records that are out already; they are taken from the list."""
        if not out or not len(records):
            return records
        topics = records.topics.to_pylist()
        kept = []
        for number, place in enumerate(records.places.to_pylist()):
            known = (place, self.subjects.of(topics[number]))
            if known in out:
                out.remove(known)
            else:
                kept.append(number)
        return records.take(pa.array(kept, pa.int64()))

    def _require_short(self, connection: NatsConnection, spool: Spool, work: Publication) -> None:
        """Find records that the server would refuse, before anything is sent."""
        most = connection.max_payload
        if self._opened.max_message > 0:
            most = min(most, self._opened.max_message)
        refused: dict[str, str] = {}
        for records in spool:
            for name, values in records.headers:
                broken = pc.fill_null(pc.match_substring_regex(values, _LINE_BREAK), False)
                if pc.any(broken).as_py():
                    why = f"its header {name} has a line break, which a header of NATS cannot have"
                    refused |= dict.fromkeys(records.places.filter(broken).to_pylist(), why)
            columns = [records.values, records.keys, *(values for _, values in records.headers)]
            if sum(_longest(column) for column in columns) + len(work.end.to_text()) * 3 + SPARE <= most:
                continue
            headers = _headers(records, work, 0, len(records))
            sizes = pc.add(header_bytes(headers, len(records)), pc.fill_null(pc.binary_length(records.values), 0))
            long = pc.greater(sizes, most)
            if pc.any(long).as_py():
                why = f"larger than the {most} bytes that the server or the stream takes"
                refused |= dict.fromkeys(records.places.filter(long).to_pylist(), why)
        if refused:
            raise RecordRefused(refused, "too-large")


def _longest(column: pa.Array) -> int:
    return int(pc.max(pc.binary_length(column)).as_py() or 0)


def _headers(records: Records, work: Publication, before: int, total: int) -> Headers:
    """Return the headers of a chunk that has `before` records before it, of `total`."""
    count = len(records)
    found: list[tuple[str, pa.Array]] = [(PLACE, records.places.cast(BINARY))]
    keys = records.keys
    if keys.null_count < count:
        unfit = pc.fill_null(pc.match_substring_regex(keys, _LINE_BREAK), False)
        found.append((KEY, pc.if_else(unfit, pa.scalar(None, BINARY), keys) if pc.any(unfit).as_py() else keys))
    if work.numbered:
        found.append((ROW, pa.array(before + np.arange(count)).cast(pa.string()).cast(BINARY)))
    else:
        events = pc.utf8_slice_codeunits(records.places, 0, EVENT_LENGTH)
        more = np.asarray(pc.equal(events[:-1], events[1:])) if count > 1 else np.zeros(0, np.bool_)
        if more.any():
            found.append((MORE, pa.array([*(b"1" if one else None for one in more), None], BINARY)))
    opened, end = work.opened, work.end
    if opened != Progress(ShardPlace(opened.at.place)) or end != Progress(ShardPlace(end.at.place)):
        text = json.dumps([opened.to_text(), work.final.to_text()]).encode()
        found.append((WORK, pa.repeat(pa.scalar(text, BINARY), count)))
    if before + count == total:
        last = pa.array([end.to_text().encode()], BINARY)
        found.append((UPTO, pa.concat_arrays([pa.nulls(count - 1, BINARY), last])))
    return [*found, *records.headers]


def stream_facts(connection: NatsConnection, stream: str) -> StreamFacts:
    """Look a stream of ours up."""
    try:
        info = connection.ask(f"STREAM.INFO.{stream}")
    except ApiError as error:
        if error.code == STREAM_NOT_FOUND:
            raise StreamBroken(
                f"{connection.address.text}: stream {stream} is gone",
                "Restore it, or restart the pipeline to start a new one",
            ) from error
        raise connection.refusal(error, stream) from error
    config, state = info["config"], info["state"]
    own = config.get("metadata") or {}
    try:
        start, sequence = own["penstock.start"], int(own["penstock.start_sequence"])
    except (KeyError, ValueError) as error:
        raise StreamBroken(
            f"{connection.address.text}: stream {stream} does not say where it begins: its metadata penstock.* is gone",
            "Put the metadata back, or give the destination another `stream`",
        ) from error
    return StreamFacts(
        last_sequence=int(state["last_seq"]),
        first_sequence=int(state["first_seq"]),
        max_message=int(config.get("max_msg_size", -1)),
        rollup=bool(config.get("allow_rollup_hdrs")),
        start=start,
        start_sequence=sequence,
    )


def last_progress(connection: NatsConnection, stream: str, facts: StreamFacts) -> Progress:
    """Return how far a shard is: the last message says it."""
    if facts.last_sequence == facts.start_sequence:
        return Progress(ShardPlace(facts.start))
    out: list[tuple[str, str]] = []
    last: dict[str, str] = {}
    for sequence, message in _backwards(connection, stream, facts):
        headers = parse_headers(base64.b64decode(message.get("hdrs", "")))
        if last and (PLACE not in headers or event_of(headers[PLACE]) != event_of(last[PLACE])):
            break
        if PLACE not in headers and UPTO not in headers:
            raise StreamBroken(
                f"{connection.address.text}: stream {stream} has another writer: message {sequence} on subject "
                f"{message['subject']} is not penstock's",
                f"Stop that writer, and remove its messages: nats stream rmm {stream} {sequence}",
            )
        if UPTO in headers or MORE not in headers:
            return _progress(headers, ())
        last = last or headers
        out.append((headers[PLACE], message["subject"]))
    if last:
        return _progress(last, tuple(reversed(out)))
    raise StreamBroken(
        f"{connection.address.text}: the last messages of stream {stream} are gone (expired or purged), so where it "
        "ended is not known",
        "Give the destination another `stream`. Purge with --keep=1, and set no max_age: the last message is needed",
    )


def _backwards(connection: NatsConnection, stream: str, facts: StreamFacts) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the messages of the stream, the last one first; those that were removed are passed over."""
    lowest = max(facts.first_sequence, facts.last_sequence - LOOK_BACK, 1)
    for sequence in range(facts.last_sequence, lowest - 1, -1):
        try:
            yield sequence, connection.ask(f"STREAM.MSG.GET.{stream}", {"seq": sequence})["message"]
        except ApiError as error:
            if error.code != MESSAGE_NOT_FOUND:
                raise connection.refusal(error, stream) from error


def _progress(headers: dict[str, str], out: tuple[tuple[str, str], ...]) -> Progress:
    """Return what a message says. `out`: records of its event that are out, when not all are."""
    if UPTO in headers:
        return Progress.from_text(headers[UPTO])
    if WORK not in headers:
        record = headers[PLACE]
        return Progress(ShardPlace(event_of(record) if out else after_event(record)), out)
    opened, final = json.loads(headers[WORK])
    work = Publication(Progress.from_text(opened), ShardPlace.from_text(final))
    return work.after(headers[PLACE], int(headers.get(ROW, 0)) + 1, out)
