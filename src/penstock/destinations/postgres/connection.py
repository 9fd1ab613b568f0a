"""Sessions with a Postgres destination: fixed settings, a few kept open, and errors in the contract's words.

`Sessions` is the driver's and the executors' alike: a plan carries the URL, and each process keeps its own idle
sessions. A session that met an error is closed, never used again. What goes wrong with one table (`refusal`) is told
from what goes wrong with the server: lost connections, a full disk, a server that is read-only, and locks that somebody
holds are waited for; rows that a constraint refuses are their table's own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import make_conninfo
from psycopg.rows import TupleRow

from penstock import libpq
from penstock.errors import ConfigError, DestinationUnreachable, PenstockError, RowRefused, TableError
from penstock.model.table import TableId

Connection = psycopg.Connection[TupleRow]

LOCK_TIMEOUT = "10s"  # what somebody holds longer is tried again later
MOST_IDLE = 8
_KEEPALIVES = {"keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "3"}
# The server notices a driver whose host is gone, and lets go of its locks: its own default is two hours.
_SETTINGS = {
    "lock_timeout": LOCK_TIMEOUT,
    "synchronous_commit": "on",
    # Servers before 18 would compile the statements of a batch, which keeps the planner from scanning (`apply`).
    "jit": "off",
    **{f"tcp_{name}": value for name, value in _KEEPALIVES.items()},
}
# The server cannot do it now, and may later: nothing that one table could be blamed for.
_WAITED_FOR = (
    pg.AdminShutdown,
    pg.CannotConnectNow,
    pg.CrashShutdown,
    pg.DeadlockDetected,
    pg.DiskFull,
    pg.InsufficientResources,
    pg.LockNotAvailable,
    pg.OutOfMemory,
    pg.QueryCanceled,
    pg.ReadOnlySqlTransaction,
    pg.SerializationFailure,
    pg.TooManyConnections,
)


@dataclass
class Session:
    """A connection, and the temporary tables that it has, by their shape (`staging`)."""

    connection: Connection
    staging: dict[tuple[str, ...], str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)  # by the transaction that is open


_IDLE: list[tuple[int, str, Session]] = []
_LOCK = threading.Lock()


@dataclass(frozen=True)
class Sessions:
    """Where sessions come from. Picklable; never printed: the URL may hold a password."""

    url: str = field(repr=False)
    name: str = "postgres"  # of the destination, for messages

    @property
    def where(self) -> str:
        return libpq.endpoint(libpq.parts_of(self.url))

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Give a session that nobody else has, in autocommit. PenstockError for what goes wrong with the server."""
        with self.errors():
            session = self._taken()
        try:
            with self.errors():
                yield session
        except BaseException:
            session.connection.close()
            raise
        with _LOCK:
            _IDLE.append((os.getpid(), self.url, session))
            surplus = _IDLE.pop(0)[2] if len(_IDLE) > MOST_IDLE else None
        if surplus is not None:
            surplus.connection.close()

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Give a session inside a transaction, which is committed at the end."""
        with self.session() as session, session.connection.transaction():
            session.used.clear()
            yield session

    @contextmanager
    def for_table(self, table: TableId) -> Iterator[Session]:
        """Give a transaction for one table: what concerns the table alone is its own error."""
        try:
            with self.transaction() as session:
                yield session
        except PenstockError as error:
            cause = error.__cause__
            own = refusal(table, cause) if isinstance(cause, psycopg.Error) else None
            if own is None or isinstance(error, TableError):
                raise
            raise own from cause

    def close(self) -> None:
        """Close this process's idle sessions."""
        with _LOCK:
            mine = [one for one in _IDLE if one[0] == os.getpid() and one[1] == self.url]
            _IDLE[:] = [one for one in _IDLE if one not in mine]
        for _, _, session in mine:
            session.connection.close()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn what psycopg raises about the server into an error of ours; a table's own goes through as it is."""
        try:
            yield
        except psycopg.Error as error:
            raise self.unreachable(error) from error

    def unreachable(self, error: psycopg.Error) -> PenstockError:
        parts = libpq.parts_of(self.url)
        message = libpq.one_line(libpq.hidden(str(error), parts))
        url = f"the url of destination {self.name}"
        what = f"destination {self.name} at {self.where}: {message}"
        if isinstance(error, pg.InsufficientPrivilege):
            return DestinationUnreachable(what, self._grant(message))
        if isinstance(error, pg.LockNotAvailable):
            return DestinationUnreachable(
                what,
                "Somebody holds a lock on a table; it is tried again by itself. Who holds it: SELECT pid, query FROM "
                "pg_stat_activity WHERE pid IN (SELECT pid FROM pg_locks WHERE granted AND mode = "
                "'AccessExclusiveLock')",
            )
        if isinstance(error, pg.DiskFull):
            return DestinationUnreachable(what, "Make room on the server's disk; it is tried again by itself")
        if isinstance(error, pg.ReadOnlySqlTransaction):
            return DestinationUnreachable(
                what, f"Let the server take writes, or name the primary in {url}; it is tried again by itself"
            )
        return DestinationUnreachable(what, libpq.way_out(message, url))

    def _grant(self, message: str) -> str:
        parts = libpq.parts_of(self.url)
        role, database = parts.get("user") or "the role", parts.get("dbname") or parts.get("user")
        if "schema" in message:
            return f"As the schema's owner: GRANT USAGE, CREATE ON SCHEMA … TO {role}"
        if "database" in message:
            return f"As the database's owner: GRANT CREATE ON DATABASE {database} TO {role}"
        return f"As the table's owner: GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON … TO {role}"

    def _taken(self) -> Session:
        while True:
            with _LOCK:
                at = next((n for n, one in enumerate(_IDLE) if one[:2] == (os.getpid(), self.url)), None)
                session = None if at is None else _IDLE.pop(at)[2]
            if session is None:
                return Session(self.connected())
            if not session.connection.closed and _answers(session.connection):
                return session
            session.connection.close()

    def connected(self) -> Connection:
        try:
            parts = libpq.parts_of(self.url)
        except psycopg.ProgrammingError:
            raise ConfigError(f"destination {self.name}: its url is not a Postgres URL", "Correct `url`") from None
        given = {"connect_timeout": libpq.CONNECT_TIMEOUT_SECONDS, "application_name": "penstock", **_KEEPALIVES}
        connection = psycopg.connect(make_conninfo("", **{**given, **parts}), autocommit=True)
        try:
            settings = {**libpq.SESSION_SETTINGS, **_SETTINGS}
            connection.execute(libpq.settings_statements(settings).encode())
            connection.execute(libpq.later_settings_query().encode())
        except BaseException:
            connection.close()
            raise
        return connection


