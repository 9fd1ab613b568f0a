"""The writer of one shard of a stream of files.

    {shard}/{from}-{to}.jsonl       what readers read; appears whole, by a rename
    {shard}/_places/{number}.json   the shard's place: the highest number counts
    {shard}/_writing/…              files that are being written

A publication is committed by creating the next place record, which fails if somebody else has created it: this is the
compare-and-set of the contract. The record names the file that belongs to it and the name that the file gets, so a
publication that was interrupted between the two steps is completed by whoever opens the shard next.

Only the newest record is kept. A writer that slept while older records were removed may find its number free again; it
looks for a higher one afterwards, finds it (the newest is never removed), and withdraws.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from penstock.destinations.files.names import Range
from penstock.destinations.stream_contract import Published, Records, ShardPlace
from penstock.errors import DestinationUnreachable, Overtaken
from penstock.failpoints import reach
from penstock.model.place import Place

PLACES, WRITING = "_places", "_writing"


@dataclass(frozen=True)
class PlaceRecord:
    """`ends` is where the newest file ends: the place moves on without a file where there is nothing to publish."""

    number: int
    at: ShardPlace
    ends: Place
    written: str = ""  # name of the file in `_writing`
    name: str = ""  # under which readers find it

    def to_text(self) -> str:
        own = {"number": self.number, "ends": self.ends, "written": self.written, "name": self.name}
        return json.dumps(own | json.loads(self.at.to_text()), ensure_ascii=False)

    @classmethod
    def from_text(cls, text: str) -> PlaceRecord:
        own = json.loads(text)
        return cls(own["number"], ShardPlace.from_text(text), own["ends"], own["written"], own["name"])


@dataclass
class FilePublisher:
    """`start` is the place of a shard that has no record yet."""

    folder: Path
    start: Place
    _record: PlaceRecord | None = None

    def open(self) -> ShardPlace:
        with storing(self.folder):
            for folder in (self.folder / PLACES, self.folder / WRITING):
                folder.mkdir(parents=True, exist_ok=True)
            self._record = newest(self.folder, self.start)
            self._complete(self._record)
        return self._record.at

    def publish(self, records: Iterable[Records], upto: Callable[[], ShardPlace]) -> Published:
        before = self._opened
        written = self.folder / WRITING / f"{uuid.uuid4().hex}.jsonl"
        count = size = 0
        with storing(self.folder):
            try:
                with written.open("wb") as file:
                    for some in records:
                        count += len(some)
                        size += _write_lines(file, some)
                    file.flush()
                    os.fsync(file.fileno())
                at = upto()
                if not count:
                    written.unlink()
                    self._advance(before, at)
                    return Published(0, 0)
            except BaseException:
                written.unlink(missing_ok=True)
                raise
            reach("publish.file_written")
            number = before.number + 1
            moved = at.place != before.at.place
            name = Range(before.ends, at.place) if moved else Range(before.ends, before.ends, number)
            record = PlaceRecord(number, at, name.end, written.name, name.text)
            try:
                self._commit(record)
            except Overtaken:
                written.unlink(missing_ok=True)
                raise
            reach("publish.committed")
            self._complete(record)
            reach("publish.visible")
            self._forget_older(record)
        return Published(count, size)

    def advance(self, upto: ShardPlace) -> None:
        with storing(self.folder):
            self._advance(self._opened, upto)

    @property
    def _opened(self) -> PlaceRecord:
        if self._record is None:
            raise ValueError("the shard is not open")
        return self._record

    def _advance(self, before: PlaceRecord, upto: ShardPlace) -> None:
        record = PlaceRecord(before.number + 1, upto, before.ends)
        self._commit(record)
        self._forget_older(record)

    def _commit(self, record: PlaceRecord) -> None:
        """Create the record under its number, unless somebody has, or has gone on from there."""
        folder = self.folder / PLACES
        draft, final = folder / f".{uuid.uuid4().hex}", folder / f"{record.number:016d}.json"
        try:
            with draft.open("w", encoding="utf-8") as file:
                file.write(record.to_text())
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(draft, final)
            except FileExistsError:
                raise self._overtaken(record) from None
        finally:
            draft.unlink(missing_ok=True)
        if max(_numbers(folder)) > record.number:
            final.unlink(missing_ok=True)
            raise self._overtaken(record)
        _sync(folder)
        self._record = record

    def _overtaken(self, record: PlaceRecord) -> Overtaken:
        return Overtaken(
            f"{self.folder} was moved on from {record.number - 1} by another writer",
            "Nothing: what is not published yet is published from where the other writer ended",
        )

    def _complete(self, record: PlaceRecord) -> None:
        """Give the record's file its name. Where there is no such file it has its name already, or had it: a reader
        may remove files when it is done with them."""
        if not record.written:
            return
        try:
            (self.folder / WRITING / record.written).rename(self.folder / record.name)
        except FileNotFoundError:
            return
        _sync(self.folder)

    def _forget_older(self, record: PlaceRecord) -> None:
        folder = self.folder / PLACES
        for number in _numbers(folder):
            if number < record.number:
                (folder / f"{number:016d}.json").unlink(missing_ok=True)


def newest(folder: Path, start: Place) -> PlaceRecord:
    """Return the shard's place record; of a shard that has none, one that says where it starts."""
    places = folder / PLACES
    while True:
        number = max(_numbers(places), default=0)
        if number == 0:
            return PlaceRecord(0, ShardPlace(start), start)
        try:
            return PlaceRecord.from_text((places / f"{number:016d}.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue  # a newer one took its place


@contextmanager
def storing(folder: Path) -> Iterator[None]:
    """Turn what the file system says into an error of the destination."""
    try:
        yield
    except OSError as error:
        raise DestinationUnreachable(
            f"stream of files {folder}: {error.strerror or error}",
            "Check that the folder is there, can be written by every executor, and has space left",
        ) from error


def _numbers(places: Path) -> list[int]:
    if not places.is_dir():
        return []
    return [int(path.stem) for path in places.iterdir() if path.suffix == ".json" and path.stem.isdigit()]


def _write_lines(file: BinaryIO, records: Records) -> int:
    """Write one line per record: joined, they lie behind one another in one buffer."""
    if not len(records):
        return 0
    nothing, line_end = pa.scalar(b"", pa.binary()), pa.scalar(b"\n", pa.binary())
    lines = pc.binary_join_element_wise(records.values.cast(pa.binary()), nothing, line_end)
    size = int(pc.sum(pc.binary_length(lines)).as_py())
    file.write(memoryview(lines.buffers()[2])[:size])
    return size


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
