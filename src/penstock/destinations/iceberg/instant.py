"""A catalog's pointers as they are at one instant, in a small catalog of their own on this machine.

All tables that a reader opens through it are of that instant, however long the reading takes and whatever is committed
meanwhile. Where the pointers are rows of a database, one transaction reads them all. What snapshots hold stays on disk
for `maintenance.keep_for` after they expire, so a query may go on for so long. Used by `reading.py`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import psycopg

from penstock.destinations.iceberg.catalog import IcebergSettings, database
from penstock.destinations.reading import Instant
from penstock.errors import DestinationUnreachable, UsageError

SQLITE, POSTGRES = "jdbc:sqlite:", "jdbc:postgresql:"
TABLES = {
    "iceberg_tables": (
        "catalog_name",
        "table_namespace",
        "table_name",
        "metadata_location",
        "previous_metadata_location",
        "iceberg_type",
    ),
    "iceberg_namespace_properties": ("catalog_name", "namespace", "property_key", "property_value"),
}


def instant_of(settings: IcebergSettings, folder: Path) -> Instant:
    """Return how Spark reads by a copy of the pointers, which is made in `folder` when the instant is chosen.

    UsageError for a catalog whose tables cannot be opened at one instant.
    """
    found = database(settings)
    if found is None or not found[0].startswith((SQLITE, POSTGRES)):
        raise UsageError(
            f"the catalog of destination {settings.name} cannot open all tables at one instant: only JDBC catalogs "
            "on SQLite or Postgres can",
            "Set `consistent_every: 1m` at the destination, and read the tables at one of its tags",
        )
    copy = folder / "instant.db"

    def choose() -> None:
        uri, given = found
        try:
            if uri.startswith(SQLITE):
                _copy_sqlite(uri.removeprefix(SQLITE), copy)
            else:
                _copy_postgres(uri.removeprefix("jdbc:"), given, copy)
        except (sqlite3.Error, psycopg.Error) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise DestinationUnreachable(
                f"the catalog of destination {settings.name} cannot be read: {reason}", "See that its database answers"
            ) from error

    return Instant({f"spark.sql.catalog.{settings.name}.uri": f"{SQLITE}{copy}"}, choose)


def _copy_sqlite(path: str, copy: Path) -> None:
    uri = f"file:{path}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, timeout=10)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)


def _copy_postgres(url: str, given: Mapping[str, str], copy: Path) -> None:
    login = {name: given[name] for name in ("user", "password") if name in given}
    with psycopg.connect(url, **login) as connection:  # type: ignore[arg-type]  # user and password only
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with closing(sqlite3.connect(copy)) as target, target:
            for table, columns in TABLES.items():
                rows = connection.execute(f"SELECT {', '.join(columns)} FROM {table}".encode())
                _fill(target, table, columns, rows)


def _fill(target: sqlite3.Connection, table: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    target.execute(f"CREATE TABLE {table} ({', '.join(f'{column} TEXT' for column in columns)})")
    marks = ", ".join("?" * len(columns))
    target.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
