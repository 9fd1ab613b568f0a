"""One source's share of a table that several sources feed: its sid, its files, and whose turn it is to commit.

Such a table is partitioned by its sid column, so data files, delete files and sidecars are of one sid each, in a folder
of their own. A source plans, looks up, compacts and cleans up its own files only. What it takes for the table's state
are its own files; the column of its sid is added when rows are written, and nobody before that knows of it.

Commits stay a compare-and-set on the whole table (`commit`). But a commit of another source, made by this very process,
touches no file of ours: a plan stays valid over it. `Turns` remembers those commits; over anything else a plan is
stale, as ever.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.destinations.iceberg.catalog import safe_name
from penstock.destinations.iceberg.columns import IcebergColumn, arrow_type
from penstock.destinations.iceberg.java import JavaObject
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
        """This process has made the metadata file `made`."""
        with self.lock:
            self._made[made] = turn
            if len(self._made) > MOST_REMEMBERED:
                self._made.popitem(last=False)

    def spans(self, base: str, now: str, source: str, *, same_columns: bool = False) -> bool:
        """Whether everything between the two metadata files was made by this process, for other sources, and, if that
        is asked for, left the columns as they were."""
        with self.lock:
            while now != base:
                turn = self._made.get(now)
                if turn is None or turn.source == source or (same_columns and turn.columns):
                    return False
                now = turn.base
            return True


@dataclass(frozen=True)
class IcebergSlice:
    """`stored` are the columns that are written: the sid's first, then the source's, as the table has them."""

    value: str | int
    field: int  # the partition field's number
    stored: tuple[IcebergColumn, ...]

    @property
    def column(self) -> IcebergColumn:
        return self.stored[0]

    @property
    def folder(self) -> str:
        return f"{safe_name(self.column.name)}={safe_name(str(self.value))}"

    @property
    def partition(self) -> dict[str, Any]:
        """For Iceberg's ContentFileParser."""
        return {"partition": {str(self.field): self.value}}

    def holds(self, file: JavaObject) -> bool:
        return bool(file.partition().get(0) == self.value)

    def rows(self, rows: pa.Table) -> pa.Table:
        """The source's rows as they are stored; columns around them stay as they are."""
        sid = pa.repeat(pa.scalar(self.value, self.column.type), rows.num_rows)
        own, around = rows.columns[: len(self.stored) - 1], rows.columns[len(self.stored) - 1 :]
        columns = [
            column if column.type.equals(stored.type) else column.cast(stored.type)
            for column, stored in zip(own, self.stored[1:], strict=True)
        ]
        names = [*(column.name for column in self.stored), *rows.column_names[len(own) :]]
        return pa.table([sid, *columns, *around], names=names)


def stored(
    slice: IcebergSlice | None, columns: Sequence[IcebergColumn], rows: pa.Table
) -> tuple[Sequence[IcebergColumn], pa.Table]:
    """What is written of the source's rows, with what is around them, and its columns."""
    if slice is None:
        return columns, rows
    return (*slice.stored, *columns[len(slice.stored) - 1 :]), slice.rows(rows)


def with_sid(columns: pa.Schema, sid: Sid) -> pa.Schema:
    """A source's columns with the sid's before them."""
    type = pa.string() if isinstance(sid.value, str) else pa.int64()
    return columns.insert(0, pa.field(sid.column, type, nullable=False))


def require_free_name(target: TableId, columns: pa.Schema, sid: Sid) -> None:
    if sid.column.lower() in {name.lower() for name in columns.names}:
        raise SchemaChanged(
            f"table {target}: the source's table has a column {sid.column}, which is what the sid's column is called",
            "Give the sid's column another name with `sid_column`",
        )


def sid_spec(table: JavaObject, target: TableId, column: int) -> tuple[int, int]:
    """The numbers of the partition spec by sid, and of its field; SchemaChanged when the table has none."""
    specs = table.specs()
    for number in specs:
        fields = specs.get(number).fields()
        if fields.size() == 1 and fields.get(0).sourceId() == column and fields.get(0).transform().isIdentity():
            return int(number), int(fields.get(0).fieldId())
    raise _not_for_several(target)


def sid_column(target: TableId, found: str, sid: Sid) -> IcebergColumn:
    """The column of the sid in an existing table (`found`: JSON of Iceberg's SchemaParser); SchemaChanged when it has
    none of that type."""
    type = with_sid(pa.schema([]), sid).field(0).type
    for field in json.loads(found)["fields"]:
        if field["name"] == sid.column and arrow_type(field["type"]) == type:
            return IcebergColumn(field["id"], sid.column, type, field["required"])
    raise _not_for_several(target)


def is_of_family(properties: Iterable[str], family: str) -> bool:
    """Whether one of the table's properties says that a source of the family feeds it."""
    prefixes = ("penstock.position.", "penstock.source.")
    sources = [name.removeprefix(prefix) for name in properties for prefix in prefixes if name.startswith(prefix)]
    return any(source == family or source.startswith(f"{family}.") for source in sources)


def _not_for_several(target: TableId) -> SchemaChanged:
    return SchemaChanged(
        f"table {target}: it is not partitioned by a sid, so it was not made for several sources",
        f"Give the sources' tables another `target`, or drop {target}: it is made and copied again",
    )
