"""One source's share of a table that several sources feed: its sid, its files, and whose turn it is to commit.

Such a table is partitioned by its sid column, so data files, delete files and sidecars are of one sid each, in a folder
of their own. A source plans, looks up, compacts and cleans up its own files only. What it takes for the table's state
are its own files; the column of its sid is added when rows are written, and nobody before that knows of it.

Commits stay a compare-and-set on the whole table. But a commit of another source, made by this very process,
touches no file of ours: a plan stays valid over it. `Turns` remembers those commits; over anything else a plan is
stale.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.destinations.lake.columns import LakeColumn
from penstock.destinations.lake.storage import safe_name
from penstock.errors import SchemaChanged
from penstock.model.feed import Sid
from penstock.model.table import TableId

MOST_REMEMBERED = 4096


@dataclass(frozen=True)
class Turn:
    """A change that this process made: what it was made of, for whom, and whether the table's columns changed."""

    base: str
    source: str
    columns: bool


class Turns:
    """Whose turn it is to change one table, and which changes this process made, for whom."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._made: OrderedDict[str, Turn] = OrderedDict()  # by metadata file

    def note(self, made: str, turn: Turn) -> None:
        """Note that this process has made the metadata file `made`."""
        with self.lock:
            self._made[made] = turn
            if len(self._made) > MOST_REMEMBERED:
                self._made.popitem(last=False)

    def spans(self, base: str, now: str, source: str, *, same_columns: bool = False) -> bool:
        """Return whether everything between the two metadata files was made by this process, for other sources.

        If that is asked for, it must also have left the columns as they were.
        """
        with self.lock:
            while now != base:
                turn = self._made.get(now)
                if turn is None or turn.source == source or (same_columns and turn.columns):
                    return False
                now = turn.base
            return True


@dataclass(frozen=True)
class SourceSlice:
    """`stored` are the columns that are written: the sid's first, then the source's, as the table has them."""

    value: str | int
    field: int  # the number of the partition field, in a format that numbers them
    stored: tuple[LakeColumn, ...]

    @property
    def column(self) -> LakeColumn:
        return self.stored[0]

    @property
    def folder(self) -> str:
        return f"{safe_name(self.column.name)}={safe_name(str(self.value))}"

    def rows(self, rows: pa.Table) -> pa.Table:
        """Return the source's rows as they are stored; columns around them stay as they are."""
        sid = pa.repeat(pa.scalar(self.value, self.column.type), rows.num_rows)
        own, around = rows.columns[: len(self.stored) - 1], rows.columns[len(self.stored) - 1 :]
        columns = [
            column if column.type.equals(stored.type) else column.cast(stored.type)
            for column, stored in zip(own, self.stored[1:], strict=True)
        ]
        names = [*(column.name for column in self.stored), *rows.column_names[len(own) :]]
        return pa.table([sid, *columns, *around], names=names)


def stored(
    slice: SourceSlice | None, columns: Sequence[LakeColumn], rows: pa.Table
) -> tuple[Sequence[LakeColumn], pa.Table]:
    """Return what is written of the source's rows: their columns, and the rows with what is around them."""
    if slice is None:
        return columns, rows
    return (*slice.stored, *columns[len(slice.stored) - 1 :]), slice.rows(rows)


def with_sid(columns: pa.Schema, sid: Sid) -> pa.Schema:
    """Return a source's columns with the sid's before them."""
    type = pa.string() if isinstance(sid.value, str) else pa.int64()
    return columns.insert(0, pa.field(sid.column, type, nullable=False))


def require_free_name(target: TableId, columns: pa.Schema, sid: Sid) -> None:
    if sid.column.lower() in {name.lower() for name in columns.names}:
        raise SchemaChanged(
            f"table {target}: the source's table has a column {sid.column}, which is what the sid's column is called",
            "Give the sid's column another name with `sid_column`",
        )
