"""The writer of one shard: entries and the shard's place move in one transaction of Redis.

WATCH on the place makes it a compare-and-set. A writer that was overtaken finds the place moved, or its EXEC refused,
and nothing was added. A server that loses its last writes loses entries and place together, so what is left is a
prefix still.

A command that fails inside a transaction does not stop the others. So what can fail there is looked at before: streams
are of the right type, and are watched as well. A transaction keeps the server busy; a large publication is several
(`spool.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from penstock.destinations.redis.client import RedisConnection, Server
from penstock.destinations.redis.protocol import BINARY, Fields, RedisError, added, command, xadds
from penstock.destinations.spool import Progress, Publication, Spool
from penstock.destinations.stream_contract import Published, Records, ShardPlace
from penstock.errors import CommitUnknown, DestinationUnreachable, Overtaken, RecordRefused, StreamBroken
from penstock.failpoints import reach

AT_ONCE, BYTES_AT_ONCE = 2_000, 8 << 20  # of one transaction: the server does nothing else meanwhile
LONGEST = 512 << 20  # bytes of a value, Redis' own limit (proto-max-bulk-len)
WATCHED_TRIES = 5  # for streams that others change all the time; then the place alone is watched

FieldNames = Literal["penstock", "deltaforge"]


@dataclass(frozen=True)
class PlaceRecord:
    """What the key of a shard's place holds. `turn` makes every record unique."""

    turn: int
    progress: Progress

    def to_bytes(self) -> bytes:
        return b"%d %s" % (self.turn, self.progress.to_text().encode())

    @classmethod
    def from_bytes(cls, octets: bytes) -> PlaceRecord:
        turn, _, text = octets.partition(b" ")
        return cls(int(turn), Progress.from_text(text))


@dataclass
class RedisPublisher:
    server: Server
    place_key: str
    fields: FieldNames = "penstock"
    maxlen: int | None = None
    _record: PlaceRecord | None = field(default=None, repr=False)

    def open(self) -> ShardPlace:
        with self.server.connected() as connection:
            (found,) = connection.ask(command("GET", self.place_key))
        self._record = read_place(self.place_key, found)
        return self._record.progress.at

    def publish(self, records: Iterable[Records], upto: Callable[[], ShardPlace]) -> Published:
        with Spool() as spool:
            for some in records:
                spool.add(some)
            _require_short(spool)
            work = Publication(self._opened.progress, upto())
            reach("publish.file_written")
            with self.server.connected() as connection:
                sent = work.first
                if sent >= spool.records:
                    self._commit(connection, None, work.end)
                for piece in spool.pieces(AT_ONCE, BYTES_AT_ONCE, work):
                    sent += len(piece)
                    whole = sent == spool.records
                    self._commit(connection, piece, work.end if whole else work.after(piece.places[-1].as_py(), sent))
                    if not whole:
                        reach("publish.piece_out")
            reach("publish.committed")
            return Published(spool.records, spool.bytes)

    def advance(self, upto: ShardPlace) -> None:
        with self.server.connected() as connection:
            self._commit(connection, None, self._opened.progress.moved(upto))

    @property
    def _opened(self) -> PlaceRecord:
        if self._record is None:
            raise ValueError("the shard is not open")
        return self._record

    def _commit(self, connection: RedisConnection, records: Records | None, progress: Progress) -> None:
        """Add the records and move the place, unless somebody has moved it."""
        before = self._opened
        after = PlaceRecord(before.turn + 1, progress)
        names = records.topics.dictionary.to_pylist() if records is not None else []
        entries = [xadds(records, self._fields(records), self.maxlen)] if records is not None else []
        count = len(records) if records is not None else 0
        moves = command("SET", self.place_key, after.to_bytes()) + command("EXEC")
        tries = 0
        while True:
            self._watch(connection, before, names, watched=tries < WATCHED_TRIES)
            tries += 1
            seen = partial(added, entries=count)
            try:
                answer = connection.send_and_look([command("MULTI"), *entries, moves], seen)
                done = connection.answers(answer, count + 3)[-1] if not added(answer, count) else []
            except DestinationUnreachable as error:
                raise CommitUnknown(error.what, "Nothing: the shard's place says whether it was carried out") from error
            if done is None:
                continue  # something that is watched has changed: `_watch` says whether it is the place
            if isinstance(done, RedisError):
                raise connection.refusal(self._first_error(connection, answer, count, done))
            failed = [one for one in done if isinstance(one, RedisError)]
            if failed:
                raise self._partly(connection, failed)
            self._record = after
            return

    def _watch(self, connection: RedisConnection, before: PlaceRecord, names: list[str], *, watched: bool) -> None:
        keys = [self.place_key, *(names if watched else [])]
        types = [command("TYPE", name) for name in names]
        _, found, *kinds = connection.ask(command("WATCH", *keys), command("GET", self.place_key), *types)
        trouble: Exception | None = None
        if found != before.to_bytes():
            read_place(self.place_key, found)
            trouble = Overtaken(
                f"the shard {self.place_key} was moved on by another writer",
                "Nothing: what is not published yet is published from where the other writer ended",
            )
        wrong = [
            (name, kind.decode()) for name, kind in zip(names, kinds, strict=True) if kind not in (b"none", b"stream")
        ]
        if wrong and trouble is None:
            trouble = DestinationUnreachable(
                f"{connection.address.text}: {other_type(*wrong[0])}", "Rename or remove that key: it is tried again"
            )
        if trouble is not None:
            connection.ask(command("UNWATCH"))
            raise trouble

    def _first_error(self, connection: RedisConnection, answer: bytearray, count: int, last: RedisError) -> RedisError:
        """Return why a transaction was refused: EXECABORT says only that one of its commands was."""
        errors = [one for one in connection.answers(answer, count + 3) if isinstance(one, RedisError)]
        return errors[0] if errors else last

    def _partly(self, connection: RedisConnection, failed: list[Any]) -> StreamBroken:
        """Mark the place broken, so that nobody goes on from there, and return the error.

        The place has moved and entries are missing: the server's rules changed during the transaction.
        """
        connection.ask(command("SET", self.place_key, b"broken: " + failed[0].text.encode()))
        return _broken(self.place_key, failed[0].text)

    def _fields(self, records: Records) -> Fields:
        if self.fields == "penstock":
            headers = [(name.encode(), values) for name, values in records.headers]
            return [
                (b"place", records.places.cast(BINARY)),
                (b"key", records.keys),
                (b"value", pc.fill_null(records.values, b"")),
                *headers,
            ]
        names = records.topics.dictionary.take(records.topics.indices).cast(BINARY)
        ids = pc.binary_join_element_wise(names, records.places.cast(BINARY), pa.scalar(b"/", BINARY))
        fields = [
            (b"event_id", ids),
            (b"idempotency_key", ids),
            (b"df-event", pc.fill_null(records.values, b"")),
            (b"df-key", records.keys),
        ]
        if records.headers:
            fields.append((b"df-headers", _json_headers(records)))
        return fields


