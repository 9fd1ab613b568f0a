"""Tables, net effects and drivers for the destination suites: rows are plain dictionaries here, and a dictionary is
the oracle.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table as IcebergTable
from pyspark.sql import SparkSession

from penstock.config.delta_destination import DeltaDestination as DeltaConfig
from penstock.config.destinations import IcebergDestination as IcebergConfig
from penstock.config.destinations import Maintenance
from penstock.decode.rescue import RESCUED, RESCUED_TYPE
from penstock.decode.schema import arrow_schema
from penstock.destinations.contract import InProcessRunner, TableDestination, WritePlan, WrittenPart
from penstock.destinations.delta.actions import Action
from penstock.destinations.delta.destination import DeltaDestination
from penstock.destinations.delta.log import TableLog
from penstock.destinations.delta.reading import read_table
from penstock.destinations.iceberg import local_file_io
from penstock.destinations.iceberg.catalog import spark_settings
from penstock.destinations.iceberg.destination import IcebergDestination
from penstock.destinations.lake.warehouse import table_folder
from penstock.destinations.memory import MemoryDestination
from penstock.destinations.memory_tables import MemoryStore
from penstock.fold.keys import bucket_of, encode_keys
from penstock.fold.net_effect import Fetch, NetEffect
from penstock.model.table import Column, ColumnType, TableId, TableSchema
from penstock.runtime.spark import jars

Row = dict[str, Any]
FILE_IO = local_file_io.CLASS if jars.installed() is not None else None
SOURCE = "shop"
START = 0x1000
TYPES = {
    "bool": ColumnType(16, "bool"),
    "bytea": ColumnType(17, "bytea"),
    "int8": ColumnType(20, "int8"),
    "int4": ColumnType(23, "int4"),
    "text": ColumnType(25, "text"),
    "float8": ColumnType(701, "float8"),
    "date": ColumnType(1082, "date"),
    "timestamp": ColumnType(1114, "timestamp"),
    "timestamptz": ColumnType(1184, "timestamptz"),
    "numeric": ColumnType(1700, "numeric", (12 << 16 | 2) + 4),
    "uuid": ColumnType(2950, "uuid"),
}


def table(name: str, columns: str, key: Sequence[str] = ("id",)) -> TableSchema:
    """`columns` as in "id int8, note text"."""
    described = [column.split() for column in columns.split(", ")]
    return TableSchema(
        TableId("public", name), 1, tuple(Column(name, TYPES[type]) for name, type in described), tuple(key)
    )


ORDERS = table("orders", "id int8, amount int4, note text")


def net(
    schema: TableSchema,
    upserts: Sequence[Row] = (),
    deletes: Sequence[Row] = (),
    *,
    truncated: bool = False,
    fetches: Sequence[tuple[str, int, Row]] = (),
) -> NetEffect:
    """The net effect of a batch. `fetches`: column, row of the upserts, key of the row that has its value. An upsert
    may have rescued cells, under RESCUED.
    """
    arrow = arrow_schema(schema)
    rows = pa.Table.from_pylist(list(upserts), schema=arrow)
    rescued = None
    if any(row.get(RESCUED) for row in upserts):
        rescued = pa.array([row.get(RESCUED) for row in upserts], RESCUED_TYPE)
    if not schema.key:
        return NetEffect(truncated, rows, None, None, (), len(upserts), 0, rescued=rescued)
    touched = pa.concat_arrays([_keys(schema, upserts), _keys(schema, deletes)]).unique()
    wanted = tuple(Fetch(column, np.array([row]), _keys(schema, [key])) for column, row, key in fetches)
    changes = len(upserts) + len(deletes)
    return NetEffect(truncated, rows, _keys(schema, upserts), touched, wanted, changes, 0, rescued=rescued)


def in_buckets(schema: TableSchema, upserts: Sequence[Row], deletes: Sequence[Row], buckets: int) -> list[NetEffect]:
    """The same batch as the tasks of several buckets see it."""

    def of(rows: Sequence[Row], bucket: int) -> list[Row]:
        mine: list[int] = bucket_of(_keys(schema, rows), buckets).tolist() if rows else []
        return [row for row, number in zip(rows, mine, strict=True) if number == bucket]

    return [net(schema, of(upserts, bucket), of(deletes, bucket)) for bucket in range(buckets)]


def _keys(schema: TableSchema, rows: Sequence[Row]) -> pa.Array:
    arrow = arrow_schema(schema)
    return encode_keys([pa.array([row[name] for row in rows], arrow.field(name).type) for name in schema.key])


def write(plan: WritePlan, *effects: NetEffect) -> list[WrittenPart]:
    """As executors do: with copies that came through pickle."""
    parts = []
    for effect in effects:
        there: WritePlan = pickle.loads(pickle.dumps(plan))
        parts.append(pickle.loads(pickle.dumps(there.write(effect))))
    return parts


def apply(destination: TableDestination, schema: TableSchema, position: int, *effects: NetEffect) -> None:
    plan = destination.plan(schema.table, SOURCE)
    truncated = any(effect.truncated for effect in effects)
    destination.commit(plan, write(plan, *effects), truncated=truncated, position=position)


@dataclass
class Lake:
    """A destination under test: new drivers on the same storage, and what a reader sees."""

    driver: Callable[[], TableDestination]
    read: Callable[[TableId], pa.Table]
    roll_back: Callable[[TableId], None]  # to what it first held, by somebody else
    root: Path = field(default_factory=Path)
    warehouse: Path = field(default_factory=Path)

    def rows(self, schema: TableSchema) -> list[Row]:
        return ordered(schema, self.read(schema.table).to_pylist())

    def maintain(self, destination: TableDestination, schema: TableSchema) -> None:
        destination.maintain(schema.table, SOURCE, InProcessRunner())


def ordered(schema: TableSchema, rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: [str(row[name]) for name in (schema.key or row)])


def memory_lake() -> Lake:
    store = MemoryStore()

    def read(target: TableId) -> pa.Table:
        return MemoryDestination(store=store).rows(target)

    def roll_back(target: TableId) -> None:
        store.roll_back(target, read(target).slice(0, 1))

    return Lake(lambda: MemoryDestination(store=store), read, roll_back)


def iceberg_config(root: Path, **maintenance: Any) -> IcebergConfig:
    return IcebergConfig(type="iceberg", warehouse=str(root / "warehouse"), maintenance=Maintenance(**maintenance))


def iceberg_lake(
    spark: SparkSession,
    root: Path,
    config: IcebergConfig,
    index: Path | None = None,
    catalog: Callable[[], Catalog] | None = None,
) -> Lake:
    """Every driver gets a Spark session of its own, so no two share what a session keeps.

    `catalog` opens another catalog than the embedded one for pyiceberg.
    """

    def embedded() -> Catalog:
        return SqlCatalog("lake", uri=f"sqlite:///{root}/warehouse/catalog.db", warehouse=str(root / "warehouse"))

    def driver() -> IcebergDestination:
        session = spark.newSession()
        for key, value in spark_settings(config, local_file_io=FILE_IO).items():
            if key != "spark.sql.extensions":
                session.conf.set(key, value)
        destination = IcebergDestination(config, session, index=index or root / "index")
        destination.open()
        return destination

    @contextmanager
    def loaded(target: TableId) -> Iterator[IcebergTable]:
        opened = (catalog or embedded)()
        try:
            yield opened.load_table((target.schema, target.name))
        finally:
            opened.close()

    def read(target: TableId) -> pa.Table:
        with loaded(target) as found:
            return found.scan().to_arrow()

    def roll_back(target: TableId) -> None:
        with loaded(target) as found:
            found.manage_snapshots().rollback_to_snapshot(found.metadata.snapshots[0].snapshot_id).commit()

    return Lake(driver, read, roll_back, root, root / "warehouse")


def delta_config(root: Path, **maintenance: Any) -> DeltaConfig:
    return DeltaConfig(type="delta", warehouse=str(root / "warehouse"), maintenance=Maintenance(**maintenance))


def delta_lake(root: Path, config: DeltaConfig, index: Path | None = None) -> Lake:
    """Without Spark: its rows are read by our own reader, which `test_delta_readers` holds against others."""

    def driver() -> DeltaDestination:
        destination = DeltaDestination(config, index=index or root / "index")
        destination.open()
        return destination

    def read(target: TableId) -> pa.Table:
        table = read_table(table_folder(config, target))
        return table.scan(list(table.types), None)

    def roll_back(target: TableId) -> None:
        restore(table_folder(config, target), 1)

    return Lake(driver, read, roll_back, root, root / "warehouse")


def restore(location: str, version: int) -> None:
    """As Delta's RESTORE does: files and metadata of an earlier version come back, transactions stay."""
    now, before = TableLog(location), TableLog(location)
    now.refresh()
    for number in range(version + 1):
        before.state.enter(number, now.read(number))
    there, wanted = now.state.files, before.state.files
    actions: list[Action] = [{"metaData": before.state.metadata}]
    actions += [file.remove() for path, file in there.items() if path not in wanted or wanted[path].raw != file.raw]
    actions += [
        {"add": dict(file.raw)} for path, file in wanted.items() if path not in there or there[path].raw != file.raw
    ]
    now.put(actions, "RESTORE", {"version": version})
