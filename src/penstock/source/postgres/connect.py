"""Connections to a Postgres source: fixed session settings, errors that say what to do, never a password.

Everything in `source/postgres/` and whoever talks to the source database connects through here: ordinary SQL
sessions by `connect`, streams by `replication_connection` (see slot.py and capture.py). TLS is libpq's, by the URL's
`sslmode`, `sslrootcert`, `sslcert` and `sslkey`. Role and database defaults do change the bytes that pgoutput sends,
and libpq's environment variables (PGTZ, PGDATESTYLE) override `options`, so the settings are SET after connecting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo
from psycopg.rows import TupleRow

from penstock import libpq
from penstock.errors import SourceLocked, SourceMisconfigured, SourceUnreachable
from penstock.libpq import (
    CONNECT_TIMEOUT_SECONDS,
    SESSION_SETTINGS,
    later_settings_query,
    one_line,
    settings_statements,
    way_out,
)

# How long an ordinary session waits for a lock that somebody holds on a table; what must be read is tried again later.
# Streams and slots are another matter (replication_connection): making one may wait for transactions to end.
LOCK_TIMEOUT = "2s"

Connection = psycopg.Connection[TupleRow]

_OF_THIS_MACHINE = ("service", "passfile", "application_name", "connect_timeout", "options")


def endpoint(url: str) -> str:
    """`host:port/database`, for messages."""
    return libpq.endpoint(_parts(url))


def role_of(url: str) -> str:
    """Return the role that a connection to the URL is made as."""
    named = _parts(url).get("user")
    if named:
        return str(named)
    defaults = {option.keyword: option.val or option.compiled for option in pq.Conninfo.get_defaults()}
    return (defaults.get(b"user") or b"").decode()


def connect(url: str, *, autocommit: bool = True, application_name: str = "penstock") -> Connection:
    """Open an ordinary session with SESSION_SETTINGS.

    It gives up waiting for a lock after LOCK_TIMEOUT (SourceLocked, by `source_errors`). SourceUnreachable says
    endpoint, reason and way out.
    """
    try:
        connection = psycopg.connect(_conninfo(url, application_name), autocommit=True)
    except psycopg.Error as error:
        raise _unreachable(url, str(error)) from None
    _fix_settings(connection.pgconn, url, {**SESSION_SETTINGS, "lock_timeout": LOCK_TIMEOUT})
    connection.autocommit = autocommit
    return connection


def replication_connection(url: str, *, application_name: str = "penstock") -> pq.abc.PGconn:
    """Connect to the URL's database by the replication protocol, with SESSION_SETTINGS. The caller finishes it."""
    conninfo = make_conninfo(_conninfo(url, application_name), replication="database")
    pgconn = pq.PGconn.connect(conninfo.encode())
    if pgconn.status != pq.ConnStatus.OK:
        message = pgconn.get_error_message()
        pgconn.finish()
        raise _unreachable(url, message)
    _fix_settings(pgconn, url, SESSION_SETTINGS)
    return pgconn


def everywhere(url: str, connection: Connection) -> str:
    """Return a connection string that means the same in processes with another environment, and on other machines.

    It has what libpq took from variables, service and password files for `connection`, which was made with `url`.
    """
    parts = _parts(url)
    used = {option.keyword.decode(): option for option in connection.pgconn.info}
    named = {"host", "hostaddr"} & parts.keys()  # of several servers psycopg says which it tried, and by what address
    for name, option in used.items():
        if name == "hostaddr" and named:
            continue
        if option.val is not None and option.val != option.compiled and name not in _OF_THIS_MACHINE:
            parts.setdefault(name, option.val.decode())
    if connection.pgconn.password:
        parts.setdefault("password", connection.pgconn.password.decode())
    return make_conninfo("", **{name: value for name, value in parts.items() if name not in ("service", "passfile")})


@contextmanager
def source_errors(doing: str) -> Iterator[None]:
    """Turn what psycopg raises inside into a SourceError that says what was being done."""
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        raise SourceMisconfigured(
            f"{doing}: {one_line(str(error))}", "Run it as a role that may, or grant the right that is named"
        ) from error
    except psycopg.errors.LockNotAvailable as error:
        raise SourceLocked(
            f"{doing}: somebody holds a lock on it",
            "It is tried again by itself; who holds it: SELECT pid, query FROM pg_stat_activity WHERE pid IN (SELECT "
            "pid FROM pg_locks WHERE granted AND mode = 'AccessExclusiveLock')",
        ) from error
    except psycopg.OperationalError as error:
        raise SourceUnreachable(f"{doing}: {one_line(str(error))}", way_out(str(error), "source.url")) from error
    except psycopg.Error as error:
        raise SourceMisconfigured(f"{doing}: {one_line(str(error))}", "See the server's message") from error


def without_password(text: str, url: str) -> str:
    """`text` with every form of the URL's password replaced by ***."""
    return libpq.hidden(text, _parts(url))


def _parts(url: str) -> dict[str, str | int | None]:
    try:
        return libpq.parts_of(url)
    except psycopg.ProgrammingError:
        # libpq's message quotes pieces of the URL, which may be pieces of the password.
        raise SourceMisconfigured(
            "source.url is not a Postgres URL (its text is not shown, for it may hold a password)",
            "Write postgresql://user:password@host:port/database; special characters in the password as %XX",
        ) from None


def _conninfo(url: str, application_name: str) -> str:
    parts = _parts(url)
    parts.setdefault("connect_timeout", CONNECT_TIMEOUT_SECONDS)
    parts.setdefault("application_name", application_name)
    return make_conninfo("", **parts)


def _fix_settings(pgconn: pq.abc.PGconn, url: str, settings: Mapping[str, str]) -> None:
    for statement in (settings_statements(settings), later_settings_query()):
        result = pgconn.exec_(statement.encode())
        if result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
            message = result.get_error_message()
            pgconn.finish()
            raise _unreachable(url, message)


def _unreachable(url: str, message: str) -> SourceUnreachable:
    reason = one_line(without_password(message, url))
    return SourceUnreachable(f"cannot connect to Postgres at {endpoint(url)}: {reason}", way_out(message, "source.url"))
