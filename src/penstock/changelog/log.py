"""Read the change log: a folder of sealed segments, each starting where its predecessor ends.

A listing alone recovers it; a hole is LogDamaged with the missing range, and what does not match its checksum is
LogDamaged by name. Segments are immutable, so any number of processes may read while capture writes (writer.py). A
ChangeLog pickles as its URI. Segments are read one slice at a time; local ones are mapped, not loaded.

Which segments count is decided by their names (chain.py). `segments(after)` may begin with a segment that starts before
`after`.
"""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from penstock.changelog import retention
from penstock.changelog.chain import WAY_OUT, SegmentName, chain_of, first_that_may_hold, in_order, is_segment, parsed
from penstock.changelog.segment import (
    FORMAT,
    HEADER_KEY,
    SegmentHeader,
    Slice,
    UnknownFormat,
    checksum,
    emptied,
    parse_segment_name,
    part_commit,
)
from penstock.errors import LogDamaged, LogFormatUnknown, LogUnreachable
from penstock.model.change import RAW_SCHEMA, RawChanges
from penstock.model.location import in_one_request
from penstock.model.position import Position, position_text
from penstock.model.table import TableSchema

Bytes = bytes  # ChangeLog has a method of that name

TEMPORARY = ".tmp"
HEADER_BYTES_KEPT = 8 << 20  # as they are written; as objects they take several times as much
HEADER_BYTES_IN_TASKS = 1 << 20  # a task needs those of its own batch: a worker that kept more would grow for hours
MOST_SHARED = 16  # logs, of a process that works for many
END_NAMES = 64  # the longest of the last few names tells the end, whatever leftovers there are
LISTINGS = 3  # a listing is no snapshot of a folder that changes, so a hole is believed when it is seen this often
VANISHING_SECONDS = 30.0  # files that go between listing and looking say nothing: retention may remove many in a row


@dataclass(frozen=True)
class TableSlice:
    """A slice with the schema it is under."""

    table_schema: TableSchema
    slice: Slice


