"""Transactions between the wire and the log: rows pile up as they came, and leave as slices, one a table and schema.

Capture's hot loop appends whole XLogData frames of row changes to `frames` and nothing else; every other message comes
through a method. Frames are packed into chunks by `pack`, and taken apart only when rows are taken, for all of
them at once, with numpy. Rows before `open_row` belong to closed transactions, the rest to the open one. Every row
stands between the begin and the commit of one transaction: StreamOutOfStep when one does not, and then nothing of it
can be taken. Pure: no socket, no clock, no file.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import SourceError, StreamOutOfStep
from penstock.model.change import RAW_SCHEMA, UPDATE
from penstock.model.position import Position
from penstock.model.source_events import NONE_WANTED, WantedEvents
from penstock.model.table import TableSchema
from penstock.source.postgres.pgoutput import HEADER_BYTES, OLD_KEY, Begin
from penstock.source.postgres.source_events import MESSAGE, OWN_RELATIONS, Known, OpenCount, SourceRows, message_frame
from penstock.source.sink import CapturedSlice

Frame = bytes | memoryview
GIANT_BYTES = 4 << 20  # a frame of this size is never copied
_PREFIX = HEADER_BYTES + 6  # up to the byte after a row change's relation; no row change or truncate is shorter
_TO_THE_END = 2**31 - 1
_BUG = "Restart the pipeline; if it happens again, report it as a bug"


def out_of_step(what: str) -> StreamOutOfStep:
    return StreamOutOfStep(
        f"the server's stream is out of step: {what}",
        "Nothing of it was kept; the stream is opened again at the change log's end. If it happens again, check that "
        "nothing between here and the server alters the stream, and report it as a bug",
    )


@dataclass
class _Transaction:
    first_row: int
    first_ordinal: int
    begin: Begin
    count: OpenCount | None = None  # of what has left of it, where that is wanted
    end: Position = 0  # once it is closed


@dataclass
class _Chunk:
    data: Frame
    lengths: np.ndarray


@dataclass(frozen=True)
class _Columns:
    """Rows taken apart: one entry a row, but for `data`, which still has the frames' headers."""

    commit_position: np.ndarray
    ordinal: np.ndarray
    change_position: np.ndarray
    transaction: np.ndarray
    commit_time: np.ndarray
    op: np.ndarray
    relation: np.ndarray
    carries_old_key: np.ndarray
    data: pa.Array


