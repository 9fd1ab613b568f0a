"""Row events of one table under one schema, as they came, and their cutting into one record for each row change.

Capture looks at lengths only. An event that cannot be cut is one record that says so: its table becomes Errored when
it is read, and the stream goes on. Compressed events are unpacked here, since rows can be told apart only then.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.mysql.reader import REFUSED, WHOLE
from penstock.decode.mysql.rows import RowLayout, Unwalkable, locate, padded
from penstock.decode.reader import Places
from penstock.model.change import RAW_SCHEMA, UPDATE
from penstock.model.table import TableSchema
from penstock.source.sink import CapturedSlice

_FORMS = pa.array([bytes([WHOLE]), bytes([REFUSED])], pa.binary())
_NOTHING = pa.scalar(b"", pa.binary())


@dataclass(frozen=True)
class _Chunk:
    """Some events: their contents behind one another, and of each its bytes, its marks and its cut."""

    content: bytes
    lengths: Places
    marks: npt.NDArray[np.uint64]
    cuts: Places


@dataclass
class RowPile:
    """Row events as they come, kept as Arrow.

    `add` takes the rows of an event, all of one operation; `add_many` those of many events; `add_record` a change
    without rows.
    """

    schema: TableSchema
    contents: list[bytes] = field(default_factory=list)
    marks: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)  # images in a row; 0: a record by itself; -1: refused
    chunks: list[_Chunk] = field(default_factory=list)  # of what came before the three lists
    size: int = 0

    def add(self, op: int, content: bytes, mark: tuple[int, int, int, int, int]) -> None:
        """`mark`: commit position, ordinal, change position, transaction, commit time."""
        self._append(op, content, mark, 2 if op == UPDATE else 1)

    def add_record(self, op: int, mark: tuple[int, int, int, int, int], refused: str = "") -> None:
        self._append(op, refused.encode(), mark, -1 if refused else 0)

    def _append(self, op: int, content: bytes, mark: tuple[int, int, int, int, int], cut: int) -> None:
        self.contents.append(content)
        self.marks.append((*mark, op))
        self.cuts.append(cut)
        self.size += len(content) + 64

    def add_many(self, content: bytes, lengths: Places, marks: npt.NDArray[np.uint64]) -> None:
        """Add many events. `marks` has a row for each, as in `add`, with the operation at its end."""
        self._close_chunk()
        self.chunks.append(_Chunk(content, lengths, marks, np.where(marks[:, 5] == UPDATE, 2, 1)))
        self.size += len(content) + 64 * len(lengths)

    def _close_chunk(self) -> None:
        if self.contents:
            lengths = np.fromiter(map(len, self.contents), np.int64, len(self.contents))
            marks, cuts = np.array(self.marks, np.uint64), np.array(self.cuts, np.int64)
            self.chunks.append(_Chunk(b"".join(self.contents), lengths, marks, cuts))
            self.contents, self.marks, self.cuts = [], [], []

    def extend(self, other: RowPile) -> None:
        if other.chunks:
            self._close_chunk()
            self.chunks += other.chunks
        self.contents += other.contents
        self.marks += other.marks
        self.cuts += other.cuts
        self.size += other.size

    def slice(self) -> CapturedSlice | None:
        """Return the rows in the order of their events; None when there is none."""
        self._close_chunk()
        if not self.chunks:
            return None
        lengths, marks, cuts = (
            np.concatenate(parts)
            for parts in zip(*((one.lengths, one.marks, one.cuts) for one in self.chunks), strict=True)
        )
        ends = np.cumsum(lengths)
        octets = padded(b"".join(one.content for one in self.chunks))
        event, start, end, refused = self._cut(octets, ends - lengths, ends, cuts)
        if not len(event):
            return None
        order = np.lexsort((start, event))
        event, start, end, refused = event[order], start[order], end[order], refused[order]
        first = np.zeros(len(event), np.int64)  # of each event, the place of its first row
        changes = np.flatnonzero(np.diff(event)) + 1
        first[changes] = changes
        number = np.arange(len(event)) - np.maximum.accumulate(first)
        columns = marks[event]
        data = _records(octets, start, end, refused)
        arrays = [pa.array(np.ascontiguousarray(columns[:, place])) for place in range(4)]
        arrays[1] = pa.array(columns[:, 1] + number.astype(np.uint64))
        arrays.append(pa.array(columns[:, 4].astype(np.int64)).view(pa.timestamp("us", "UTC")))
        arrays.append(pa.array(columns[:, 5].astype(np.uint8)))
        return CapturedSlice(self.schema, pa.RecordBatch.from_arrays([*arrays, data], schema=RAW_SCHEMA), 0)

    def _cut(
        self, octets: np.ndarray, starts: Places, ends: Places, cuts: Places
    ) -> tuple[Places, Places, Places, Places]:
        layout = RowLayout(self.schema.columns)
        found: list[tuple[Places, Places, Places, Places]] = []
        alone = np.flatnonzero(cuts <= 0)
        found.append((alone, starts[alone], ends[alone], (cuts[alone] < 0).astype(np.int64)))
        for images in (1, 2):
            events = np.flatnonzero(cuts == images)
            if len(events):
                found += _rows(layout, octets, events, starts, ends, images)
        event, start, end, refused = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return event, start, end, refused


def _rows(
    layout: RowLayout, octets: np.ndarray, events: Places, starts: Places, ends: Places, images: int
) -> list[tuple[Places, Places, Places, Places]]:
    try:
        whose, at = locate(layout, octets, starts[events], ends[events], images)
    except Unwalkable:
        if len(events) == 1:
            return [(events, starts[events], ends[events], np.ones(1, np.int64))]
        middle = len(events) // 2
        halves = (events[:middle], events[middle:])
        return [one for half in halves for one in _rows(layout, octets, half, starts, ends, images)]
    if not len(at):
        return []
    after = np.append(at[1:], 0)
    last = np.append(whose[1:] != whose[:-1], True)
    after[last] = ends[events[whose[last]]]
    return [(events[whose], at, after, np.zeros(len(at), np.int64))]


def _records(octets: np.ndarray, start: Places, end: Places, refused: Places) -> pa.Array:
    offsets = np.empty(2 * len(start) + 1, np.int32)
    offsets[0:-1:2], offsets[1::2], offsets[-1] = start, end, end[-1]
    both = pa.Array.from_buffers(pa.binary(), 2 * len(start), [None, pa.py_buffer(offsets), pa.py_buffer(octets)])
    rows = both.take(pa.array(np.arange(0, 2 * len(start), 2, dtype=np.int32)))
    forms = _FORMS.take(pa.array(refused))
    return pc.binary_join_element_wise(forms, rows, _NOTHING)
