"""The writer of one shard of a stream of files.

    {shard}/{from}-{to}.jsonl       what readers read; appears whole
    {shard}/_places/…               the shard's place (see `places/chain.py`)
    {shard}/_writing/…              files that are being written, and parts of one that is not large or old enough yet

A publication is committed by adding the next place record, which fails if somebody else has added one. The record names
the file that belongs to it and the name that the file gets, so a publication that was interrupted between the two steps
is completed by whoever opens the shard next.

With `roll`, publications are gathered: each is a part, durable and in the place record, but not shown. When the parts
are large or old enough they are joined into one file, in the same way.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from penstock.destinations.files.encoding import Encoding, encoding_of
from penstock.destinations.files.names import Range
from penstock.destinations.places.chain import Chain, chain_in
from penstock.destinations.places.folder import Folder
from penstock.destinations.stream_contract import Published, Records, ShardPlace
from penstock.errors import Overtaken
from penstock.failpoints import reach
from penstock.model.place import Place

PLACES, WRITING = "_places", "_writing"
PLAIN = Encoding()


@dataclass(frozen=True)
class Roll:
    """When parts are joined into a file that readers see: at this many bytes, or when the oldest is this old."""

    bytes: int
    age: float  # seconds


@dataclass(frozen=True)
class PlaceRecord:
    """`ends` is where the newest file ends: the place moves on without a file where there is nothing to publish.

    `parts` are publications that readers do not see yet, `bytes` their sizes together, and `since` (seconds since 1970)
    is when the first of them was written."""

    number: int
    at: ShardPlace
    ends: Place
    written: str = ""  # name of the file in `_writing`
    name: str = ""  # under which readers find it
    parts: tuple[str, ...] = ()
    bytes: int = 0
    since: float = 0.0

    def to_record(self) -> dict[str, Any]:
        own: dict[str, Any] = {"number": self.number, "ends": self.ends, "written": self.written, "name": self.name}
        if self.parts:
            own |= {"parts": self.parts, "bytes": self.bytes, "since": self.since}
        return {**own, **json.loads(self.at.to_text())}

    @classmethod
    def from_record(cls, own: dict[str, Any]) -> PlaceRecord:
        at = ShardPlace.from_text(json.dumps(own))
        parts = (tuple(own.get("parts", ())), own.get("bytes", 0), own.get("since", 0.0))
        return cls(own["number"], at, own["ends"], own["written"], own["name"], *parts)


@dataclass
class FilePublisher:
    """`start` is the place of a shard that has no record yet."""

    folder: Folder
    start: Place
    encoding: Encoding = PLAIN
    roll: Roll | None = None
    _record: PlaceRecord | None = None
    _chain: Chain | None = None

    def open(self) -> ShardPlace:
        self._writing.make()
        self._chain = chain_in(self.folder.under(PLACES))
        self._record = _newest(self._chain.open(), self.start)
        self._complete(self._record)
        return self._record.at

    def publish(self, records: Iterable[Records], upto: Callable[[], ShardPlace]) -> Published:
        before = self._opened
        part = f"{uuid.uuid4().hex}{self.encoding.ending}"
        try:
            with self._writing.writing(part) as sink:
                count = self.encoding.write(sink, records)
                size = int(sink.tell())
            at = upto()
            if not count:
                self._writing.delete(part)
                self.advance(at)
                return Published(0, 0)
        except BaseException:
            self._writing.delete(part)
            raise
        reach("publish.file_written")
        try:
            self._add(before, at, part, size)
        except Overtaken:
            self._writing.delete(part)
            raise
        return Published(count, size)

    def advance(self, upto: ShardPlace) -> None:
        before = self._opened
        if self._is_due(before.bytes, before.since):
            self._show(before, upto, before.parts)
        else:
            self._commit(replace(before, number=before.number + 1, at=upto, written="", name=""))

    @property
    def _writing(self) -> Folder:
        return self.folder.under(WRITING)

    @property
    def _opened(self) -> PlaceRecord:
        if self._record is None:
            raise ValueError("the shard is not open")
        return self._record

    def _add(self, before: PlaceRecord, at: ShardPlace, part: str, size: int) -> None:
        """Commit a part: shown at once, with those before it, or later with others."""
        if before.parts and not before.parts[0].endswith(self.encoding.ending):
            before = self._show(before, before.at, before.parts)  # the file's `format` or `compression` was changed
        parts, total, since = (*before.parts, part), before.bytes + size, before.since or time.time()
        if self.roll is None or self._is_due(total, since):
            self._show(before, at, parts)
            return
        self._commit(PlaceRecord(before.number + 1, at, before.ends, parts=parts, bytes=total, since=since))
        reach("publish.committed")

    def _is_due(self, size: int, since: float) -> bool:
        """Whether parts are to be shown; without a roll, as soon as there are any."""
        if not since:
            return False
        return self.roll is None or size >= self.roll.bytes or time.time() - since >= self.roll.age

    def _show(self, before: PlaceRecord, at: ShardPlace, parts: tuple[str, ...]) -> PlaceRecord:
        """Commit a file that readers see, made of the parts."""
        written, ending = parts[0], encoding_of(parts[0]).ending
        if len(parts) > 1:
            written = f"{uuid.uuid4().hex}{ending}"
            with self._writing.writing(written) as sink:
                joined = self.encoding if self.encoding.ending == ending else encoding_of(written)
                joined.join(self._writing, parts, sink)
        number = before.number + 1
        moved = at.place != before.ends
        name = Range(before.ends, at.place, 0, ending) if moved else Range(before.ends, before.ends, number, ending)
        record = PlaceRecord(number, at, name.end, written, name.text)
        try:
            self._commit(record)
        except Overtaken:
            if len(parts) > 1:
                self._writing.delete(written)
            raise
        reach("publish.committed")
        self._complete(record)
        reach("publish.visible")
        for part in parts:
            if part != written:
                self._writing.delete(part)
        return record

    def _commit(self, record: PlaceRecord) -> None:
        if self._chain is None:
            raise ValueError("the shard is not open")
        self._chain.append(record.to_record())
        self._record = record

    def _complete(self, record: PlaceRecord) -> None:
        """Give the record's file its name.

        Where there is no such file it has its name already, or had it: a reader may remove files when it is done with
        them.
        """
        if record.written:
            self._writing.move(record.written, self.folder, record.name)


def newest(folder: Folder, start: Place) -> PlaceRecord:
    """Return the shard's place record; of a shard that has none, one that says where it starts."""
    return _newest(chain_in(folder.under(PLACES)).newest(), start)


def _newest(record: dict[str, Any] | None, start: Place) -> PlaceRecord:
    return PlaceRecord(0, ShardPlace(start), start) if record is None else PlaceRecord.from_record(record)
