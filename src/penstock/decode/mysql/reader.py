"""Row changes of the binlog as folds read them.

A change is one byte that says its form, then images: the old row of an update or a delete, then the new row of an
insert or an update, each with all columns (`binlog_row_image=FULL`). Of form REFUSED, the rest is the reason, in words,
why the change cannot be read: capture goes on, and the table becomes Errored here. A truncate has no images.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.decode.mysql.rows import Cells, RowLayout, Unwalkable, padded
from penstock.decode.mysql.values import Typed, from_image
from penstock.decode.reader import Mask, Places, RawRows
from penstock.decode.rescue import Into, shown
from penstock.errors import RowIncomplete, ValueDoesNotFit
from penstock.model.change import DELETE, INSERT, TRUNCATE, UPDATE, RawChanges

WHOLE, REFUSED = 0, 255  # forms


class BinlogImages:
    def __init__(self, reader: BinlogReader, rows: Places, at: Places) -> None:
        self._reader, self.rows, self._at = reader, rows, at
        self._cells: list[Cells] | None = None

    def values(self, column: int, into: Into | None = None, at: Places | None = None) -> pa.Array:
        cells = self._all()[column]
        rows = self.rows
        if at is not None:
            cells, rows = Cells(cells.start[at], cells.end[at], cells.null[at]), rows[at]
        return self._reader.typed(column, rows, cells, into)

    def unsent(self, column: int) -> Mask:
        return np.zeros(len(self.rows), np.bool_)

    def sizes(self, column: int, at: Places) -> Places:
        cells = self._all()[column]
        return 4 * (cells.end[at] - cells.start[at]) + 32  # a character set, or a label, may take more as text

    def _all(self) -> list[Cells]:
        if self._cells is None:
            self._cells = self._reader.cells(self._at, len(self._reader.schema.columns))
        return self._cells


class BinlogReader(RawRows):
    def __init__(self, changes: RawChanges) -> None:
        super().__init__(changes)
        data = changes.batch.column("data")
        count = len(data)
        self._layout = RowLayout(self.schema.columns)
        nowhere = np.full(count, -1, np.int64)
        self._old, self._new = nowhere.copy(), nowhere
        self._octets = padded(b"")
        if count:
            _, offset_buffer, content = data.buffers()
            offsets = np.frombuffer(offset_buffer, np.int32)[data.offset : data.offset + count + 1].astype(np.int64)
            self._octets = padded(b"" if content is None else memoryview(content)[int(offsets[0]) : int(offsets[-1])])
            self._start, self._end = offsets[:-1] - offsets[0], offsets[1:] - offsets[0]
            self._locate()
        self.has_old: Mask = self._old >= 0
        self.old_is_full: Mask = self.has_old

    def keys(self, rows: Places) -> list[pa.Array]:
        return self._keys(rows, np.where(self.op[rows] == DELETE, self._old[rows], self._new[rows]))

    def old_keys(self, rows: Places) -> list[pa.Array]:
        return self._keys(rows, self._old[rows])

    def images(self, rows: Places, *, whole_inserts: bool = True) -> BinlogImages:
        return BinlogImages(self, rows, self._new[rows])

    def old_images(self, rows: Places) -> BinlogImages:
        return BinlogImages(self, rows, self._old[rows])

    def lacking(self, rows: Places) -> Mask:
        return np.zeros(len(rows), np.bool_)

    def truncate_options(self, rows: Places) -> list[list[str]]:
        return [[] for _ in rows]

    def check(self) -> None:
        if self.schema.key:
            self.keys(np.flatnonzero(self.op != TRUNCATE))
            self.old_keys(np.flatnonzero(self.has_old))

    def incomplete(self, row: int) -> RowIncomplete:
        return RowIncomplete(
            f"{self.place(row)}: the binlog has a row without all of its values",
            "Run `SET GLOBAL binlog_row_image = FULL`, reconnect the application, then `penstock resync`",
        )

    def cells(self, at: Places, columns: int) -> list[Cells]:
        return self._layout.cells(self._octets, at, columns)[0]

    def typed(self, column: int, rows: Places, cells: Cells, into: Into | None) -> pa.Array:
        described = self.schema.columns[column]
        try:
            found = from_image(described.type, self._octets, cells)
        except ValueError as error:
            raise self._unreadable(column, rows, cells, error) from None
        if len(found.misfits):
            self._rescue(column, rows, found, into)
        return found.values

    def _unreadable(self, column: int, rows: Places, cells: Cells, error: ValueError) -> Exception:
        described = self.schema.columns[column]
        bad = [
            int(row)
            for number, row in enumerate(rows.tolist())
            if not _can_be_read(described.type, self._octets, _one(cells, number))
        ]
        why = f'column "{described.name}" ({described.type.name}): {error}'
        return self.broken_all(bad or rows.tolist()[:1], why)

    def _rescue(self, column: int, rows: Places, found: Typed, into: Into | None) -> None:
        described = self.schema.columns[column]
        first = int(rows[found.misfits[0]])
        if into is None or described.name in self.schema.key:
            raise ValueDoesNotFit(
                f'{self.place(first)}: column "{described.name}" ({described.type.name}): '
                f"{shown(found.texts[0])!r} does not fit {found.values.type}",
                f"Give the row a value that fits, or carry the column as text (`types: {{{described.name}: text}}` "
                "under its rule in `tables:`); then `penstock resync`",
            )
        places = found.misfits + into.rows if isinstance(into.rows, int) else into.rows[found.misfits]
        into.rescued.keep(into.column, places, found.texts, self.order(first))

    def _keys(self, rows: Places, at: Places) -> list[pa.Array]:
        if not self.schema.key:
            return []
        columns = [self.schema.index(name) for name in self.schema.key]
        cells = self.cells(at, max(columns) + 1)
        for column in columns:
            if cells[column].null.any():
                missing = rows[cells[column].null].tolist()
                raise self.broken_all(missing, f'its key column "{self.schema.columns[column].name}" has no value')
        return [self.typed(column, rows, cells[column], None) for column in columns]

    def _locate(self) -> None:
        lengths = self._end - self._start
        everything = np.arange(len(self.op))
        known = (self.op == INSERT) | (self.op == UPDATE) | (self.op == DELETE) | (self.op == TRUNCATE)
        self._check(known, everything, "its operation is unknown")
        self._check(lengths > 0, everything, "it is empty")
        form = self._octets[self._start]
        for row in np.flatnonzero(form == REFUSED).tolist()[:1]:
            reason = self._octets[self._start[row] + 1 : self._end[row]].tobytes().decode(errors="replace")
            raise self.broken_all(np.flatnonzero(form == REFUSED).tolist(), reason)
        self._check(form == WHOLE, everything, "its form is unknown")
        rows = np.flatnonzero(self.op != TRUNCATE)
        if not len(rows):
            return
        first = self._start[rows] + 1
        after = self._walked(rows, first)
        updates = np.flatnonzero(self.op[rows] == UPDATE)
        self._old[rows] = np.where(self.op[rows] == INSERT, -1, first)
        self._new[rows] = np.where(self.op[rows] == INSERT, first, -1)
        if len(updates):
            self._new[rows[updates]] = after[updates]
            self._check(after[updates] < self._end[rows[updates]], rows[updates], "its new row is missing")
            after[updates] = self._walked(rows[updates], after[updates])
        self._check(after == self._end[rows], rows, "it does not end with its last column")

    def _walked(self, rows: Places, at: Places) -> Places:
        try:
            return self._layout.after(self._octets, at)
        except Unwalkable as error:
            reason = str(error)
        bad = [row for row, place in zip(rows.tolist(), at.tolist(), strict=True) if not self._walks(row, place)]
        raise self.broken_all(bad or rows.tolist()[:1], reason)

    def _walks(self, row: int, at: int) -> bool:
        try:
            return int(self._layout.after(self._octets, np.array([at]))[0]) <= int(self._end[row])
        except Unwalkable:
            return False

    def _check(self, holds: Mask, rows: Places, why: str) -> None:
        if not holds.all():
            raise self.broken_all(rows[~holds].tolist(), why)


def _one(cells: Cells, number: int) -> Cells:
    at = slice(number, number + 1)
    return Cells(cells.start[at], cells.end[at], cells.null[at])


def _can_be_read(type: object, octets: object, cells: Cells) -> bool:
    try:
        from_image(type, octets, cells)  # type: ignore[arg-type]
    except ValueError:
        return False
    return True
