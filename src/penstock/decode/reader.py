"""What folds know of a source's raw changes: operations, positions, keys, images, and cells that were not sent.

A `RowReader` reads the raw changes of one batch, all of one table under one schema version. Rows are numbered as in the
batch. Fold asks it for keys and images of the rows that count, as typed Arrow columns, and knows nothing of the bytes
behind them. Each kind of source has its own (`dialect.py` finds it); `RawRows` holds what all of them have in common.

Arrays of row numbers (`rows`) are given in ascending order. Bytes that cannot be read raise Undecodable, with all rows
that fail the same check, and never give a wrong value. Nothing beyond an image's key needs to be looked at before
somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.decode.rescue import Into
from penstock.decode.undecodable import Undecodable
from penstock.errors import RowIncomplete
from penstock.model.change import RawChanges
from penstock.model.position import order_text
from penstock.model.quarantine import raw_message
from penstock.model.table import TableSchema

Places = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]


class Images(Protocol):
    """The images of some rows, in the order in which the rows were given.

    `column` is a column's place in the reader's schema, `at` are numbers of images in ascending order.
    """

    @property
    def rows(self) -> Places:
        """The rows that the images are of."""

    def values(self, column: int, into: Into | None = None, at: Places | None = None) -> pa.Array:
        """Return one column of all images, or of those at `at`; null where the cell is NULL or was not sent.

        Cells that do not fit the column's type go to `into`; without it, and in a key column, they are ValueDoesNotFit.
        """

    def unsent(self, column: int) -> Mask:
        """Return the images whose cell is nowhere in the change, because the change left its value as it was."""

    def sizes(self, column: int, at: Places) -> Places:
        """Return the bytes that the values of images at `at` take at most, if they are text or binary."""


class RowReader(Protocol):
    """See the module."""

    @property
    def schema(self) -> TableSchema: ...

    @property
    def op(self) -> Octets:
        """INSERT, UPDATE, DELETE or TRUNCATE (`model/change.py`)."""

    @property
    def commit_position(self) -> Numbers: ...

    @property
    def ordinal(self) -> Numbers: ...

    @property
    def has_old(self) -> Mask:
        """The changes that bring an old image along: whole, or the key columns alone."""

    @property
    def old_is_full(self) -> Mask:
        """The changes whose old image is whole."""

    def __len__(self) -> int: ...

    def keys(self, rows: Places) -> list[pa.Array]:
        """Return the key columns of rows after their change, in the key's order; before it where they were deleted."""

    def old_keys(self, rows: Places) -> list[pa.Array]:
        """Return the key columns of old images."""

    def images(self, rows: Places, *, whole_inserts: bool = True) -> Images:
        """Return new images. A cell that was not sent has the value of the same change's old image, if that has it.

        RowIncomplete for an INSERT that lacks a cell, unless `whole_inserts` is False.
        """

    def old_images(self, rows: Places) -> Images:
        """Return old images; where they are not `old_is_full`, only their key columns mean something."""

    def lacking(self, rows: Places) -> Mask:
        """Return which of the new images have a cell that is nowhere in their change."""

    def truncate_options(self, rows: Places) -> list[list[str]]:
        """Return what each of these truncates was given: `cascade`, `restart_identity`."""

    def check(self) -> None:
        """Read every change as far as keys and images need it. Undecodable if any of them cannot be read."""

    def place(self, row: int) -> str:
        """Return where a change stands, for messages: its table and its place in the stream."""

    def order(self, row: int) -> str:
        """Return the change's place in the stream."""

    def broken(self, row: int, why: str) -> Undecodable:
        """Return the error for a change that makes no sense."""

    def incomplete(self, row: int) -> RowIncomplete:
        """Return the error for an INSERT that lacks a cell, with this source's advice."""


class RawRows:
    """The part of a raw batch that is the same for every source."""

    def __init__(self, changes: RawChanges) -> None:
        self._changes = changes
        self.schema: TableSchema = changes.schema
        self.op: Octets = np.asarray(changes.batch.column("op"))
        self.commit_position: Numbers = np.asarray(changes.batch.column("commit_position"))
        self.ordinal: Numbers = np.asarray(changes.batch.column("ordinal"))

    def __len__(self) -> int:
        return len(self.op)

    def place(self, row: int) -> str:
        return f"table {self.schema.table}, change {self.order(row)}"

    def order(self, row: int) -> str:
        return order_text(int(self.commit_position[row]), int(self.ordinal[row]))

    def broken(self, row: int, why: str) -> Undecodable:
        return self.broken_all([row], why)

    def broken_all(self, rows: Sequence[int], why: str) -> Undecodable:
        """Return the error for rows that fail the same check; it names the first."""
        row = rows[0]
        error = Undecodable(
            f"{self.place(row)}: the message cannot be decoded: {why}",
            "It is kept: see `penstock quarantine list FILE`. Report it; `penstock resync` brings the table back",
        )
        error.messages = (raw_message(self._changes, row, why),)
        error.rows = tuple(rows)
        return error
