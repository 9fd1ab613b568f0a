"""Define the format of a segment: one Arrow IPC file, one record batch per slice, a JSON header in its metadata.

A slice holds the raw changes of one table under one schema version, in stream order. The header carries the full schema
and a checksum of every slice; the file's name carries a checksum of the header, so a name alone vouches for the whole
content. Pure bytes: log.py finds, verifies and reads files, writer.py makes them durable. Nothing here knows what
a source's messages mean.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.model.change import RAW_SCHEMA, TRUNCATE
from penstock.model.position import Position
from penstock.model.table import TableSchema

FORMAT = 3
MOST_CLEARED = 32  # tables; every header repeats them
HEADER_KEY = b"penstock.segment"
_SEGMENT = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})-([0-9a-f]{8})\.arrow")
_PART = re.compile(r"part-([0-9a-f]{16})-([0-9a-f]+)-([0-9]{6})\.arrow")


class UnknownFormat(Exception):
    """A header of another format than FORMAT."""

    def __init__(self, found: object) -> None:
        super().__init__(f"format {found}, not {FORMAT}")
        self.found = found


@dataclass(frozen=True)
class Slice:
    """Where one slice is in its file, and what can be known of it without reading it."""

    schema: str  # fingerprint
    index: int  # number of its record batch in the file
    rows: int
    bytes: int
    crc: int  # over the record batch's buffers
    first_commit: Position
    last_commit: Position
    last_commit_time: int  # µs
    moved_keys: int  # updates that may have changed their row's key
    truncates: int


@dataclass(frozen=True)
class PartRef:
    """An earlier part of a huge transaction. `slices` are its own, so that one header describes the whole segment."""

    name: str
    crc: int  # of the part's header
    slices: tuple[Slice, ...]


@dataclass(frozen=True)
class Cleared:
    """A transaction that truncated a table and wrote nothing to it afterwards, so that it left the table empty."""

    relation_id: int
    transaction: int
    commit_position: Position


@dataclass(frozen=True)
class SegmentHeader:
    """`[start, end)` of the stream. A segment with `parts` holds one transaction only; parts come first, in order.

    `schemas` has the schema of every slice, those of the parts included. In a part's own header, `start` and `end`
    are both its transaction's commit position.

    `origin` says whose stream it is, in the source's own words.
    `history` is an id that was made when the log was begun, the same in all of its segments; "" in logs that are older
    than such ids. `last_commit` is the last transaction up to `end`, in this segment or before it (position and time;
    0, 0 before the first); None in older logs, where it is unknown. `state` is what the source has to know to go on
    from `end`, in its own words. `cleared` has the last such transaction of each table up to `end`, in this segment or
    before it, oldest first, but never more than MOST_CLEARED: what is not listed is unknown.
    """

    start: Position
    end: Position
    origin: str
    schemas: dict[str, TableSchema]
    slices: tuple[Slice, ...]
    parts: tuple[PartRef, ...] = ()
    history: str = ""
    last_commit: tuple[Position, int] | None = None
    state: str = ""
    cleared: tuple[Cleared, ...] = ()

    @property
    def all_slices(self) -> tuple[Slice, ...]:
        """Return the slices of the parts and of the segment itself, in stream order."""
        return tuple(item for part in self.parts for item in part.slices) + self.slices

    @property
    def empty(self) -> bool:
        """Whether the segment only advances the position."""
        return not self.slices and not self.parts

    def to_bytes(self) -> bytes:
        raw = {
            "format": FORMAT,
            "start": self.start,
            "end": self.end,
            "origin": self.origin,
            "history": self.history,
            "last_commit": self.last_commit,
            **({"state": self.state} if self.state else {}),
            **({"cleared": [astuple(item) for item in self.cleared]} if self.cleared else {}),
            "schemas": {fingerprint: json.loads(schema.to_json()) for fingerprint, schema in self.schemas.items()},
            "slices": [asdict(item) for item in self.slices],
            "parts": [asdict(part) for part in self.parts],
        }
        return json.dumps(raw, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> SegmentHeader:
        raw: dict[str, Any] = json.loads(content)
        if raw["format"] != FORMAT:
            raise UnknownFormat(raw["format"])
        return cls(
            start=raw["start"],
            end=raw["end"],
            origin=raw["origin"],
            schemas={fingerprint: _schema(json.dumps(schema)) for fingerprint, schema in raw["schemas"].items()},
            slices=_slices(raw["slices"]),
            parts=tuple(PartRef(part["name"], part["crc"], _slices(part["slices"])) for part in raw["parts"]),
            history=raw.get("history", ""),
            last_commit=None if raw.get("last_commit") is None else (raw["last_commit"][0], raw["last_commit"][1]),
            state=raw.get("state", ""),
            cleared=tuple(Cleared(*item) for item in raw.get("cleared", ())),
        )


@lru_cache(maxsize=4096)
def _schema(text: str) -> TableSchema:
    """Read a structure; most segments name the same ones, and what is worked out from one is kept with it."""
    return TableSchema.from_json(text)


def _slices(raw: Iterable[dict[str, Any]]) -> tuple[Slice, ...]:
    return tuple(Slice(**item) for item in raw)


@dataclass(frozen=True)
class SliceRows:
    """A slice before it is written: a batch of RAW_SCHEMA, all of one schema."""

    schema: TableSchema
    batch: pa.RecordBatch
    moved_keys: int = 0


@dataclass(frozen=True)
class SegmentFile:
    """A file about to be written: its header, the header's bytes and checksum, and the batches in order."""

    header: SegmentHeader
    header_bytes: bytes
    crc: int
    batches: tuple[pa.RecordBatch, ...]

    @property
    def bytes(self) -> int:
        """About the size of the file: Arrow writes the header twice, and a little around every batch."""
        return 2 * len(self.header_bytes) + 2048 + sum(item.bytes + 768 for item in self.header.slices)

    def write_to(self, sink: Any) -> None:
        """Write an Arrow IPC file into an open Arrow stream."""
        schema = RAW_SCHEMA.with_metadata({HEADER_KEY: self.header_bytes})
        with pa.ipc.new_file(sink, schema) as writer:
            for batch in self.batches:
                writer.write_batch(batch.replace_schema_metadata(schema.metadata))


