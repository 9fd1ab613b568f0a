"""Readers of a table that lies in two lakes, with their clocks: all its rows, through pyiceberg and through Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from penstock.config.destinations import IcebergDestination as IcebergConfig
from penstock.destinations.iceberg.catalog import spark_settings
from penstock.runtime.spark import jars
from penstock.runtime.spark.session import start_session

TABLE = ("public", "t0")


class Reader(Protocol):
    @property
    def name(self) -> str: ...

    def rows(self, warehouse: Path) -> int:
        """Reads every column of every row; how many there are."""


def catalog(warehouse: Path, name: str = "lake") -> SqlCatalog:
    """The catalog of a destination of that name."""
    return SqlCatalog(name, uri=f"sqlite:///{warehouse}/catalog.db", warehouse=f"{warehouse}")


def content(warehouse: Path) -> pa.Table:
    return catalog(warehouse).load_table(TABLE).scan().to_arrow()


def timed(reader: Reader, warehouse: Path) -> tuple[int, float]:
    """Rows, and seconds."""
    began = time.monotonic()
    rows = reader.rows(warehouse)
    return rows, time.monotonic() - began


@dataclass(frozen=True)
class Pyiceberg:
    name: str = "pyiceberg"

    def rows(self, warehouse: Path) -> int:
        return len(content(warehouse))


@dataclass(frozen=True)
class Spark:
    """A session for each warehouse: a catalog on SQLite finds its tables under its own name, `lake`, only."""

    sessions: Mapping[Path, SparkSession]
    name: str = "Spark"

    def __hash__(self) -> int:
        return hash(self.name)

    def rows(self, warehouse: Path) -> int:
        columns = "count(*), sum(id), sum(n), max(note), max(at)"
        found = self.sessions[warehouse].sql(f"SELECT {columns} FROM lake.{'.'.join(TABLE)}").collect()
        return int(found[0][0])


@contextmanager
def spark_reader(*warehouses: Path) -> Iterator[Spark]:
    jars.fetch()
    settings = {
        warehouse: spark_settings(IcebergConfig(type="iceberg", warehouse=str(warehouse))) for warehouse in warehouses
    }
    first = start_session("reader", settings[warehouses[0]], warehouses[0].parent / "reader.log")
    try:
        sessions = {warehouse: first.newSession() for warehouse in warehouses}
        for warehouse, session in sessions.items():
            for name, value in settings[warehouse].items():
                if name != "spark.sql.extensions":  # of all sessions, and set already
                    session.conf.set(name, value)
        yield Spark(sessions)
    finally:
        first.stop()