class TransactionBuffer:
    def __init__(self, wanted: WantedEvents = NONE_WANTED, known: Known = lambda _: None) -> None:
        """Start empty.

        `wanted` are events of the source that are kept beside row changes; `known` says under which structure the log
        has the last change of a relation.
        """
        self._wanted, self._source_rows = wanted, SourceRows(wanted, known)
        self.frames: list[Frame] = []
        self.open: Begin | None = None
        self.closed_end: Position | None = None  # of the newest transaction that was closed since the last take
        self._chunks: list[_Chunk] = []
        self._packed_rows = 0
        self._packed_bytes = 0
        self._open_row = 0
        self._closed_rows = 0  # up to the last commit
        self._transactions: list[_Transaction] = []
        self._truncated: dict[int, int] = {}  # row → relation: a Truncate's own bytes name several
        self._schemas: dict[int, list[tuple[int, TableSchema]]] = {}  # relation → from which row on, which schema
        self._left: _Transaction | None = None  # one that has ended, and all of whose rows have left
        if wanted.messages:
            self.relation(MESSAGE)

    @property
    def rows(self) -> int:
        return self._packed_rows + len(self.frames)

    @property
    def bytes(self) -> int:
        """Of packed rows."""
        return self._packed_bytes

    @property
    def closed_rows(self) -> int:
        if self.open is not None:
            return self._open_row
        if self.rows != self._closed_rows:
            raise out_of_step("a row comes outside any transaction")
        return self.rows

    def begin(self, begin: Begin) -> None:
        if self.open is not None:
            raise out_of_step(f"transaction {begin.xid} begins within transaction {self.open.xid}")
        self._open_row = self.closed_rows
        self.open = begin
        self._transactions.append(_Transaction(self._open_row, 0, begin))

    def commit(self, end: Position) -> None:
        if self.open is None:
            raise out_of_step("a transaction ends that did not begin")
        if self._transactions:
            self._transactions[-1].end = end
            if self._transactions[-1].first_row == self.rows:  # nothing of it is left here
                last = self._transactions.pop()
                self._left = last if last.first_ordinal else self._left
        self.open, self.closed_end, self._closed_rows = None, end, self.rows

    def relation(self, schema: TableSchema) -> None:
        """Rows of that relation are under `schema` from here on."""
        versions = self._schemas.setdefault(schema.relation_id, [])
        if versions and versions[-1][1] == schema:
            return
        if versions and versions[-1][0] == self.rows:
            versions.pop()
        versions.append((self.rows, schema))

    def truncate(self, frame: Frame, relations: tuple[int, ...]) -> None:
        """Add the same message once for each of its relations, each at a place of its own."""
        if self.open is None:
            raise out_of_step("a truncate comes outside any transaction")
        for relation in relations:
            self._truncated[self.rows] = relation
            self.frames.append(frame)

    def message(self, frame: Frame) -> None:
        """Keep a logical message of the open transaction, if somebody wants it. Nothing in it is an error."""
        made = message_frame(frame, self._wanted) if self._wanted.messages and self.open is not None else None
        if made is not None:
            self.frames.append(made)

    def pack(self) -> None:
        """Free what Python keeps for every single frame."""
        if not self.frames:
            return
        if len(self.frames[-1]) >= GIANT_BYTES:
            giant = self.frames.pop()
            self._pack_frames()
            self.frames.append(giant)
            self._add(_Chunk(giant, np.array([len(giant)], np.int64)))
        else:
            self._pack_frames()
        self.frames.clear()

    def take_closed(self) -> tuple[Position, list[CapturedSlice]]:
        """Return the closed transactions and the position after them."""
        rows = self.closed_rows
        if self.closed_end is None:
            raise ValueError("no transaction was closed")
        end, self.closed_end = self.closed_end, None
        return end, self._take(rows)

    def take_open(self) -> list[CapturedSlice]:
        """Take what is there of the open transaction, when it stands here alone; giants by themselves."""
        if self.open is None or self._open_row:
            raise ValueError("an open transaction is taken alone")
        self.pack()
        last = self._chunks[-1]
        alone = len(last.lengths) == 1 and len(last.data) >= GIANT_BYTES and self.rows > 1
        return self._take(self.rows - 1 if alone else self.rows)

    def _pack_frames(self) -> None:
        if not self.frames:
            return
        lengths = np.fromiter(map(len, self.frames), np.int64, len(self.frames))
        self._add(_Chunk(b"".join(self.frames), lengths))

    def _add(self, chunk: _Chunk) -> None:
        self._chunks.append(chunk)
        self._packed_rows += len(chunk.lengths)
        self._packed_bytes += len(chunk.data)

    def _take(self, rows: int) -> list[CapturedSlice]:
        """Return the first `rows` rows as slices, in the order of their first rows; the rest stays."""
        self.pack()
        chunks = self._cut(rows)
        slices: list[tuple[int, CapturedSlice]] = []
        if rows:
            columns = self._take_apart(chunks, rows)
            del chunks
            for relation, indices in _by_value(columns.relation):
                slices.extend(self._slices(columns, int(relation), indices))
            if self._wanted.transactions:
                self._count(columns, rows)
        ordered = [item for _, item in sorted(slices, key=lambda item: item[0])]
        if self._wanted:
            ordered = self._with_source_rows(ordered)
        self._move_on(rows)
        return ordered

    def _count(self, columns: _Columns, rows: int) -> None:
        """Count the changes of each transaction among the first `rows` rows by table."""
        leaving = [one for one in self._transactions if one.first_row < rows]
        names = {number: versions[-1][1].table for number, versions in self._schemas.items()}
        for one, until in zip(leaving, [*(other.first_row for other in leaving[1:]), rows], strict=True):
            if one.count is None:
                one.count = OpenCount(one.begin, int(columns.change_position[one.first_row]))
                self._source_rows.begins(one.count)
            numbers, counts = np.unique(columns.relation[one.first_row : until], return_counts=True)
            for number, changes in zip(numbers.tolist(), counts.tolist(), strict=True):
                if number not in OWN_RELATIONS:
                    one.count.tables[names[number]] = one.count.tables.get(names[number], 0) + changes
            if one.end:
                self._source_rows.commits(one.count, one.end)

    def _with_source_rows(self, slices: list[CapturedSlice]) -> list[CapturedSlice]:
        """Put events of the source before the changes that they stand before."""
        left, self._left = self._left, None
        if left is not None and left.count is not None:
            self._source_rows.commits(left.count, left.end)
        for one in slices:
            self._source_rows.structure(one)
        return [*self._source_rows.take(), *slices]

    def _cut(self, rows: int) -> list[_Chunk]:
        """Remove the chunks of the first `rows` rows, and split the one they end in."""
        taken: list[_Chunk] = []
        missing = rows
        while missing:
            chunk = self._chunks.pop(0)
            if len(chunk.lengths) > missing:
                at = int(chunk.lengths[:missing].sum())
                view = memoryview(chunk.data)
                self._chunks.insert(0, _Chunk(view[at:], chunk.lengths[missing:]))
                chunk = _Chunk(view[:at], chunk.lengths[:missing])
            taken.append(chunk)
            missing -= len(chunk.lengths)
        self._packed_rows -= rows
        self._packed_bytes -= sum(len(chunk.data) for chunk in taken)
        return taken

    def _take_apart(self, chunks: list[_Chunk], rows: int) -> _Columns:
        lengths = np.concatenate([chunk.lengths for chunk in chunks])
        data = chunks[0].data if len(chunks) == 1 else b"".join(chunk.data for chunk in chunks)
        chunks.clear()
        if lengths.min() < _PREFIX:
            raise SourceError("the server sent a row change that is too short to be one", _BUG)
        offsets = np.zeros(rows + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), _PREFIX)
        prefix = windows[offsets[:-1]]
        transactions = [transaction for transaction in self._transactions if transaction.first_row < rows]
        firsts = np.array([transaction.first_row for transaction in transactions], np.int64)
        counts = np.diff(np.append(firsts, rows))
        places = np.arange(rows, dtype=np.int64)
        shift = np.array([transaction.first_ordinal for transaction in transactions], np.int64) - firsts
        relation = _big_endian(prefix[:, HEADER_BYTES + 1 : HEADER_BYTES + 5], ">u4").astype(np.uint32)
        for row, truncated in self._truncated.items():
            if row < rows:
                relation[row] = truncated
        begins = [transaction.begin for transaction in transactions]
        return _Columns(
            commit_position=np.repeat(np.array([begin.commit_lsn for begin in begins], np.uint64), counts),
            ordinal=(places + np.repeat(shift, counts)).astype(np.uint64),
            change_position=_big_endian(prefix[:, 1:9], ">u8").astype(np.uint64),
            transaction=np.repeat(np.array([begin.xid for begin in begins], np.uint64), counts),
            commit_time=np.repeat(np.array([begin.commit_time for begin in begins], np.int64), counts),
            op=np.ascontiguousarray(prefix[:, HEADER_BYTES]),
            relation=relation,
            carries_old_key=(prefix[:, HEADER_BYTES] == UPDATE) & (prefix[:, HEADER_BYTES + 5] == OLD_KEY),
            data=pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)]),
        )

    def _slices(self, columns: _Columns, relation: int, indices: np.ndarray) -> list[tuple[int, CapturedSlice]]:
        versions = self._schemas.get(relation)
        if not versions or versions[0][0] > indices[0]:
            raise SourceError(
                f"the server sent a change of relation {relation} before it described that relation",
                _BUG,
            )
        bounds = np.searchsorted(indices, [row for row, _ in versions[1:]])
        pieces = np.split(indices, bounds)
        return [
            (int(piece[0]), _slice(columns, schema, piece))
            for (_, schema), piece in zip(versions, pieces, strict=True)
            if len(piece)
        ]

    def _move_on(self, rows: int) -> None:
        """Count rows again after the first `rows` have left."""
        kept = [transaction for transaction in self._transactions if transaction.first_row >= rows]
        if self.open is not None and self._open_row < rows:
            last = self._transactions[-1]
            kept = [_Transaction(rows, last.first_ordinal + rows - last.first_row, last.begin, last.count)]
        for transaction in kept:
            transaction.first_row -= rows
        self._transactions = kept
        self._open_row = max(0, self._open_row - rows)
        self._closed_rows = max(0, self._closed_rows - rows)
        self._truncated = {row - rows: relation for row, relation in self._truncated.items() if row >= rows}
        for relation, versions in self._schemas.items():
            if len(versions) == 1 and versions[0][0] == 0:
                continue
            current = [item for item in versions if item[0] <= rows][-1:]
            later = [(row - rows, schema) for row, schema in versions if row > rows]
            self._schemas[relation] = [(0, schema) for _, schema in current] + later


