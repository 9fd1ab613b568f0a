"""Publish in pieces: for destinations whose largest step is smaller than a publication.

A publication is complete, in memory or in a temporary file, before its first record leaves: until then it can still be
withdrawn, and only then it is known which tables stand behind (`Publisher.publish`). The pieces then move the shard's
place one after the other, each to a place within the publication (`midway`). Whatever happens between two pieces, the
shard holds a prefix, and its place says which.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import BinaryIO

import pyarrow as pa

from penstock.destinations.stream_contract import Records, ShardPlace
from penstock.model.place import Place, parts_of, place_at

IN_MEMORY = 32 << 20  # bytes of records, beyond which they go to a file
EVENT_LENGTH = 33  # characters of a place that say which event it is; what follows is the record within the event


def event_of(place: str) -> Place:
    """Return the place of the event that a record belongs to."""
    return place[:EVENT_LENGTH]


def after_event(place: str) -> Place:
    """Return the boundary behind the event that a record belongs to."""
    position, ordinal = parts_of(event_of(place))
    return place_at(position, ordinal + 1)


def midway(opened: ShardPlace, final: ShardPlace, reached: Place) -> ShardPlace:
    """Return how far the shard is when a publication from `opened` to `final` is out up to `reached`."""
    if final.place > opened.place:  # all tables that do not stand behind
        behind = {table: place for table, place in final.behind.items() if place < reached}
        return replace(opened, place=reached, behind=behind)
    behind = {
        table: max(place, min(reached, final.of(table)))  # one table is brought on; of the others nothing is there
        for table, place in opened.behind.items()
    }
    return replace(opened, behind={table: place for table, place in behind.items() if place < opened.place})


@dataclass(frozen=True)
class Progress:
    """How far a shard is, to the record. Destinations keep it as text; the contract knows `at` only.

    `out`: records of the event right behind the place that are out already, by place and topic. `numbered`: which
    copied rows or dead letters come next (`numbered_id`), and how many of them are out already."""

    at: ShardPlace
    out: tuple[tuple[str, str], ...] = ()
    numbered: tuple[str, int] = ("", 0)

    def to_text(self) -> str:
        return json.dumps([self.at.to_text(), self.out, self.numbered])

    @classmethod
    def from_text(cls, text: str | bytes) -> Progress:
        """Return what `to_text` has written. ValueError for any other text."""
        try:
            at, out, (name, count) = json.loads(text)
            return cls(ShardPlace.from_text(at), tuple((place, topic) for place, topic in out), (name, count))
        except TypeError as error:
            raise ValueError(f"not the progress of a shard: {error}") from error

    def moved(self, upto: ShardPlace) -> Progress:
        """Return the progress when the place alone moves."""
        places = [upto.place, *upto.behind.values()]
        awaited = [(place, topic) for place, topic in self.out if any(at <= event_of(place) for at in places)]
        return Progress(upto, tuple(awaited), self.numbered)


def numbered_id(opened: ShardPlace, final: ShardPlace) -> str:
    """Return what a publication is whose records go by their number; empty when they are changes, which have places.

    These are copied rows and dead letters that are sent again."""
    begun: list[list[str | int]] = [["letters", opened.retried]] if final.retried != opened.retried else []
    for table, copy in sorted(final.copies.items()):
        before = opened.copies.get(table)
        pieces = before.pieces if before is not None and before.snapshot == copy.snapshot else 0
        if copy.pieces > pieces:
            begun.append([table, copy.snapshot, pieces])
    return json.dumps(begun) if begun else ""


@dataclass(frozen=True)
class Publication:
    """A publication whose records are all known: from `opened` to `final`."""

    opened: Progress
    final: ShardPlace

    @property
    def numbered(self) -> str:
        return numbered_id(self.opened.at, self.final)

    @property
    def first(self) -> int:
        """How many of its records are out already, where they go by their number."""
        name, count = self.opened.numbered
        return count if name and name == self.numbered else 0

    @property
    def end(self) -> Progress:
        """The progress when everything is out."""
        end = self.opened.moved(self.final)
        return Progress(end.at, end.out, ("", 0) if self.numbered else end.numbered)

    def after(self, record: str, count: int, out: tuple[tuple[str, str], ...] = ()) -> Progress:
        """Return the progress behind a record, the `count`th of all.

        `out`: records of its event are still to come, and these are out.
        """
        if self.numbered:
            return Progress(self.opened.at, self.opened.out, (self.numbered, count))
        boundary = event_of(record) if out else after_event(record)
        at = midway(self.opened.at, self.final, boundary)
        return Progress(at, (*self.opened.moved(at).out, *out), self.opened.numbered)


class Spool:
    """The records of one publication, in order."""

    def __init__(self) -> None:
        self._kept: list[pa.RecordBatch] = []
        self._kept_bytes = 0
        self._file: BinaryIO | None = None  # without a name: it goes with the process
        self.records = self.bytes = 0

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, records: Records) -> None:
        if not len(records):
            return
        batch = _batch(records)
        self.records += len(records)
        self.bytes += records.values.nbytes
        self._kept.append(batch)
        self._kept_bytes += batch.nbytes
        if self._kept_bytes > IN_MEMORY:
            self._write()

    def __iter__(self) -> Iterator[Records]:
        if self._file is not None:
            size = self._file.seek(0, os.SEEK_END)
            self._file.seek(0)
            while self._file.tell() < size:
                with pa.ipc.open_stream(pa.PythonFile(self._file, "rb")) as stream:
                    yield from map(_records, stream)
        yield from map(_records, self._kept)

    def pieces(self, most: int, most_bytes: int, work: Publication) -> Iterator[Records]:
        """Yield the records that are not out yet, in pieces of about `most` records and `most_bytes`.

        Records of one event stay together, unless they go by their number."""
        after = work.first
        for records in self:
            first = min(after, len(records))
            after -= first
            rest = sliced(records, first, len(records)) if first else records
            for start, stop in _cut(rest, most, most_bytes, together=not work.numbered):
                yield sliced(rest, start, stop)

    def _write(self) -> None:
        """Move what is in memory to the file. Every batch is a stream of its own: they differ in their headers."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="penstock-")  # noqa: SIM115 - closed with the spool
        for batch in self._kept:
            with pa.ipc.new_stream(pa.PythonFile(self._file, "wb"), batch.schema) as stream:
                stream.write_batch(batch)
        self._kept, self._kept_bytes = [], 0


