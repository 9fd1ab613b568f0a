"""Read Iceberg tables back: through Spark's catalog, and by pyiceberg straight from the files of a local warehouse.

pyiceberg is imported with the first direct read: it takes as long as the read itself.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.destinations.iceberg.catalog import IcebergSettings
from penstock.destinations.iceberg.instant import instant_of
from penstock.destinations.reading import DirectTable, Instant, ReadBySpark, TableSize, quoted
from penstock.destinations.spark_session import Session
from penstock.errors import DestinationUnreachable
from penstock.model.location import local_path
from penstock.model.table import TableId

if TYPE_CHECKING:
    from pyiceberg.table import StaticTable

_TYPES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}


class IcebergTables(ReadBySpark):
    """The tables of a catalog, for reading."""

    def __init__(self, settings: IcebergSettings) -> None:
        self._settings = settings

    def require_there(self) -> None:
        warehouse = local_path(self._settings.warehouse)
        if warehouse is not None and not warehouse.is_dir():
            raise DestinationUnreachable(
                f"the warehouse {warehouse} of destination {self._settings.name} is not there",
                "`penstock run` makes it; if it has run before, bring the folder back",
            )

    def name(self, target: TableId) -> str:
        return ".".join(map(quoted, (self._settings.name, target.schema, target.name)))

    def version(self, target: TableId, bookmark: str) -> str:
        return f"{self.name(target)} VERSION AS OF {int(bookmark)}"

    def register(self, spark: Session, statement: str) -> None:
        """Spark knows the catalog, and so its tables."""

    def instant(self, folder: Path) -> Instant:
        return instant_of(self._settings, folder)

    def size(self, spark: Session, target: TableId) -> TableSize:
        ((rows, size),) = spark.sql(
            "SELECT coalesce(sum(record_count), 0), coalesce(sum(file_size_in_bytes), 0)"
            f" FROM {self.name(target)}.files"
        ).collect()
        return TableSize(int(rows), int(size))

    def problems(self) -> list[tuple[str, str]]:
        return []  # a warehouse is looked at by whoever writes it

    def direct(self, target: TableId) -> DirectTable | None:
        """Of the embedded catalog of a local warehouse alone."""
        warehouse = local_path(self._settings.warehouse)
        if warehouse is None or self._settings.catalog:
            return None
        try:
            location = _metadata(str(warehouse / "catalog.db"), self._settings.name, target)
        except sqlite3.Error:
            return None
        if location is None:
            return None
        from pyiceberg.table import StaticTable  # noqa: PLC0415 - see the module's docstring

        return _Direct(StaticTable.from_metadata(location))


class _Direct:
    def __init__(self, table: StaticTable) -> None:
        self._table = table

    @cached_property
    def types(self) -> Mapping[str, pa.DataType | None]:
        return {field.name: _arrow_type(str(field.field_type)) for field in self._table.schema().fields}

    @property
    def size(self) -> TableSize | None:
        return None if (found := self._summary) is None else TableSize(*found[:2])

    @property
    def exact(self) -> bool:
        return (found := self._summary) is not None and not found[2]

    def scan(self, columns: Sequence[str], limit: int | None) -> pa.Table:
        return self._table.scan(selected_fields=tuple(columns), limit=limit).to_arrow()

    @cached_property
    def _summary(self) -> tuple[int, int, int] | None:
        """Rows, bytes and delete files."""
        snapshot = self._table.current_snapshot()
        if snapshot is None or snapshot.summary is None:
            return None
        names = ("total-records", "total-files-size", "total-delete-files")
        rows, size, deletes = (int(snapshot.summary[name] or 0) for name in names)
        return rows, size, deletes


def _metadata(catalog: str, name: str, target: TableId) -> str | None:
    """Return where the table's metadata is; None when the catalog has no such table."""
    connection = sqlite3.connect(f"file:{catalog}?mode=ro", uri=True, timeout=10)
    try:
        row = connection.execute(
            "SELECT metadata_location FROM iceberg_tables WHERE catalog_name = ? AND table_namespace = ?"
            " AND table_name = ? AND coalesce(iceberg_type, 'TABLE') = 'TABLE'",
            (name, target.schema, target.name),
        ).fetchone()
    finally:
        connection.close()
    return None if row is None else str(row[0])


def _arrow_type(iceberg: str) -> pa.DataType | None:
    decimal = re.fullmatch(r"decimal\((\d+), ?(\d+)\)", iceberg)
    if decimal:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    return _TYPES.get(iceberg)
