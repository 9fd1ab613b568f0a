"""Read Delta tables back: by Spark with Delta's jars, and straight from the files for simple reads, without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

from penstock.destinations.delta.actions import AddedFile
from penstock.destinations.delta.columns import DeltaField
from penstock.destinations.delta.log import TableLog
from penstock.destinations.delta.log_files import FOLDER
from penstock.destinations.delta.structure import Structure
from penstock.destinations.delta.vectors import dead_rows, rows_of
from penstock.destinations.lake.properties import TARGET
from penstock.destinations.lake.settings import LakeSettings
from penstock.destinations.lake.storage import folders_in, reaching
from penstock.destinations.lake.warehouse import table_folder
from penstock.destinations.reading import DirectTable, ReadBySpark, TableSize, quoted
from penstock.destinations.spark_session import Session
from penstock.errors import DestinationUnreachable, FileUnreadable, TableDropped
from penstock.model.location import local_path
from penstock.model.table import TableId


class DeltaTables(ReadBySpark):
    """The tables of a warehouse, for reading."""

    def __init__(self, settings: LakeSettings) -> None:
        self._settings = settings

    def require_there(self) -> None:
        root = local_path(self._settings.warehouse)
        if root is not None and not root.is_dir():
            raise DestinationUnreachable(
                f"the warehouse {root} of destination {self._settings.name} is not there",
                "`penstock run` makes it; if it has run before, bring the folder back",
            )

    def name(self, target: TableId) -> str:
        return ".".join(("spark_catalog", quoted(target.schema), quoted(target.name)))

    def version(self, target: TableId, bookmark: str) -> str:
        return f"{self.name(target)} VERSION AS OF {int(bookmark)}"

    def register(self, spark: Session, statement: str) -> None:
        """Enter tables in Spark's catalog by their location.

        Delta's catalog for Spark is Spark's own, which is empty. Only those that the statement may mean are entered,
        because each takes a while.
        """
        lists = statement.lstrip().lower().startswith("show")
        for location in self._locations():
            target = _made_as(location)
            if target is None or not (lists or target.name.lower() in statement.lower()):
                continue
            spark.sql(f"CREATE SCHEMA IF NOT EXISTS {quoted(target.schema)}")
            name = f"{quoted(target.schema)}.{quoted(target.name)}"
            spark.sql(f"CREATE TABLE IF NOT EXISTS {name} USING delta LOCATION '{_for_spark(location)}'")

    def _locations(self) -> list[str]:
        """Return where the tables are."""
        with reaching(f"the warehouse {self._settings.warehouse} cannot be listed"):
            schemas = [f"{self._settings.warehouse}/{name}" for name in folders_in(self._settings.warehouse)]
            found = [f"{schema}/{name}" for schema in schemas for name in folders_in(schema)]
            return [location for location in found if FOLDER in folders_in(location)]

    def size(self, spark: Session, target: TableId) -> TableSize:
        return read_table(table_folder(self._settings, target)).size

    def problems(self) -> list[tuple[str, str]]:
        return []  # a warehouse is looked at by whoever writes it

    def direct(self, target: TableId) -> DirectTable | None:
        try:
            return read_table(table_folder(self._settings, target))
        except (TableDropped, FileUnreadable):
            return None


def _for_spark(location: str) -> str:
    """Spark knows S3 by the name of Hadoop's client."""
    return location.replace("s3://", "s3a://", 1)


def _made_as(root: str) -> TableId | None:
    """Return the name under which penstock made a table; None for one of somebody else, or that cannot be read."""
    log = TableLog(root)
    try:
        log.refresh()
    except (TableDropped, FileUnreadable):
        return None
    schema, _, name = log.state.configuration.get(TARGET, "").partition(".")
    return TableId(schema, name) if name else None


def read_table(root: str) -> ReadTable:
    """Read what a table's log says now. TableDropped if there is none."""
    log = TableLog(root)
    log.refresh()
    return ReadTable(log)


class ReadTable:
    """A table as it is at one version of its log."""

    def __init__(self, log: TableLog) -> None:
        self._state = log.state
        self._structure = Structure.of(log.state)
        self._format = self._structure.table_format(log.root)

    @cached_property
    def types(self) -> Mapping[str, pa.DataType | None]:
        return {field.name: _plain(field.type) for field in self._structure.fields}

    @property
    def size(self) -> TableSize:
        files = self._state.files.values()
        dead = sum(file.vector.cardinality for file in files if file.vector is not None)
        rows = sum(file.records for file in files)
        return TableSize(rows - dead, sum(int(file.raw["size"]) for file in files))

    @property
    def exact(self) -> bool:
        return True

    def scan(self, columns: Sequence[str], limit: int | None) -> pa.Table:
        fields = {field.name: field for field in self._structure.fields}
        wanted = [fields[name] for name in columns]
        schema = pa.schema([pa.field(field.name, field.type) for field in wanted])
        found: list[pa.Table] = []
        left = limit
        for file in self._state.files.values():
            for rows in self._rows(file, wanted):
                some = rows if left is None else rows.slice(0, left)
                found.append(some.cast(schema))
                left = None if left is None else left - some.num_rows
                if left == 0:
                    return pa.concat_tables(found)
        return pa.concat_tables(found) if found else schema.empty_table()

    def _rows(self, file: AddedFile, fields: Sequence[DeltaField]) -> Iterator[pa.Table]:
        """Yield the live rows of a file, a row group at a time."""
        known = [field.column(field.type) for field in self._structure.fields if field.type is not None]
        stored = [field.column(field.type) for field in fields if field.physical not in file.partition]
        dead = rows_of(dead_rows(file.root, file.vector)) if file.vector is not None else np.empty(0, np.int64)
        for start, rows in self._format.open_file(file.location, known).batches(stored):
            alive = np.ones(rows.num_rows, np.bool_)
            alive[dead[(dead >= start) & (dead < start + rows.num_rows)] - start] = False
            kept = rows.filter(pa.array(alive))
            values = [
                _partition_value(file, field, kept.num_rows) if field.physical in file.partition else kept[field.name]
                for field in fields
            ]
            yield pa.table(values, names=[field.name for field in fields])


def _partition_value(file: AddedFile, field: DeltaField, rows: int) -> pa.Array:
    text = file.partition[field.physical]
    return pa.repeat(pa.scalar(text or None, pa.string()), rows).cast(field.type)


def _plain(type: pa.DataType | None) -> pa.DataType | None:
    """Return a type for which reading here gives what Spark gives; None for others."""
    return None if type is None or pa.types.is_nested(type) or pa.types.is_binary(type) else type
