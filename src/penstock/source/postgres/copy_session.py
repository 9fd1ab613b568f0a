"""One connection of the copy: a read-only transaction in an exported snapshot, whose query results are Arrow batches.

Used by copy_read.py, once for each range. The driver is ADBC's, with a libpq of its own: it is given the same URL, the
same session settings and the same words for errors as connect.py's connections have. It takes binary COPY straight to
Arrow, for about half the work of COPY as text, psycopg and a CSV reader (docs/copy.md has the figures).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, cast

import adbc_driver_manager
import adbc_driver_postgresql  # type: ignore[import-untyped]
import psycopg
import pyarrow as pa
from adbc_driver_manager import AdbcConnection, AdbcDatabase, AdbcStatement
from adbc_driver_postgresql import StatementOptions
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock.errors import SourceUnreachable
from penstock.libpq import CONNECT_TIMEOUT_SECONDS, SESSION_SETTINGS, later_settings_query, settings_statements
from penstock.source.postgres.connect import (
    endpoint,
    source_errors,
    without_password,
)
from penstock.source.postgres.snapshot import APPLICATION_NAME, begin_in, snapshot_gone

# Row security must fail and not filter in silence. Compiling a query costs more than a range is worth.
_READING_SETTINGS = {
    "row_security": "off",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    "enable_tidscan": "on",
    "lock_timeout": "5s",
}
# Ranges are read by their blocks: with any other plan the server would go through the table, or an index, once a range.
_OTHER_PLANS = ("enable_seqscan", "enable_indexscan", "enable_bitmapscan")
# Once batches flow, the driver's errors come through Arrow and have lost their SQLSTATE.
DRIVER_ERRORS = (adbc_driver_manager.Error, pa.ArrowException, OSError)


class CopySession:
    """Whatever its methods raise is one of DRIVER_ERRORS: see `driver_errors`."""

    def __init__(self, connection: AdbcConnection) -> None:
        self._connection = connection

    def schema(self, query: str) -> pa.Schema:
        """Return the query's columns; this takes the locks that the query needs, until the transaction ends."""
        with self._result(f"{query} LIMIT 0") as reader:
            return reader.schema

    def row(self, query: str) -> dict[str, Any] | None:
        """Return the query's first row."""
        with self._result(query) as reader:
            rows: list[dict[str, Any]] = reader.read_all().to_pylist()
        return rows[0] if rows else None

    def batches(self, query: str, batch_bytes: int, *, by_block: bool) -> Generator[pa.RecordBatch, None, None]:
        """Yield the query's rows as they come, in batches of about `batch_bytes`, or one row if that is larger.

        `by_block` leaves the server no other plan than reading blocks by their numbers. To be closed before the
        session, if it is left before its end.
        """
        self.run(settings_statements(dict.fromkeys(_OTHER_PLANS, "off" if by_block else "on")))
        with self._result(query, {StatementOptions.BATCH_SIZE_HINT_BYTES.value: str(batch_bytes)}) as reader:
            yield from reader
        self.run(settings_statements(dict.fromkeys(_OTHER_PLANS, "on")))

    def run(self, statements: str) -> None:
        with AdbcStatement(self._connection) as statement:
            statement.set_sql_query(statements)
            statement.execute_update()

    @contextmanager
    def _result(self, query: str, options: Mapping[str, str] | None = None) -> Iterator[pa.RecordBatchReader]:
        with AdbcStatement(self._connection) as statement:
            statement.set_options(**(options or {}))
            statement.set_sql_query(query)
            stream, _ = statement.execute_query()
            with pa.RecordBatchReader.from_stream(stream) as reader:
                yield reader


@contextmanager
def copy_session(url: str, snapshot: str | None, *, statement_timeout: float) -> Iterator[CopySession]:
    """Open a session, and end it with its transaction rolled back and its connection closed, even in a query.

    Without a snapshot it sees what there is now.
    """
    with driver_errors(f"connecting to Postgres at {endpoint(url)} for a copy", url):
        connection = AdbcConnection(_database(_conninfo(url)))
    with connection:
        session = CopySession(connection)
        settings = {
            **SESSION_SETTINGS,
            **_READING_SETTINGS,
            "statement_timeout": f"{max(1, round(statement_timeout * 1000))}ms",
        }
        with driver_errors(f"setting up a session for a copy at {endpoint(url)}", url):
            session.run(settings_statements(settings))
            session.row(later_settings_query())
        _begin(session, url, snapshot)
        yield session


def _begin(session: CopySession, url: str, snapshot: str | None) -> None:
    if snapshot is None:
        with driver_errors(f"beginning to read at {endpoint(url)}", url):
            session.run("BEGIN READ ONLY")
        return
    try:
        session.run(begin_in(snapshot))
    except DRIVER_ERRORS as error:
        raise snapshot_gone(url, snapshot, str(psycopg_error(error, url))) from None


@contextmanager
def driver_errors(doing: str, url: str) -> Iterator[None]:
    """Turn what the driver raises inside into the SourceError that the same mistake is everywhere else."""
    try:
        yield
    except DRIVER_ERRORS as error:
        same = psycopg_error(error, url)
        if isinstance(same, psycopg.errors.QueryCanceled):
            raise SourceUnreachable(
                f"{doing}: {same}",
                "It is tried again; if it lasts, copy in smaller ranges, or allow a statement more time",
            ) from None
        with source_errors(doing):
            raise same from None


def psycopg_error(error: Exception, url: str) -> psycopg.Error:
    """Return the error that psycopg would have raised, without the driver's preamble and without the password."""
    message = without_password(str(error), url)
    for marker in ("Failed to connect: ", "ERROR: ", "FATAL: "):
        message = message.partition(marker)[2] or message
    message = " ".join(message.partition("\nQuery was:")[0].partition(". SQLSTATE:")[0].split())
    state = error.sqlstate if isinstance(error, adbc_driver_manager.Error) else None
    if state is None:
        is_late = "statement timeout" in message
        return psycopg.errors.QueryCanceled(message) if is_late else psycopg.OperationalError(message)
    try:
        return psycopg.errors.lookup(state)(message)
    except KeyError:
        return psycopg.OperationalError(message)


@lru_cache(maxsize=8)
def _database(conninfo: str) -> AdbcDatabase:
    """Read the whole catalogue of types and columns, once per process: with 75,000 columns that takes 0.6 s.

    That it grows old does no harm, for copy_columns.py asks for built-in types only.
    """
    return cast(AdbcDatabase, adbc_driver_postgresql.connect(conninfo))


def _conninfo(url: str) -> str:
    """Return a connection string with our settings from the first moment.

    The driver reads the catalogue before it lets anybody set anything, and takes types by their functions' names as the
    session writes them.
    """
    parts = conninfo_to_dict(url)
    settings = ("-c {}={}".format(name, value.replace(" ", "\\ ")) for name, value in SESSION_SETTINGS.items())
    parts["options"] = " ".join([str(parts.get("options") or ""), *settings]).strip()
    parts.setdefault("connect_timeout", CONNECT_TIMEOUT_SECONDS)
    parts.setdefault("application_name", APPLICATION_NAME)
    return make_conninfo("", **parts)