def compose(
    start: Position,
    end: Position,
    origin: str,
    rows: Sequence[SliceRows],
    parts: Sequence[PartRef] = (),
    part_schemas: dict[str, TableSchema] | None = None,
    *,
    history: str = "",
    before: tuple[Position, int] | None = None,
    state: str = "",
    cleared_before: Sequence[Cleared] = (),
) -> SegmentFile:
    """Combine slices under a header with their checksums.

    `before` is the last commit before them, `cleared_before` what the header before them says of truncated tables.
    """
    batches = tuple(_canonical(item.batch) for item in rows)
    header = SegmentHeader(
        start=start,
        end=end,
        origin=origin,
        schemas={**(part_schemas or {}), **{item.schema.fingerprint: item.schema for item in rows}},
        slices=tuple(
            _describe(index, item, batch) for index, (item, batch) in enumerate(zip(rows, batches, strict=True))
        ),
        parts=tuple(parts),
        history=history,
        state=state,
        cleared=_cleared(cleared_before, () if parts else rows),
    )
    header = replace(header, last_commit=newest_commit(header.all_slices) or before)
    content = header.to_bytes()
    return SegmentFile(header, content, zlib.crc32(content), batches)


def _cleared(before: Sequence[Cleared], rows: Sequence[SliceRows]) -> tuple[Cleared, ...]:
    """Add what these slices clear. Of a transaction in parts nothing is said: it is not all at hand."""
    last = {item.relation_id: item for item in before}
    truncated = {item.schema.relation_id for item in rows if _truncates(item.batch)}
    for relation_id in truncated:
        own = [item.batch for item in rows if item.schema.relation_id == relation_id]
        commit, ordinal, op, transaction = (
            np.concatenate([batch.column(name).to_numpy() for batch in own])
            for name in ("commit_position", "ordinal", "op", "transaction")
        )
        order = np.lexsort((ordinal, commit))
        ends = np.append(commit[order][1:] != commit[order][:-1], True)
        found = order[ends & (op[order] == TRUNCATE)]
        if len(found):
            last[relation_id] = Cleared(relation_id, int(transaction[found[-1]]), int(commit[found[-1]]))
    return tuple(sorted(last.values(), key=lambda item: item.commit_position)[-MOST_CLEARED:])


