"""The change log as its readers see it: a folder of sealed segments, each starting where its predecessor ends.

A listing alone recovers it; a hole is LogDamaged with the missing range, and what does not match its checksum is
LogDamaged by name. Segments are immutable, so any number of processes may read while capture writes (writer.py). A
ChangeLog pickles as its URI. Segments are read one slice at a time; local ones are mapped, not loaded.

The chain: of segments with the same start the one with the largest end counts, since an idle position replaces its
predecessor by writing a longer empty segment first; those inside another's range are leftovers. `segments(after)` may
therefore begin with a segment that starts before `after`.
"""

from __future__ import annotations

import time
import zlib
from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from penstock.changelog import retention
from penstock.changelog.segment import (
    HEADER_KEY,
    SegmentHeader,
    Slice,
    checksum,
    emptied,
    parse_segment_name,
    part_commit,
)
from penstock.errors import LogDamaged, LogUnreachable
from penstock.model.change import RAW_SCHEMA, RawChanges
from penstock.model.position import Position, position_text
from penstock.model.table import TableSchema

TEMPORARY = ".tmp"
HEADERS_KEPT = 4096
LISTINGS = 3  # a listing is no snapshot of a folder that changes, so a hole is believed when it is seen this often


@dataclass(frozen=True, order=True)
class SegmentName:
    """A segment as a listing shows it. `size` and `written_at` (seconds since 1970) are the file's."""

    start: Position
    end: Position
    crc: int
    text: str
    size: int = field(compare=False)
    written_at: float = field(compare=False)


@dataclass(frozen=True)
class TableSlice:
    """A slice with the schema it is under."""

    table_schema: TableSchema
    slice: Slice


@dataclass(frozen=True)
class Usage:
    """Figures for people. `bytes` is of everything in the folder."""

    bytes: int
    segments: int
    start: Position | None
    end: Position | None