_COLUMNS = ("places", "keys", "values", "topics", "partitions")


def _batch(records: Records) -> pa.RecordBatch:
    columns = [records.places, records.keys, records.values, records.topics, records.partitions]
    headers = [(f"header {name}", values) for name, values in records.headers]
    return pa.RecordBatch.from_arrays(
        [*columns, *(values for _, values in headers)], names=[*_COLUMNS, *(name for name, _ in headers)]
    )


def _records(batch: pa.RecordBatch) -> Records:
    headers = tuple((name.removeprefix("header "), batch.column(name)) for name in batch.schema.names[len(_COLUMNS) :])
    places, keys, values, topics, partitions = (batch.column(name) for name in _COLUMNS)
    return Records(places, keys, values, topics, partitions, headers)


def sliced(records: Records, start: int, stop: int) -> Records:
    """Return the records of start <= index < stop."""
    return _records(_batch(records).slice(start, stop - start))


def _cut(records: Records, most: int, most_bytes: int, *, together: bool) -> Iterator[tuple[int, int]]:
    """Yield where pieces begin and end. `together`: records of one event are in one piece."""
    count, start, places = len(records), 0, records.places
    while start < count:
        stop = min(start + most, count)
        while stop - start > 1 and _size(records, start, stop) > most_bytes:
            stop = start + (stop - start) // 2
        while together and stop < count and event_of(places[stop - 1].as_py()) == event_of(places[stop].as_py()):
            stop += 1
        yield start, stop
        start = stop


def _size(records: Records, start: int, stop: int) -> int:
    return int(records.values.slice(start, stop - start).nbytes)