def _answers(connection: Connection) -> bool:
    """Whether an idle session is still there: a server that was restarted has closed it."""
    try:
        connection.execute("SELECT 1")
    except psycopg.Error:
        return False
    return True


def refusal(table: TableId, error: psycopg.Error, key: str = "") -> TableError | None:
    """Return the error as the table's own; None when it concerns the server. `key`: the row's, where it is known."""
    if isinstance(error, _WAITED_FOR) or (isinstance(error, psycopg.OperationalError) and error.sqlstate is None):
        return None
    said = error.diag.message_primary or libpq.one_line(str(error))
    detail = f" ({error.diag.message_detail})" if error.diag.message_detail else ""
    row = f", in the row with key {key}" if key else ""
    if isinstance(error, psycopg.IntegrityError):
        name = error.diag.constraint_name or error.diag.column_name or ""
        return RowRefused(
            f"table {table}: {said}{detail}{row}; constraint {name}",
            "Change or drop the constraint at the destination, or the row at the source, then `penstock retry`; a "
            "foreign key between tables that are both copied should be DEFERRABLE INITIALLY DEFERRED",
        )
    if isinstance(error, psycopg.DataError):
        return RowRefused(
            f"table {table}: {said}{detail}{row}",
            "Give the column at the destination a type that takes it; then `penstock retry`",
        )
    if isinstance(error, pg.InsufficientPrivilege):
        return TableError(
            f"table {table}: {said}",
            "As its owner, grant the role that is named in `url`: GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON "
            f'"{table.schema}"."{table.name}" TO …; to alter it the role must own it. Then `penstock retry`',
        )
    return TableError(f"table {table}: {said}{detail}", "Correct it at the destination, then `penstock retry`")
