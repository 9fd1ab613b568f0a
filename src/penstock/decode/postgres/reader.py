"""pgoutput messages as folds read them: `messages.py` finds the cells, `columns.py` makes typed columns of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.decode.postgres.columns import column, key_columns, require_key_cells, values
from penstock.decode.postgres.messages import UNCHANGED, Cells, Messages
from penstock.decode.reader import Mask, Places, RawRows
from penstock.decode.rescue import Into
from penstock.errors import RowIncomplete
from penstock.model.change import TRUNCATE, RawChanges


class LocatedImages:
    """The cells of some images, one per column and row."""

    def __init__(self, messages: Messages, cells: Cells) -> None:
        self._messages, self._cells = messages, cells

    @property
    def rows(self) -> Places:
        return self._cells.rows

    def values(self, index: int, into: Into | None = None, at: Places | None = None) -> pa.Array:
        cells = self._cells
        if at is None:
            return column(self._messages, cells, index, into)
        kind, start, end = cells.kind[index][at], cells.start[index][at], cells.end[index][at]
        return values(self._messages, index, cells.rows[at], kind, start, end, into)

    def unsent(self, index: int) -> Mask:
        unsent: Mask = self._cells.kind[index] == UNCHANGED
        return unsent

    def sizes(self, index: int, at: Places) -> Places:
        return self._cells.end[index][at] - self._cells.start[index][at]


class PgoutputReader(RawRows):
    def __init__(self, changes: RawChanges) -> None:
        super().__init__(changes)
        self._messages = Messages(changes)
        self.has_old: Mask = self._messages.old >= 0
        self.old_is_full = self._messages.old_is_full

    def keys(self, rows: Places) -> list[pa.Array]:
        return key_columns(self._messages, self._messages.keys(rows))

    def old_keys(self, rows: Places) -> list[pa.Array]:
        return key_columns(self._messages, self._messages.old_keys(rows))

    def images(self, rows: Places, *, whole_inserts: bool = True) -> LocatedImages:
        return LocatedImages(self._messages, self._messages.images(rows, whole_inserts=whole_inserts))

    def old_images(self, rows: Places) -> LocatedImages:
        return LocatedImages(self._messages, self._messages.old_images(rows))

    def lacking(self, rows: Places) -> Mask:
        return self._messages.lacking(rows)

    def truncate_options(self, rows: Places) -> list[list[str]]:
        return self._messages.truncate_options(rows)

    def check(self) -> None:
        messages = self._messages
        messages.images(np.flatnonzero(messages.new >= 0), whole_inserts=False)
        messages.old_images(np.flatnonzero(self.has_old))
        if self.schema.key:
            require_key_cells(messages, messages.keys(np.flatnonzero(self.op != TRUNCATE)))
            require_key_cells(messages, messages.old_keys(np.flatnonzero(self.has_old)))

    def incomplete(self, row: int) -> RowIncomplete:
        return self._messages.incomplete(row)
