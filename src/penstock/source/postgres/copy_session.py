"""One connection of the copy: a read-only transaction in an exported snapshot, whose query results are Arrow batches.

Used by copy_read.py, once for each range. The driver is ADBC's, with a libpq of its own: it is given the same URL, the
same session settings and the same words for errors as connect.py's connections have. It takes binary COPY straight to
Arrow, for about half the work of COPY as text, psycopg and a CSV reader (docs/copy.md has the figures).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import adbc_driver_manager
import psycopg
import pyarrow as pa
from adbc_driver_manager.dbapi import Connection as DriverConnection
from adbc_driver_postgresql import StatementOptions, dbapi  # type: ignore[import-untyped]
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock.errors import SourceMisconfigured, SourceUnreachable
from penstock.source.postgres.connect import (
    CONNECT_TIMEOUT_SECONDS,
    SESSION_SETTINGS,
    endpoint,
    source_errors,
    without_password,
)
from penstock.source.postgres.snapshot import APPLICATION_NAME, begin_in, snapshot_gone
from penstock.source.postgres.statements import literal

# A range is read by its blocks and by nothing else: whatever plan the server would find better reads the table once
# for each range. Row security must fail and not filter in silence. Compiling a query costs more than a range is worth.
_READING_SETTINGS = {
    "enable_seqscan": "off",
    "enable_indexscan": "off",
    "enable_bitmapscan": "off",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
    "row_security": "off",
}
# Once batches flow, the driver's errors come through Arrow and have lost their SQLSTATE.
DRIVER_ERRORS = (adbc_driver_manager.Error, pa.ArrowException, OSError)


class CopySession:
    """Whatever its methods raise is one of DRIVER_ERRORS: see `driver_errors`."""

    def __init__(self, connection: DriverConnection) -> None:
        self._connection = connection

    def schema(self, query: str) -> pa.Schema:
        """What the query's columns would be; takes the locks that it needs, until the transaction ends."""
        with self._connection.cursor() as cursor:
            cursor.execute(f"{query} LIMIT 0")
            return cursor.fetch_arrow_table().schema

    def row(self, query: str) -> dict[str, Any] | None:
        """The query's first row."""
        with self._connection.cursor() as cursor:
            cursor.execute(query)
            rows: list[dict[str, Any]] = cursor.fetch_arrow_table().to_pylist()
        return rows[0] if rows else None

    def batches(self, query: str, batch_bytes: int) -> Iterator[pa.RecordBatch]:
        """The query's rows as they come, in batches of about `batch_bytes`, or one row if that is larger."""
        with self._connection.cursor() as cursor:
            cursor.adbc_statement.set_options(**{StatementOptions.BATCH_SIZE_HINT_BYTES.value: str(batch_bytes)})
            cursor.execute(query)
            yield from cursor.fetch_record_batch()


@contextmanager
def copy_session(url: str, snapshot: str, *, statement_timeout: float) -> Iterator[CopySession]:
    """Ends with its transaction rolled back and its connection closed, also in the middle of a query."""
    with driver_errors(f"connecting to Postgres at {endpoint(url)} for a copy", url):
        connection: DriverConnection = dbapi.connect(_conninfo(url), autocommit=True)
    with connection:
        settings = {
            **SESSION_SETTINGS,
            **_READING_SETTINGS,
            "statement_timeout": f"{max(1, round(statement_timeout * 1000))}ms",
        }
        with driver_errors(f"setting up a session for a copy at {endpoint(url)}", url):
            _run(connection, _set(settings))
        try:
            _run(connection, begin_in(snapshot))
        except DRIVER_ERRORS as error:
            raise snapshot_gone(url, snapshot, str(error)) from None
        yield CopySession(connection)


@contextmanager
def driver_errors(doing: str, url: str) -> Iterator[None]:
    """Turns what the driver raises inside into the SourceError that the same mistake is everywhere else."""
    try:
        yield
    except DRIVER_ERRORS as error:
        same = psycopg_error(error, url)
        if isinstance(same, psycopg.errors.QueryCanceled):
            raise SourceUnreachable(
                f"{doing}: {same}",
                "It is tried again; if it lasts, copy in smaller ranges, or allow a statement more time",
            ) from None
        if isinstance(same, psycopg.errors.InsufficientPrivilege) and "row-level security" in str(same):
            raise SourceMisconfigured(
                f"{doing}: {same}", "Let the role see all rows: ALTER ROLE … BYPASSRLS, or own the table"
            ) from None
        with source_errors(doing):
            raise same from None


def psycopg_error(error: Exception, url: str) -> psycopg.Error:
    """The error that psycopg would have raised, without the driver's preamble and without the password."""
    message = without_password(str(error), url)
    for marker in ("Failed to connect: ", "PGRES_FATAL_ERROR]: ", "Failed to prepare query: "):
        message = message.partition(marker)[2] or message
    message = message.partition("\nQuery was:")[0].partition(". SQLSTATE:")[0].strip()
    message = " ".join(message.removeprefix("ERROR:").split())
    state = error.sqlstate if isinstance(error, adbc_driver_manager.Error) else None
    if state is None:
        is_late = "statement timeout" in message
        return psycopg.errors.QueryCanceled(message) if is_late else psycopg.OperationalError(message)
    try:
        return psycopg.errors.lookup(state)(message)
    except KeyError:
        return psycopg.OperationalError(message)


def _conninfo(url: str) -> str:
    """As it connects, the driver reads the whole catalogue of types and columns: a role's own limit must not cut it."""
    parts = conninfo_to_dict(url)
    parts["options"] = f"{parts.get('options') or ''} -c statement_timeout=0".strip()
    parts.setdefault("connect_timeout", CONNECT_TIMEOUT_SECONDS)
    parts.setdefault("application_name", APPLICATION_NAME)
    return make_conninfo("", **parts)


def _set(settings: Mapping[str, str]) -> str:
    return "; ".join(f"SET {name} TO {literal(value)}" for name, value in settings.items())


def _run(connection: DriverConnection, statements: str) -> None:
    with connection.cursor() as cursor:
        cursor.adbc_statement.set_sql_query(statements)
        cursor.adbc_statement.execute_update()