def _slice(columns: _Columns, schema: TableSchema, indices: np.ndarray) -> CapturedSlice:
    everything = len(indices) == len(columns.data)

    def of(values: np.ndarray) -> np.ndarray:
        return values if everything else values[indices]

    data = columns.data if everything else columns.data.take(pa.array(indices))
    arrays = [
        pa.array(of(columns.commit_position)),
        pa.array(of(columns.ordinal)),
        pa.array(of(columns.change_position)),
        pa.array(of(columns.transaction)),
        pa.array(of(columns.commit_time)).view(pa.timestamp("us", "UTC")),
        pa.array(of(columns.op)),
        _without_headers(data),
    ]
    moved_keys = int(np.count_nonzero(of(columns.carries_old_key))) if schema.identity == "key" else 0
    return CapturedSlice(schema, pa.RecordBatch.from_arrays(arrays, schema=RAW_SCHEMA), moved_keys)


def _without_headers(frames: pa.Array) -> pa.Array:
    if len(frames) > 1:
        return pc.binary_slice(frames, HEADER_BYTES, _TO_THE_END)
    _, offsets, data = frames.buffers()
    first, last = np.frombuffer(offsets, np.int32, 2, frames.offset * 4)
    only = data.slice(int(first) + HEADER_BYTES, int(last) - int(first) - HEADER_BYTES)
    return pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(np.array([0, only.size], np.int32)), only])


def _big_endian(digits: np.ndarray, number: str) -> np.ndarray:
    return np.ascontiguousarray(digits).view(number).ravel()


def _by_value(values: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Return every value with the places where it stands, in order."""
    if (values == values[0]).all():
        return [(int(values[0]), np.arange(len(values)))]
    distinct, codes = np.unique(values, return_inverse=True)
    small = codes.astype(np.uint16) if len(distinct) < 2**16 else codes
    order = np.argsort(small, kind="stable")
    bounds = np.cumsum(np.bincount(codes, minlength=len(distinct)))[:-1]
    return [(int(value), places) for value, places in zip(distinct, np.split(order, bounds), strict=True)]
