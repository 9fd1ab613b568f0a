"""`type: duckdb`: tables in a DuckDB file, exactly once. The worked example of a `penstock.TableDestination`.

A batch of changes to any number of tables is one transaction of DuckDB's, with the position in it. A schema of the
source is one in the file; penstock's own table is `penstock.saved`. While the pipeline runs, DuckDB lets no other
process open the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from penstock.destinations.python.events import Table
from penstock.destinations.python.tables import TableDestination, row_schema


class DuckDB(TableDestination):
    """Tables in the file `path`."""

    def __init__(self, path: str) -> None:
        self._path = path

    def startup(self) -> None:
        Path(self._path).parent.mkdir(parents=True, exist_ok=True)
        self._database = duckdb.connect(self._path)
        self._run("SET TimeZone = 'UTC'")
        self._run("CREATE SCHEMA IF NOT EXISTS penstock")
        self._run("CREATE TABLE IF NOT EXISTS penstock.saved (name VARCHAR PRIMARY KEY, text VARCHAR)")

    def shutdown(self) -> None:
        self._database.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._run("BEGIN")
        try:
            yield
        except BaseException:
            self._run("ROLLBACK")
            raise
        self._run("COMMIT")

    def load(self, name: str) -> str | None:
        found = self._run("SELECT text FROM penstock.saved WHERE name = ?", name)
        return str(found[0][0]) if found else None

    def save(self, name: str, text: str) -> None:
        self._run("INSERT OR REPLACE INTO penstock.saved VALUES (?, ?)", name, text)

    def create(self, table: Table) -> None:
        self._run(f"CREATE SCHEMA IF NOT EXISTS {_quoted(table.schema)}")
        with self._given(row_schema(table).empty_table()):
            self._run(f"CREATE OR REPLACE TABLE {_named(table)} AS FROM given")

    def clear(self, table: Table) -> None:
        self._run(f"DELETE FROM {_named(table)}")

    def insert(self, table: Table, rows: pa.Table) -> None:
        with self._given(rows):
            self._run(f"INSERT INTO {_named(table)} BY NAME FROM given")

    def delete(self, table: Table, keys: pa.Table) -> None:
        with self._given(keys):
            self._run(f"DELETE FROM {_named(table)} AS t USING given AS g WHERE {_same(table)}")

    def read(self, table: Table, keys: pa.Table) -> pa.Table:
        query = f"SELECT t.* FROM {_named(table)} AS t JOIN given AS g ON {_same(table)}"
        with self._given(keys):
            return self._database.sql(query).to_arrow_table().cast(row_schema(table))

    def _run(self, statement: str, *values: str) -> list[Any]:
        found: list[Any] = self._database.execute(statement, list(values)).fetchall()
        return found

    @contextmanager
    def _given(self, rows: pa.Table) -> Iterator[None]:
        """Have statements in the block read the rows under the name `given`."""
        self._database.register("given", rows)
        try:
            yield
        finally:
            self._database.unregister("given")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _named(table: Table) -> str:
    return f"{_quoted(table.schema)}.{_quoted(table.name)}"


def _same(table: Table) -> str:
    return " AND ".join(f"t.{_quoted(name)} = g.{_quoted(name)}" for name in table.key)
