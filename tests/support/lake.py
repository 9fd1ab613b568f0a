"""A pipeline's warehouse as another program sees it: read, compared with its source, and rewritten, through Spark."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

import oracle
from databases import Database
from penstock.config.destinations import IcebergDestination
from penstock.destinations.factory import make_readable
from penstock.destinations.reading import ReadableTables
from penstock.destinations.registry import store_packages
from penstock.runtime.spark import jars
from work_tables import TABLES

PACKAGES = (
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0,org.xerial:sqlite-jdbc:3.50.3.0,"
    "io.delta:delta-spark_4.1_2.13:4.4.0,io.delta:delta-storage:4.4.0"
)
EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions,io.delta.sql.DeltaSparkSessionExtension"
WORK_TABLES = tuple(table.name for table in TABLES)


def reader_session() -> SparkSession:
    """A Spark of our own, with nothing of penstock's in it but the jars that `make install` has fetched.

    And those of object stores, if somebody has.
    """
    there = jars.installed() or []
    there += [jar for name in store_packages() for jar in jars.folder().glob(f"{name.split(':')[1]}-*.jar") if there]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("penstock tests")
    settings = {
        "spark.jars" if there else "spark.jars.packages": ",".join(map(str, there)) if there else PACKAGES,
        "spark.sql.extensions": EXTENSIONS,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


class Lake:
    """The Iceberg tables of one warehouse with its default catalog, which has the destination's name."""

    def __init__(self, spark: SparkSession, warehouse: Path, catalog: str = "lake") -> None:
        self.warehouse, self.catalog = warehouse, catalog
        self.spark = spark.newSession()
        settings = {
            "": "org.apache.iceberg.spark.SparkCatalog",
            ".type": "jdbc",
            ".uri": f"jdbc:sqlite:{warehouse}/catalog.db",
            ".jdbc.schema-version": "V1",
            ".warehouse": str(warehouse),
            ".jdbc.busy_timeout": "30000",
            ".cache-enabled": "false",
        }
        for name, value in settings.items():
            self.spark.conf.set(f"spark.sql.catalog.{catalog}{name}", value)

    @property
    def readable(self) -> ReadableTables:
        """The same tables as `query`, `verify` and `events` reach them."""
        section = IcebergDestination(type="iceberg", name=self.catalog, warehouse=str(self.warehouse))
        return make_readable(section)

    def read(self, table: str) -> tuple[pa.Table, list[tuple[str, str]]]:
        return oracle.read_with_spark(self.spark, self.catalog, split_name(table))

    def has(self, table: str) -> bool:
        return self.spark.catalog.tableExists(".".join(("lake", *(f"`{part}`" for part in split_name(table)))))

    def count(self, table: str) -> int:
        return int(self.read(table)[0].num_rows)

    def sql(self, statement: str) -> list[Any]:
        return list(self.spark.sql(statement).collect())

    def properties(self, table: str) -> dict[str, str]:
        schema, name = split_name(table)
        return {row[0]: row[1] for row in self.sql(f"show tblproperties lake.`{schema}`.`{name}`")}

    def set_property(self, table: str, name: str, value: str) -> None:
        schema, own = split_name(table)
        self.sql(f"alter table lake.`{schema}`.`{own}` set tblproperties ('{name}' = '{value}')")

    def assert_equals(self, database: Database, tables: Iterable[str] = WORK_TABLES) -> None:
        """Every table equals its source table, or the test fails with the first differences."""
        with database.connect() as connection:
            differences = [oracle.compare(connection, table, *self.read(table)) for table in tables]
        wrong = [str(difference) for difference in differences if difference]
        assert not wrong, "\n".join(wrong)

    def assert_equals_in_pyiceberg(self, database: Database, tables: Sequence[str]) -> None:
        """The same, read by a reader that knows neither Spark nor us."""
        catalog = SqlCatalog("lake", uri=f"sqlite:///{self.warehouse}/catalog.db", warehouse=f"file://{self.warehouse}")
        try:
            with database.connect() as connection:
                found = [
                    oracle.compare(connection, table, catalog.load_table(split_name(table)).scan().to_arrow())
                    for table in tables
                ]
        finally:
            catalog.close()
        wrong = [str(difference) for difference in found if difference]
        assert not wrong, "\n".join(wrong)


def split_name(table: str) -> tuple[str, str]:
    """`schema.table` as SQL writes it, quotes taken off."""
    schema, name = table.split(".", 1)
    return _unquoted(schema), _unquoted(name)


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name