def _truncates(batch: pa.RecordBatch) -> int:
    return int(np.count_nonzero(batch.column("op").to_numpy() == TRUNCATE))


def newest_commit(slices: Iterable[Slice]) -> tuple[Position, int] | None:
    """Return position and time of the last transaction in the slices, or None."""
    return max(((item.last_commit, item.last_commit_time) for item in slices), default=None)


def _describe(index: int, item: SliceRows, batch: pa.RecordBatch) -> Slice:
    if batch.num_rows == 0:
        raise ValueError("a slice has at least one row")
    commits = batch.column("commit_position").to_numpy()
    return Slice(
        schema=item.schema.fingerprint,
        index=index,
        rows=batch.num_rows,
        bytes=sum(buffer.size for buffer in _buffers(batch)),
        crc=checksum(batch),
        first_commit=int(commits[0]),
        last_commit=int(commits[-1]),
        last_commit_time=batch.column("commit_time")[-1].value,
        moved_keys=item.moved_keys,
        truncates=_truncates(batch),
    )


def checksum(batch: pa.RecordBatch) -> int:
    """Compute the CRC-32 of the batch's buffers, without interpreting them, so damaged ones are safe."""
    crc = 0
    for buffer in _buffers(batch):
        crc = zlib.crc32(buffer, crc)
    return crc


def _buffers(batch: pa.RecordBatch) -> list[pa.Buffer]:
    return [buffer for column in batch.columns for buffer in column.buffers() if buffer is not None]


def _canonical(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with exactly the buffers that it will have when it is read back."""
    if not batch.schema.equals(RAW_SCHEMA):
        raise ValueError(f"a slice has the columns of RAW_SCHEMA, not {batch.schema}")
    arrays = []
    for column in batch.columns:
        if column.null_count:
            raise ValueError("a slice has no nulls")
        rest = column.buffers()[1:]
        offsets = rest[0]
        if column.offset or (pa.types.is_binary(column.type) and np.frombuffer(offsets, np.int32, 1)[0]):
            return pa.ipc.read_record_batch(batch.serialize(), RAW_SCHEMA)
        count = len(column)
        if pa.types.is_binary(column.type):
            used = int(np.frombuffer(offsets, np.int32, count + 1)[-1])
            rest = [offsets.slice(0, 4 * (count + 1)), rest[1].slice(0, used)]
        else:
            rest = [offsets.slice(0, column.type.byte_width * count)]
        arrays.append(pa.Array.from_buffers(column.type, count, [None, *rest], null_count=0))
    return pa.RecordBatch.from_arrays(arrays, schema=RAW_SCHEMA)


def segment_name(start: Position, end: Position, crc: int) -> str:
    return f"{start:016x}-{end:016x}-{crc:08x}.arrow"


def parse_segment_name(text: str) -> tuple[Position, Position, int] | None:
    """Start, end and the header's checksum; None when it is no segment's name."""
    match = _SEGMENT.fullmatch(text)
    return None if match is None else (int(match[1], 16), int(match[2], 16), int(match[3], 16))


def part_name(commit_position: Position, attempt: str, number: int) -> str:
    return f"part-{commit_position:016x}-{attempt}-{number:06d}.arrow"


def part_commit(text: str) -> Position | None:
    """Return the commit position of the transaction that a part belongs to; None when it is no part's name."""
    match = _PART.fullmatch(text)
    return None if match is None else int(match[1], 16)


def emptied(header: SegmentHeader, end: Position) -> SegmentHeader:
    """Return the header of the empty segment that ended at `end` and that `header`, also empty, has replaced."""
    return replace(header, end=end)