def read_place(key: str, found: bytes | None) -> PlaceRecord:
    """Return what a shard's place says. StreamBroken when it is not there, or says that entries are missing."""
    if found is None:
        raise StreamBroken(
            f"the key {key} is missing: nobody can say how far the stream is published",
            "Restore the server's data, or start a new stream: give the destination another `name`",
        )
    if found.startswith(b"broken: "):
        raise _broken(key, found.removeprefix(b"broken: ").decode(errors="replace"))
    try:
        return PlaceRecord.from_bytes(found)
    except ValueError as error:
        raise StreamBroken(
            f"the key {key} does not hold the place of a stream: {error}",
            "Restore it from a backup, or give the destination another `name`",
        ) from error


def other_type(name: str, kind: str) -> str:
    """Say that a key is not a stream."""
    return f"the key {name} is a {kind}, not a stream"


def _broken(key: str, why: str) -> StreamBroken:
    return StreamBroken(
        f"the server carried out a part of a transaction only, and entries are missing ({key}: {why})",
        "Start a new stream: give the destination another `name`, and its streams other names",
    )


def _require_short(spool: Spool) -> None:
    long: dict[str, str] = {}
    for records in spool:
        lengths = pc.binary_length(records.values)
        if (pc.max(lengths).as_py() or 0) > LONGEST:
            places = records.places.filter(pc.fill_null(pc.greater(lengths, LONGEST), False))
            long |= dict.fromkeys(places.to_pylist(), f"larger than Redis' limit of {LONGEST >> 20} MB")
    if long:
        raise RecordRefused(long, "too-large")


def _json_headers(records: Records) -> pa.Array:
    columns = [(name, values.to_pylist()) for name, values in records.headers]
    rows = (
        {name: values[row].decode(errors="replace") for name, values in columns if values[row] is not None}
        for row in range(len(records))
    )
    return pa.array([json.dumps(row, ensure_ascii=False).encode() for row in rows], BINARY)