class ChangeLog:
    """`uri` is a local path or anything that `pyarrow.fs` knows."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.filesystem, self.folder = _resolve(uri)
        self._headers: OrderedDict[str, SegmentHeader] = OrderedDict()

    def __reduce__(self) -> tuple[type[ChangeLog], tuple[str]]:
        return ChangeLog, (self.uri,)

    @property
    def local(self) -> bool:
        return bool(self.filesystem.type_name == "local")

    def segments(self, after: Position | None = None) -> list[SegmentName]:
        """The chain in order; with `after`, what holds or follows that position. LogDamaged when there is a hole."""
        chain, _ = self._chain_and_leftovers()
        return chain if after is None else [name for name in chain if name.end > after]

    def start(self) -> Position | None:
        chain = self.segments()
        return chain[0].start if chain else None

    def end(self) -> Position | None:
        chain = self.segments()
        return chain[-1].end if chain else None

    def header(self, name: SegmentName | str) -> SegmentHeader:
        """Verified against the checksum in the name. An empty segment that was replaced meanwhile reads as before."""
        text = name if isinstance(name, str) else name.text
        known = self._headers.get(text)
        if known is not None:
            return known
        start, end, crc = _parsed(text)
        try:
            with self._opened(text) as reader:
                header = self._verified_header(text, reader, crc)
        except FileNotFoundError:
            header = self._replaced(text, start, end)
        if (header.start, header.end) != (start, end):
            raise self._damaged(text, "its header names another range")
        self._headers[text] = header
        if len(self._headers) > HEADERS_KEPT:
            self._headers.popitem(last=False)
        return header

    def slices(self, name: SegmentName | str) -> list[TableSlice]:
        """What is in a segment, parts included, in stream order."""
        header = self.header(name)
        return [TableSlice(header.schemas[item.schema], item) for item in header.all_slices]

    def read(self, name: SegmentName | str, fingerprints: Collection[str] | None = None) -> Iterator[RawChanges]:
        """The slices of those schemas (None: all), one at a time, in stream order, parts first; each verified."""
        text = name if isinstance(name, str) else name.text
        header = self.header(name)
        if header.empty:
            return
        for part in header.parts:
            yield from self._read_file(part.name, part.crc, part.slices, header.schemas, fingerprints)
        _, _, crc = _parsed(text)
        yield from self._read_file(text, crc, header.slices, header.schemas, fingerprints)

    def remove(self, name: SegmentName | str) -> None:
        """The segment, then its parts: what is left of a removal that is cut short is garbage, never a half segment."""
        text = name if isinstance(name, str) else name.text
        try:
            parts = self.header(name).parts
        except LogDamaged:
            parts = ()  # nobody reads it any more; parts that it listed are garbage from here on
        self.delete(text)
        for part in parts:
            self.delete(part.name)
        self._headers.pop(text, None)

    def removable(
        self, *, needed_from: Position, held_from: Position, replay: float, max_bytes: int, max_age: float
    ) -> list[SegmentName]:
        """The segments that may go, oldest first; see retention.py.

        Leftovers inside their ranges come first: one that outlives its segment would be followed by a hole.
        """
        chain, leftovers = self._chain_and_leftovers()
        part_bytes = self._part_bytes(chain)
        sized = [_with_parts(name, part_bytes.get(name.text, 0)) for name in chain]
        count = retention.removable(
            sized,
            needed_from=needed_from,
            held_from=held_from,
            replay=replay,
            max_bytes=max_bytes,
            max_age=max_age,
            now=time.time(),
        )
        going = chain[:count]
        return [name for name in leftovers if going and name.end <= going[-1].end] + going

    def bytes(self) -> int:
        """Of everything in the folder."""
        return sum(info.size or 0 for info in self._listing())

    def usage(self) -> Usage:
        chain = self.segments()
        return Usage(self.bytes(), len(chain), chain[0].start if chain else None, chain[-1].end if chain else None)

    def remove_garbage(self) -> list[str]:
        """Removes unfinished files, leftovers and parts that no segment lists. For the one writer only."""
        chain = self.segments()
        kept = {name.text for name in chain}
        garbage = []
        for info in self._listing():
            text = info.base_name
            commit = part_commit(text)
            if commit is not None:
                owner = next((name for name in chain if name.start <= commit < name.end), None)
                listed = owner is not None and text in {part.name for part in self.header(owner).parts}
            else:
                listed = not (text.endswith(TEMPORARY) or (parse_segment_name(text) is not None and text not in kept))
            if not listed:
                self.delete(text)
                garbage.append(text)
        return garbage

    def path(self, text: str) -> str:
        return f"{self.folder}/{text}"

    def delete(self, text: str) -> None:
        """One file; nothing happens when it is gone already."""
        with self._store_errors("removing from"):
            try:
                self.filesystem.delete_file(self.path(text))
            except FileNotFoundError:
                return

    def _chain_and_leftovers(self) -> tuple[list[SegmentName], list[SegmentName]]:
        for attempt in range(LISTINGS):
            names = [name for name in map(_segment, self._listing()) if name is not None]
            chain, trouble = _chain(names)
            if trouble is None:
                counted = set(chain)
                return chain, sorted(name for name in names if name not in counted)
            if attempt + 1 < LISTINGS:
                time.sleep(0.01)
        raise LogDamaged(f"the change log {self.uri}: {trouble}", _WAY_OUT)

    def _listing(self) -> list[fs.FileInfo]:
        everything = fs.FileSelector(self.folder, allow_not_found=True)
        with self._store_errors("listing"):
            try:
                found = self.filesystem.get_file_info(everything)
            except FileNotFoundError:  # the folder was made while Arrow looked
                found = self.filesystem.get_file_info(everything)
        return [info for info in found if info.type == fs.FileType.File]

    def _part_bytes(self, chain: list[SegmentName]) -> dict[str, int]:
        parts = [(commit, info.size or 0) for info in self._listing() if (commit := part_commit(info.base_name))]
        sizes: dict[str, int] = {}
        for name in chain if parts else ():
            sizes[name.text] = sum(size for commit, size in parts if name.start <= commit < name.end)
        return sizes

    def _read_file(
        self,
        text: str,
        crc: int,
        slices: tuple[Slice, ...],
        schemas: dict[str, TableSchema],
        fingerprints: Collection[str] | None,
    ) -> Iterator[RawChanges]:
        wanted = [item for item in slices if fingerprints is None or item.schema in fingerprints]
        if not wanted:
            return
        try:
            with self._opened(text) as reader:
                self._verified_header(text, reader, crc)
                for item in wanted:
                    yield RawChanges(schemas[item.schema], self._verified_batch(text, reader, item))
        except FileNotFoundError:
            raise self._damaged(text, "it is missing") from None

    @contextmanager
    def _opened(self, text: str) -> Iterator[Any]:
        """A reader of the file. FileNotFoundError when it is missing, LogDamaged when it is no whole Arrow file."""
        with self._store_errors("reading"):
            file = pa.memory_map(self.path(text)) if self.local else self.filesystem.open_input_file(self.path(text))
        with file:
            with self._content_errors(text):
                reader = pa.ipc.open_file(file)
            yield reader

    def _verified_header(self, text: str, reader: Any, crc: int) -> SegmentHeader:
        with self._content_errors(text):
            content = (reader.schema.metadata or {}).get(HEADER_KEY, b"")
            if zlib.crc32(content) != crc:
                raise self._damaged(text, "the checksum of its header does not hold")
            header = SegmentHeader.from_bytes(content)
            if not reader.schema.equals(RAW_SCHEMA) or reader.num_record_batches != len(header.slices):
                raise self._damaged(text, "its footer does not fit its header")
        return header

    def _verified_batch(self, text: str, reader: Any, item: Slice) -> pa.RecordBatch:
        with self._content_errors(text):
            batch = reader.get_batch(item.index)
            whole = batch.num_rows == item.rows and all(column.null_count == 0 for column in batch.columns)
            if not whole or checksum(batch) != item.crc:
                raise self._damaged(text, f"the checksum of slice {item.index} does not hold")
            batch.validate()
        return batch.replace_schema_metadata(None)

    def _replaced(self, text: str, start: Position, end: Position) -> SegmentHeader:
        """What a missing segment said, when it was an empty one and a longer empty one has taken its place."""
        for name in self.segments():
            if name.start == start and name.end > end:
                later = self.header(name)
                if later.empty:
                    return emptied(later, end)
        raise self._damaged(text, "it is missing")

    def _damaged(self, text: str, why: str) -> LogDamaged:
        parsed = parse_segment_name(text)
        span = f" ({position_text(parsed[0])} to {position_text(parsed[1])})" if parsed else ""
        return LogDamaged(f"the change log {self.uri}: segment {text}{span} is damaged: {why}", _WAY_OUT)

    @contextmanager
    def _content_errors(self, text: str) -> Iterator[None]:
        """What Arrow or JSON say of bytes that make no sense."""
        try:
            yield
        except (ValueError, KeyError, TypeError, IndexError, MemoryError, pa.ArrowException) as error:
            raise self._damaged(text, f"it cannot be read ({_first_line(error)})") from error
        except OSError as error:
            if error.errno is not None or not self.local:
                raise self._unreachable("reading", error) from error
            raise self._damaged(text, f"it cannot be read ({_first_line(error)})") from error

    @contextmanager
    def _store_errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except pa.ArrowInvalid as error:  # an empty file cannot be mapped
            raise LogDamaged(f"{doing} the change log {self.uri}: {_first_line(error)}", _WAY_OUT) from error
        except OSError as error:
            raise self._unreachable(doing, error) from error

    def _unreachable(self, doing: str, error: OSError) -> LogUnreachable:
        return LogUnreachable(
            f"{doing} the change log {self.uri} failed: {_first_line(error)}",
            "Check log.uri and that its store can be reached and read",
        )


_WAY_OUT = (
    "Put the missing or damaged files back from a copy of the log; without one, drop the tables at the destination, "
    "remove the log and run again: they start anew"
)


def _chain(names: list[SegmentName]) -> tuple[list[SegmentName], str | None]:
    """The chain, and what is wrong with it if anything is."""
    chain: list[SegmentName] = []
    for name in sorted(names, key=lambda name: (name.start, -name.end, name.text)):
        if not chain or name.start == chain[-1].end:
            chain.append(name)
        elif name.start > chain[-1].end:
            return chain, (
                f"{position_text(chain[-1].end)} to {position_text(name.start)} is missing, "
                f"between {chain[-1].text} and {name.text}"
            )
        elif name.end > chain[-1].end:
            return chain, f"{name.text} overlaps {chain[-1].text}: two captures have written to it"
    return chain, None


def _parsed(text: str) -> tuple[Position, Position, int]:
    parsed = parse_segment_name(text)
    if parsed is None:
        raise LogDamaged(f"{text} is not the name of a segment", _WAY_OUT)
    return parsed


def _segment(info: fs.FileInfo) -> SegmentName | None:
    parsed = parse_segment_name(info.base_name)
    if parsed is None:
        return None
    written_at = info.mtime_ns / 1e9 if info.mtime_ns is not None else time.time()
    return SegmentName(*parsed, info.base_name, info.size or 0, written_at)


def _with_parts(name: SegmentName, part_bytes: int) -> SegmentName:
    return SegmentName(name.start, name.end, name.crc, name.text, name.size + part_bytes, name.written_at)


def _resolve(uri: str) -> tuple[fs.FileSystem, str]:
    if "://" not in uri:
        return fs.LocalFileSystem(), str(Path(uri).absolute())
    try:
        filesystem, folder = fs.FileSystem.from_uri(uri)
    except (pa.ArrowInvalid, OSError) as error:
        raise LogUnreachable(
            f"log.uri {uri}: {_first_line(error)}", "Use a path, file://, s3://, gs://, abfs:// or hdfs://"
        ) from error
    return filesystem, folder.rstrip("/")


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
