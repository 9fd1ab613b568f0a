"""Cells of the base that fill upserts, read in pieces: memory does not grow with what an update left unsent.

Postgres does not send a large value that an UPDATE leaves unchanged, so a small batch may need many gigabytes of the
base. Upserts are therefore filled in the order of the rows that they take cells from, so many at a time that their
cells take about `piece_bytes`; every row group is then read once, however many pieces it goes into. How many rows that
is follows from the bytes of the piece before: files do not tell, since a dictionary hides how large values are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.decode.rescue import rescued_of, whole, with_cells
from penstock.destinations.lake.columns import LakeColumn
from penstock.destinations.lake.data_files import Cursor, DataFile
from penstock.fold.net_effect import Fetch, NetEffect

PIECE_BYTES = 32 << 20
FIRST_ROWS = 256  # of the first piece
MOST_JOINED = 512 << 20  # bytes of rows whose chunks are joined

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Located:
    """Where the base has the cells of a fetch: for each, the number of its file and its row there; -1 for none."""

    fetch: Fetch
    files: Rows
    rows: Rows


@dataclass(frozen=True)
class Filled:
    """Some upserts, complete but for cells that the base lacks. `rows` are their numbers among all upserts."""

    rows: Rows
    upserts: pa.Table
    rescued: pa.Array | None


class Pace:
    """How many rows the next piece may have."""

    def __init__(self, piece_bytes: int) -> None:
        self._piece_bytes = piece_bytes
        self.rows = FIRST_ROWS

    def note(self, rows: int, size: int) -> None:
        """Note that a piece of so many rows took so many bytes."""
        fitting = rows * self._piece_bytes // max(size, 1)
        self.rows = max(1, min(fitting, 2 * self.rows))


class BaseCells:
    """The cells that the fetches of one net effect take from the base."""

    def __init__(
        self,
        located: Sequence[Located],
        *,
        open_file: Callable[[int], DataFile],
        columns: Mapping[str, LakeColumn],
        rescued: LakeColumn,
        upserts: int,
    ) -> None:
        """`open_file` opens the base's file of a number, `columns` are the table's by name."""
        self._located, self._open, self._columns, self._rescued = located, open_file, columns, rescued
        self._cursors: dict[tuple[int, int], Cursor] = {}  # by fetch and file
        self._files: dict[int, DataFile] = {}
        self.file_of, self.row_of = np.full(upserts, -1), np.full(upserts, -1)
        self._cell_of = [np.full(upserts, -1) for _ in located]
        for one, cell_of in zip(located, self._cell_of, strict=True):
            self.file_of[one.fetch.rows], self.row_of[one.fetch.rows] = one.files, one.rows
            cell_of[one.fetch.rows] = np.arange(len(one.fetch.rows))

    @property
    def rows(self) -> Rows:
        """For each cell its row of the upserts."""
        return np.concatenate([np.empty(0, np.int64), *(one.fetch.rows for one in self._located)])

    @property
    def missing(self) -> Rows:
        """For each cell that the base lacks its row of the upserts."""
        lacking = [one.fetch.rows[one.files < 0] for one in self._located]
        return np.concatenate([np.empty(0, np.int64), *lacking])

    @property
    def may_bring_rescued(self) -> bool:
        """Whether a file that cells are taken from has the column RESCUED."""
        files = np.unique(np.concatenate([np.empty(0, np.int64), *(one.files for one in self._located)]))
        return any(self._file(number).has(self._rescued) for number in files[files >= 0].tolist())

    def filled(self, upserts: pa.Table, rescued: pa.Array | None, rows: Rows) -> Filled:
        """Return these upserts, whose numbers `rows` are in the order of `file_of` and `row_of`, with their cells."""
        for number, one in enumerate(self._located):
            cell = self._cell_of[number][rows]
            there = np.flatnonzero(cell >= 0)
            there = there[one.files[cell[there]] >= 0]
            if len(there) == 0:
                continue
            column = self._columns[one.fetch.column]
            place = upserts.schema.get_field_index(column.name)
            cells, texts = self._read(number, column, one.files[cell[there]], one.rows[cell[there]])
            upserts = upserts.set_column(
                place, upserts.schema.field(place), _placed(upserts.column(place), there, cells)
            )
            of = np.array([there[at] for at in texts], np.int64)
            rescued = with_cells(rescued, len(rows), of, [column.name] * len(of), list(texts.values()))
        return Filled(rows, upserts, rescued)

    def _read(self, number: int, column: LakeColumn, files: Rows, rows: Rows) -> tuple[list[pa.Array], dict[int, str]]:
        """Return the cells, in order, in chunks; and by their number the texts of those that were rescued."""
        chunks: list[pa.Array] = []
        texts: dict[int, str] = {}
        ends = np.flatnonzero(np.diff(files, append=-1)) + 1
        for begin, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
            cursor = self._cursor(number, column, int(files[begin]))
            at = begin
            for taken in cursor.take(rows[begin:end]):
                values = taken.column(0)
                if values.null_count and taken.num_columns > 1:
                    found = rescued_of(taken.column(1), column.name).to_pylist()
                    texts |= {at + place: text for place, text in enumerate(found) if text is not None}
                chunks.append(values)
                at += len(values)
        return chunks, texts

    def _cursor(self, number: int, column: LakeColumn, file: int) -> Cursor:
        """Return one that goes on where the last piece ended. Those of files that pieces have passed are let go."""
        found = self._cursors.get((number, file))
        if found is None:
            self._cursors = {key: cursor for key, cursor in self._cursors.items() if key[0] != number}
            opened = self._file(file)
            columns = [column, self._rescued] if opened.has(self._rescued) else [column]
            found = self._cursors[number, file] = Cursor(opened, columns)
        return found

    def _file(self, number: int) -> DataFile:
        if number not in self._files:
            if len(self._files) >= len(self._located) + 1:
                self._files.pop(next(iter(self._files)))
            self._files[number] = self._open(number)
        return self._files[number]


class Picker:
    """Pick rows of a table of any size. Arrow's own `take` joins a column's chunks, and 32-bit offsets reach 2 GiB."""

    def __init__(self, table: pa.Table) -> None:
        ranges = _ranges(table)
        self._parts = [table.slice(begin, end - begin).combine_chunks() for begin, end in ranges]
        self._starts = np.array([begin for begin, _ in ranges], np.int64)

    def take(self, rows: Rows) -> pa.Table:
        if len(self._parts) == 1:
            return self._parts[0].take(pa.array(rows))
        part_of = np.searchsorted(self._starts, rows, side="right") - 1
        order = np.argsort(part_of, kind="stable")
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        taken = [part.take(pa.array(rows[part_of == n] - self._starts[n])) for n, part in enumerate(self._parts)]
        return pa.concat_tables(taken).take(pa.array(back))


def filled_pieces(net: NetEffect, cells: BaseCells, piece_bytes: int) -> Iterator[Filled]:
    """Yield all upserts, filled, a piece at a time, in the order of the rows that they take cells from."""
    upserts, order = Picker(net.upserts), np.lexsort((cells.row_of, cells.file_of))
    pace, at = Pace(piece_bytes), 0
    while at < len(order):
        rows = order[at : at + pace.rows]
        rescued = None if net.rescued is None else whole(net.rescued.take(pa.array(rows)))
        filled = cells.filled(upserts.take(rows), rescued, rows)
        yield filled
        at += len(rows)
        pace.note(len(rows), filled.upserts.nbytes)


def _ranges(table: pa.Table) -> list[tuple[int, int]]:
    """Return ranges of rows whose chunks can be joined."""
    left, found = [(0, table.num_rows)], []
    while left:
        begin, end = left.pop()
        if end - begin > 1 and table.slice(begin, end - begin).nbytes > MOST_JOINED:
            middle = (begin + end) // 2
            left += [(middle, end), (begin, middle)]
        else:
            found.append((begin, end))
    return found


def _placed(column: pa.ChunkedArray, rows: Rows, cells: Sequence[pa.Array]) -> pa.ChunkedArray:
    """Return the column with cells in some of its rows (ascending), chunk by chunk: no array becomes too large."""
    chunks: list[pa.Array] = []
    begin = first = 0
    for number, values in enumerate(cells):
        last = first + len(values)
        end = len(column) if number == len(cells) - 1 else int(rows[last - 1]) + 1
        if end - begin == len(values):
            chunks.append(values)
        else:
            order = np.arange(end - begin)
            order[rows[first:last] - begin] = end - begin + np.arange(len(values))
            chunks.append(pa.concat_arrays([*column.slice(begin, end - begin).chunks, values]).take(pa.array(order)))
        begin, first = end, last
    return pa.chunked_array(chunks, column.type)