class ChangeLog:
    """`uri` is a local path or anything that `pyarrow.fs` knows."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.filesystem, self.folder = _resolve(uri)
        self._headers: OrderedDict[str, tuple[SegmentHeader, int]] = OrderedDict()  # with their sizes
        self._header_bytes = 0
        self._most_header_bytes = HEADER_BYTES_KEPT
        self._keeping = threading.Lock()
        self._in_tasks = False
        self._last_read = threading.local()

    def __reduce__(self) -> tuple[Callable[[str], ChangeLog], tuple[str]]:
        return _shared, (self.uri,)  # tasks of one process read the same headers again and again

    @property
    def local(self) -> bool:
        return bool(self.filesystem.type_name == "local")

    def segments(self, after: Position | None = None) -> list[SegmentName]:
        """Return the chain in order; with `after`, from that position on. LogDamaged if there is a hole."""
        chain, _ = self._chain_and_leftovers(after)
        return chain

    def start(self) -> Position | None:
        return next((parsed(text)[0] for text in in_order(self._found()) if is_segment(text)), None)

    def end(self) -> Position | None:
        last = filter(is_segment, in_order(self._found())[-END_NAMES:])
        return max((parsed(text)[1] for text in last), default=None)

    def history(self) -> str | None:
        """Return the id that was made when the log was begun: positions of another log mean nothing in this one.

        None while the log is empty, "" if it is older than such ids.
        """
        newest = self.newest()
        return None if newest is None else newest.history

    def newest(self) -> SegmentHeader | None:
        """Read the newest segment's header; None while the log is empty."""
        chain = self.segments()
        return self.header(chain[-1]) if chain else None

    def header(self, name: SegmentName | str) -> SegmentHeader:
        """Read a header and verify it against the checksum in the name. A replaced empty segment reads as before."""
        text = name if isinstance(name, str) else name.text
        known = self._headers.get(text)
        if known is not None:
            return known[0]
        start, end, crc = parsed(text)
        try:
            with self._opened(text) as reader:
                header, size = self._verified_header(text, reader, crc)
        except FileNotFoundError:
            header, size = self._replaced(text, start, end), 0
        if (header.start, header.end) != (start, end):
            raise self._damaged(text, "its header names another range")
        self._keep(text, header, size)
        return header

    def slices(self, name: SegmentName | str) -> list[TableSlice]:
        """List a segment's slices, parts included, in stream order."""
        header = self.header(name)
        return [TableSlice(header.schemas[item.schema], item) for item in header.all_slices]

    def read(
        self,
        name: SegmentName | str,
        fingerprints: Collection[str] | None = None,
        numbers: Collection[int] | None = None,
    ) -> Iterator[RawChanges]:
        """Yield the slices of those schemas (None: all) and places (None: all) in stream order, parts first.

        Each slice is verified before it is given.
        """
        text = name if isinstance(name, str) else name.text
        header = self.header(name)
        if header.empty:
            return
        _, _, crc = parsed(text)
        first = 0
        parts = ((part.name, part.crc, part.slices) for part in header.parts)
        for file, its_crc, slices in (*parts, (text, crc, header.slices)):
            wanted = [
                item
                for number, item in enumerate(slices, first)
                if (fingerprints is None or item.schema in fingerprints) and (numbers is None or number in numbers)
            ]
            first += len(slices)
            if wanted:
                yield from self._read_file(file, its_crc, wanted, header.schemas)

    def remove(self, name: SegmentName | str) -> None:
        """Remove the segment, then its parts: an interrupted removal leaves garbage, never half a segment."""
        text = name if isinstance(name, str) else name.text
        try:
            parts = self.header(name).parts
        except LogDamaged:
            parts = ()  # nobody reads it any more; parts that it listed are garbage from here on
        self.delete(text)
        for part in parts:
            self.delete(part.name)
        self._forget(text)

    def removable(
        self, *, needed_from: Position, held_from: Position, replay: float, max_bytes: int, max_age: float
    ) -> list[SegmentName]:
        """Return the segments that may be removed, oldest first; see retention.py.

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
        """Count the bytes of everything in the folder."""
        return sum(info.size or 0 for info in self._listing())

    def remove_garbage(self) -> list[str]:
        """Remove unfinished files, leftovers and parts that no segment lists. For the one writer only."""
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

    def remove_all(self) -> None:
        """Remove everything but the lock, newest first: what is left of a removal that is cut short is a shorter log.

        For whoever holds the lock.
        """
        for info in sorted(self._listing(), key=lambda info: info.base_name, reverse=True):
            if not info.base_name.startswith("."):
                self.delete(info.base_name)

    def path(self, text: str) -> str:
        return f"{self.folder}/{text}"

    def delete(self, text: str) -> None:
        """Delete one file, if it is still there."""
        with self._store_errors("removing from"):
            try:
                self.filesystem.delete_file(self.path(text))
            except FileNotFoundError:
                return

    def _chain_and_leftovers(self, after: Position | None = None) -> tuple[list[SegmentName], list[SegmentName]]:
        """With `after`, only what holds or follows it is looked at: the order of names is the order of the stream."""
        listings, patience = 0, time.monotonic() + VANISHING_SECONDS
        while True:
            found = self._found()
            texts = in_order(found)
            if after is not None:
                texts = texts[first_that_may_hold(after, texts) :]
            chain, leftovers, trouble = chain_of(list(filter(is_segment, texts)))
            if after is not None:
                chain = [text for text in chain if parsed(text)[1] > after]
            named = self._still_there(chain, found) if trouble is None else None
            if named is not None:
                return named, [SegmentName(*parsed(text), text, 0, 0.0) for text in leftovers]
            listings += trouble is not None
            if listings == LISTINGS or time.monotonic() > patience:
                raise LogDamaged(
                    f"the change log {self.uri}: {trouble or 'its segments vanish again and again'}", WAY_OUT
                )
            time.sleep(0.01)

    def _still_there(self, chain: list[str], found: dict[str, fs.FileInfo | None]) -> list[SegmentName] | None:
        """Return the segments of a listing, without the oldest ones that were removed since; None: list again.

        Then the last one was replaced, or all are gone.
        """
        named: list[SegmentName] = []
        for text in chain:
            try:
                named.append(self._named(text, found))
            except FileNotFoundError:
                if named:
                    return None
        return named if named or not chain else None

    def _named(self, text: str, found: dict[str, fs.FileInfo | None]) -> SegmentName:
        info = found[text]
        if info is not None:
            written_at = info.mtime_ns / 1e9 if info.mtime_ns is not None else time.time()
            return SegmentName(*parsed(text), text, info.size or 0, written_at)
        status = Path(self.path(text)).stat()
        return SegmentName(*parsed(text), text, status.st_size, status.st_mtime)

    def _found(self) -> dict[str, fs.FileInfo | None]:
        """List every name in the folder; for a local one without the files' sizes, which cost most of the work."""
        if not self.local:
            return {info.base_name: info for info in self._listing()}
        with self._store_errors("listing"):
            try:
                return dict.fromkeys(os.listdir(self.folder))  # noqa: PTH208
            except FileNotFoundError:
                return {}

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
        self, text: str, crc: int, wanted: Iterable[Slice], schemas: dict[str, TableSchema]
    ) -> Iterator[RawChanges]:
        try:
            with self._verified(text, crc) as reader:
                for item in wanted:
                    schema, batch = schemas[item.schema], self._verified_batch(text, reader, item)
                    yield RawChanges(schema, batch.slice(0, 0) if schema.altered else batch)
        except FileNotFoundError:
            raise self._damaged(text, "it is missing") from None

    @contextmanager
    def _verified(self, text: str, crc: int) -> Iterator[Any]:
        """Open a file whose header has the checksum.

        Each task of a batch reads its own table's slices of the same files, one task after the other: a local one stays
        open until the thread reads another.
        """
        known, reader = getattr(self._last_read, "file", ("", None))
        if known != text:
            with self._opened(text, stays=self._in_tasks and self.local) as reader:
                self._verify_header(text, reader, crc)
                if not (self._in_tasks and self.local):
                    yield reader
                    return
            self._last_read.file = text, reader
        yield reader

    @contextmanager
    def _opened(self, text: str, *, stays: bool = False) -> Iterator[Any]:
        """Open the file.

        FileNotFoundError if it is missing, LogDamaged if it is no complete Arrow file. One that `stays` open is closed
        with its reader.
        """
        with self._store_errors("reading"):
            file = pa.memory_map(self.path(text)) if self.local else self.filesystem.open_input_file(self.path(text))
        with nullcontext() if stays else file:
            with self._content_errors(text):
                reader = pa.ipc.open_file(file)
            yield reader

    def _verified_header(self, text: str, reader: Any, crc: int) -> tuple[SegmentHeader, int]:
        """Return the verified header with its size in bytes."""
        self._verify_header(text, reader, crc)
        with self._content_errors(text):
            content = _header_bytes(reader)
            header = self._understood(content)
            if reader.num_record_batches != len(header.slices):
                raise self._damaged(text, "its footer does not fit its header")
        return header, len(content)

    def _verify_header(self, text: str, reader: Any, crc: int) -> None:
        """Without understanding it: what has the checksum has been understood by whoever knows that."""
        with self._content_errors(text):
            if zlib.crc32(_header_bytes(reader)) != crc:
                raise self._damaged(text, "the checksum of its header does not hold")
            if not reader.schema.equals(RAW_SCHEMA):
                self._understood(_header_bytes(reader))
                raise self._damaged(text, "its footer does not fit its header")

    def _understood(self, content: Bytes) -> SegmentHeader:
        try:
            return SegmentHeader.from_bytes(content)
        except UnknownFormat as other:
            raise LogFormatUnknown(
                f"the change log {self.uri} has format {other.found}; this penstock reads and writes format {FORMAT}",
                "Use the penstock that wrote it, or start over with `penstock reset`, after which every table is "
                "copied again",
            ) from other

    def _verified_batch(self, text: str, reader: Any, item: Slice) -> pa.RecordBatch:
        with self._content_errors(text):
            batch = reader.get_batch(item.index)
            whole = batch.num_rows == item.rows and all(column.null_count == 0 for column in batch.columns)
            if not whole or checksum(batch) != item.crc:
                raise self._damaged(text, f"the checksum of slice {item.index} does not hold")
            batch.validate()
        return batch.replace_schema_metadata(None)

    def _keep(self, text: str, header: SegmentHeader, size: int) -> None:
        """Cache a header. Headers of a source with many tables are large, so the cache is bounded by bytes."""
        with self._keeping:
            self._header_bytes += size - self._headers.get(text, (None, 0))[1]
            self._headers[text] = header, size
            while self._header_bytes > self._most_header_bytes and len(self._headers) > 1:
                _, (_, gone) = self._headers.popitem(last=False)
                self._header_bytes -= gone

    def _forget(self, text: str) -> None:
        with self._keeping:
            self._header_bytes -= self._headers.pop(text, (None, 0))[1]

    def _replaced(self, text: str, start: Position, end: Position) -> SegmentHeader:
        """Return the header of a missing segment that was empty and was replaced by a longer empty one."""
        for name in self.segments():
            if name.start == start and name.end > end:
                later = self.header(name)
                if later.empty:
                    return emptied(later, end)
        raise self._damaged(text, "it is missing")

    def _damaged(self, text: str, why: str) -> LogDamaged:
        named = parse_segment_name(text)
        span = f" ({position_text(named[0])} to {position_text(named[1])})" if named else ""
        return LogDamaged(f"the change log {self.uri}: segment {text}{span} is damaged: {why}", WAY_OUT)

    @contextmanager
    def _content_errors(self, text: str) -> Iterator[None]:
        """Raise LogDamaged for what Arrow or JSON find in bytes that make no sense."""
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
            raise LogDamaged(f"{doing} the change log {self.uri}: {_first_line(error)}", WAY_OUT) from error
        except OSError as error:
            raise self._unreachable(doing, error) from error

    def _unreachable(self, doing: str, error: OSError) -> LogUnreachable:
        return LogUnreachable(
            f"{doing} the change log {self.uri} failed: {_first_line(error)}",
            "Check log.uri and that its store can be reached and read",
        )


def _with_parts(name: SegmentName, part_bytes: int) -> SegmentName:
    return SegmentName(name.start, name.end, name.crc, name.text, name.size + part_bytes, name.written_at)


def _header_bytes(reader: Any) -> bytes:
    content: bytes = (reader.schema.metadata or {}).get(HEADER_KEY, b"")
    return content


@lru_cache(maxsize=MOST_SHARED)
def _shared(uri: str) -> ChangeLog:
    """Give the log as tasks of this process have it."""
    log = ChangeLog(uri)
    log._most_header_bytes, log._in_tasks = HEADER_BYTES_IN_TASKS, True
    return log


def _resolve(uri: str) -> tuple[fs.FileSystem, str]:
    if "://" not in uri:
        return fs.LocalFileSystem(), str(Path(uri).absolute())
    try:
        filesystem, folder = fs.FileSystem.from_uri(in_one_request(uri))
    except (pa.ArrowInvalid, OSError) as error:
        raise LogUnreachable(
            f"log.uri {uri}: {_first_line(error)}", "Use a path, file://, s3://, gs://, abfs:// or hdfs://"
        ) from error
    return filesystem, folder.rstrip("/")


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
