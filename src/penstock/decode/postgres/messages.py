"""pgoutput row messages of one raw batch: where each row image and each of its cells lies. Bytes are found, not copied.

Nothing loops over rows. For one column of all images at once, the kind byte and the length are gathered from the
batch's bytes, which gives where every value starts and ends, and with it where the next column begins. `columns.py`
makes Arrow columns out of these places; `fold/` decides which images are worth it.

Every place is checked against its message's end before it is read, so bytes that are no message make an
Undecodable and never a wrong value. An image that nobody asks for is not looked at beyond its key.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np
import numpy.typing as npt

from penstock.decode.reader import Mask, Octets, Places, RawRows
from penstock.errors import RowIncomplete
from penstock.model.change import DELETE, INSERT, TRUNCATE, UPDATE, RawChanges

TEXT, UNCHANGED, NULL = b"tun"  # kinds of a cell
_NEW, _OLD_KEY, _OLD_ROW = b"NKO"  # what precedes an image
_NOWHERE = -1
_TRUNCATE_OPTIONS = 5  # where a truncate has its options, behind its kind and the number of its tables
_OPTIONS = {1: "cascade", 2: "restart_identity"}
_SHORTEST = 8  # operation, relation, kind of image, number of columns


@dataclass(frozen=True)
class Cells:
    """The cells of one image a row: for each column, in parallel with the rows asked for, kind, start and end."""

    rows: Places
    kind: list[Octets]
    start: list[Places]
    end: list[Places]
    after: Places  # where the image ends


class Messages(RawRows):
    """A raw batch with its images located. Rows are numbered as in the batch.

    `new` and `old` say where an image begins, or -1 where there is none. An old image that is not `old_is_full` holds
    the key columns only.
    """

    def __init__(self, changes: RawChanges) -> None:
        super().__init__(changes)
        data = changes.batch.column("data")
        self.old: Places = np.full(len(data), _NOWHERE, np.int64)
        self.new: Places = np.full(len(data), _NOWHERE, np.int64)
        self.old_is_full: Mask = np.zeros(len(data), np.bool_)
        self._start = self._end = np.empty(0, np.int64)
        if len(data) == 0:
            return
        _, offset_buffer, self.bytes = data.buffers()
        offsets = np.frombuffer(offset_buffer, np.int32)[data.offset : data.offset + len(data) + 1].astype(np.int64)
        self._start, self._end = offsets[:-1], offsets[1:]
        self._check(self._end - self._start >= _SHORTEST, np.arange(len(data)), "it is too short")
        self._octets = np.frombuffer(self.bytes, np.uint8)
        # Views of every 4 and 2 bytes, whatever their alignment: fancy indexing gathers from them without a copy.
        self._fours: npt.NDArray[np.int32] = np.ndarray((len(self._octets) - 3,), ">i4", self.bytes, 0, (1,))
        self._twos: npt.NDArray[np.int16] = np.ndarray((len(self._octets) - 1,), ">i2", self.bytes, 0, (1,))
        self._locate()

    def images(self, rows: Places, *, whole_inserts: bool = True) -> Cells:
        """Return whole new images. A cell that was not sent has the same message's old value where that has one.

        RowIncomplete for an INSERT that lacks a cell, unless the caller handles that: Postgres sends such a one for an
        UPDATE that brings a row into a publication's row filter and leaves a large value unchanged.
        """
        cells = self._walk(rows, self.new[rows], len(self.schema.columns))
        self._check(cells.after == self._end[rows], rows, "it goes on after its last column")
        unsent = np.zeros(len(rows), np.bool_)
        for kind in cells.kind:
            unsent |= kind == UNCHANGED
        if whole_inserts and (partial := unsent & (self.op[rows] == INSERT)).any():
            raise self.incomplete(int(rows[np.argmax(partial)]))
        self._fill_from_old(cells, unsent)
        for kind in cells.kind:
            self._check((kind != UNCHANGED) | ~self.old_is_full[rows], rows, "its old row lacks a column")
        return cells

    def lacking(self, rows: Places) -> Mask:
        """Return which of the new images have a cell that is nowhere in their message."""
        lacks = np.zeros(len(rows), np.bool_)
        for kind in self.images(rows, whole_inserts=False).kind:
            lacks |= kind == UNCHANGED
        return lacks

    def keys(self, rows: Places) -> Cells:
        """Return the cells up to the last key column: of new images, and of old ones where a row was deleted."""
        at = np.where(self.op[rows] == DELETE, self.old[rows], self.new[rows])
        cells = self._walk(rows, at, self._key_width)
        unsent = np.zeros(len(rows), np.bool_)
        for column in self._key_columns:
            unsent |= cells.kind[column] == UNCHANGED
        self._fill_from_old(cells, unsent)
        return cells

    def old_keys(self, rows: Places) -> Cells:
        return self._walk(rows, self.old[rows], self._key_width)

    def old_images(self, rows: Places) -> Cells:
        """Return whole old images; where they are not `old_is_full`, only their key columns mean something."""
        cells = self._walk(rows, self.old[rows], len(self.schema.columns))
        is_last = self.op[rows] == DELETE
        self._check((cells.after == self._end[rows]) | ~is_last, rows, "it goes on after its last column")
        return cells

    def incomplete(self, row: int) -> RowIncomplete:
        table = ".".join('"' + part.replace('"', '""') + '"' for part in astuple(self.schema.table))
        return RowIncomplete(
            f"{self.place(row)}: Postgres sent a row without all of its values: an UPDATE brought it into the "
            "publication's row filter and left a large value unchanged",
            f"Run `ALTER TABLE {table} REPLICA IDENTITY FULL`, with which Postgres sends it; then `penstock resync`",
        )

    @property
    def _key_columns(self) -> list[int]:
        return [self.schema.index(name) for name in self.schema.key]

    @property
    def _key_width(self) -> int:
        return max(self._key_columns) + 1

    def _locate(self) -> None:
        everything = np.arange(len(self))
        self._check(self._octets[self._start] == self.op, everything, "its operation is another one")
        is_row = (self.op == INSERT) | (self.op == UPDATE) | (self.op == DELETE)
        self._check(is_row | (self.op == TRUNCATE), everything, "its operation is unknown")
        self._check_truncates(np.flatnonzero(~is_row))
        relation = self._fours[self._start + 1].astype(np.uint32)
        self._check(~is_row | (relation == self.schema.relation_id), everything, "it is of another table")

        image = self._octets[self._start + 5]
        has_new = is_row & (image == _NEW) & (self.op != DELETE)
        has_old = is_row & ((image == _OLD_KEY) | (image == _OLD_ROW)) & (self.op != INSERT)
        self._check(has_new | has_old | ~is_row, everything, "it has no row where one is due")
        self.new[has_new] = self._start[has_new] + 6
        self.old[has_old] = self._start[has_old] + 6
        self.old_is_full = has_old & (image == _OLD_ROW)

        both = np.flatnonzero(has_old & (self.op == UPDATE))
        if len(both):
            after = self._walk(both, self.old[both], len(self.schema.columns)).after
            self._check(after < self._end[both], both, "its new row is missing")
            self._check(self._octets[after] == _NEW, both, "its new row is missing")
            self.new[both] = after + 1

    def truncate_options(self, rows: Places) -> list[list[str]]:
        """Return the words for the bits of each truncate."""
        bits = self._octets[self._start[rows] + _TRUNCATE_OPTIONS].tolist() if len(rows) else []
        return [[word for bit, word in _OPTIONS.items() if bit & one] for one in bits]

    def _check_truncates(self, rows: Places) -> None:
        """They are few, and each may name any number of tables."""
        lengths, counts = self._end[rows] - self._start[rows], self._fours[self._start[rows] + 1].view(">u4")
        self._check(
            lengths == 6 + 4 * counts.astype(np.int64), rows, "its length does not suit the number of its tables"
        )
        names_ours = np.ones(len(rows), np.bool_)
        for index, (row, count) in enumerate(zip(rows.tolist(), counts.tolist(), strict=True)):
            named = np.frombuffer(self.bytes, ">u4", count, int(self._start[row]) + 6)
            names_ours[index] = bool((named == self.schema.relation_id).any())
        self._check(names_ours, rows, "it truncates other tables")

    def _walk(self, rows: Places, at: Places, columns: int) -> Cells:
        """Return the first `columns` cells of the images that begin at `at`."""
        limit = self._end[rows]
        cells = Cells(rows, [], [], [], at)
        if len(rows) == 0:
            nothing = np.empty(0, np.int64)
            return Cells(rows, [np.empty(0, np.uint8)] * columns, [nothing] * columns, [nothing] * columns, at)
        self._check(at + 2 <= limit, rows, "it ends before its columns")
        width = len(self.schema.columns)
        self._check(self._twos[at] == width, rows, f"it does not have the {width} columns of its table")
        last_one, last_four = len(self._octets) - 1, len(self._fours) - 1
        position = at + 2
        for _ in range(columns):
            kind = self._octets[np.minimum(position, last_one)]
            length = self._fours[np.minimum(position + 1, last_four)]
            sent = kind == TEXT
            if sent.all():
                start = position + 5
                end = start + length
            else:
                self._check(sent | (kind == NULL) | (kind == UNCHANGED), rows, "a cell is of no known kind")
                start = np.where(sent, position + 5, position + 1)
                end = np.where(sent, start + length, start)
            self._check((end >= start) & (end <= limit), rows, "a cell reaches past its end")
            cells.kind.append(kind)
            cells.start.append(start)
            cells.end.append(end)
            position = end
        return Cells(rows, cells.kind, cells.start, cells.end, position)

    def _fill_from_old(self, cells: Cells, unsent: Mask) -> None:
        """Put old cells in place of those that were not sent, as far as the old images of `unsent` rows hold them."""
        inside = np.flatnonzero(unsent & (self.old[cells.rows] != _NOWHERE))
        if len(inside) == 0:
            return
        rows = cells.rows[inside]
        old = self._walk(rows, self.old[rows], len(cells.kind))
        for column in range(len(cells.kind)):
            held = (cells.kind[column][inside] == UNCHANGED) & (self.old_is_full[rows] | (column in self._key_columns))
            into = inside[held]
            cells.kind[column][into] = old.kind[column][held]
            cells.start[column][into] = old.start[column][held]
            cells.end[column][into] = old.end[column][held]

    def _check(self, holds: Mask, rows: Places, why: str) -> None:
        if not holds.all():
            raise self.broken_all(rows[~holds].tolist(), why)
