"""Connections to a Postgres source: fixed session settings, errors that say what to do, never a password.

Everything in `source/postgres/` and whoever talks to the source database connects through here: ordinary SQL
sessions by `connect`, streams by `replication_connection` (see slot.py and capture.py). TLS is libpq's, by the URL's
`sslmode`, `sslrootcert`, `sslcert` and `sslkey`. Role and database defaults do change the bytes that pgoutput sends,
and libpq's environment variables (PGTZ, PGDATESTYLE) override `options`, so the settings are SET after connecting.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import quote, unquote

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow

from penstock.errors import SourceLocked, SourceMisconfigured, SourceUnreachable
from penstock.source.postgres.statements import literal

# Whatever the role, the database or the server has set: this is what every session of ours relies on.
SESSION_SETTINGS: dict[str, str] = {
    # how values are written
    "client_encoding": "UTF8",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "xmlbinary": "base64",
    # how names and expressions are written, and which names are found without their schema
    "quote_all_identifiers": "off",
    "search_path": '"$user", public',
    # how our statements are understood
    "standard_conforming_strings": "on",
    "backslash_quote": "safe_encoding",
    "escape_string_warning": "on",
    "array_nulls": "on",
    "transform_null_equals": "off",
    "xmloption": "content",
    "row_security": "on",
    # A warning may say that changes are left out (stream.py); anything below a warning is of no use.
    "client_min_messages": "warning",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    # A role's own limits must not cut a session that waits for its turn or for work.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_session_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}
_LISTS = frozenset({"search_path"})  # whose value is SQL, not a string
_LATER_SETTINGS = {"transaction_timeout": "0"}  # not known to all versions
CONNECT_TIMEOUT_SECONDS = "10"
# How long an ordinary session waits for a lock that somebody holds on a table; what must be read is tried again later.
# Streams and slots are another matter (replication_connection): making one may wait for transactions to end.
LOCK_TIMEOUT = "2s"

Connection = psycopg.Connection[TupleRow]

_REASONS: tuple[tuple[str, str], ...] = (
    (r"password authentication failed|no password supplied", "Check user and password in source.url"),
    (
        r"no pg_hba\.conf entry.*no encryption",
        "The server lets no such connection in without TLS: set sslmode=require, verify-ca or verify-full in "
        "source.url, or allow it in the server's pg_hba.conf",
    ),
    (
        r"no pg_hba\.conf entry|pg_hba\.conf rejects",
        "Allow this user, database and address in the server's pg_hba.conf, then run `SELECT pg_reload_conf()`",
    ),
    (
        r"server does not support SSL",
        "Turn ssl on at the server, or set sslmode=disable in source.url if the network is trusted",
    ),
    (
        r"server certificate for .* does not match host name",
        "With sslmode=verify-full the host in source.url must be a name in the server's certificate: use that name, "
        "or sslmode=verify-ca",
    ),
    (
        r"certificate verify failed|unable to get local issuer|self-signed",
        "The server's certificate is not signed by the CA in sslrootcert: point sslrootcert at the CA that signed it",
    ),
    (
        r"root certificate file .* does not exist|could not read root certificate file",
        "Set sslrootcert in source.url to the file of the CA that signed the server's certificate",
    ),
    (r"certificate authentication failed|connection requires a valid client certificate", "Set sslcert and sslkey"),
    (r'database ".*" does not exist', "Name a database that exists in source.url"),
    (r'role ".*" does not exist', "Name a role that exists in source.url"),
    (
        r"must be superuser or replication role|permission denied to start WAL sender",
        "Give the role the right to replicate: ALTER ROLE … REPLICATION (on Amazon RDS: GRANT rds_replication TO …)",
    ),
    (r"number of requested standby connections exceeds", "Raise max_wal_senders at the server and restart it"),
    (
        r"too many (clients|connections)|remaining connection slots",
        "Free connections at the server, or raise the limit",
    ),
    (r"could not translate host name|failed to resolve host|Name or service not known", "Check the host in source.url"),
    (r"Connection refused|No such file or directory", "Check host and port in source.url, and that the server runs"),
    (r"timeout|timed out|No route to host|Network is unreachable", "Check host, port and the way through firewalls"),
    (r"the database system is (starting up|shutting down|in recovery)", "Wait until the server accepts connections"),
)
_OF_THIS_MACHINE = ("service", "passfile", "application_name", "connect_timeout", "options")
_OTHERWISE = "Check source.url and the server's log"
_PREAMBLE = re.compile(
    r"^(- host: .*?: (?=connection ))?(connection (is bad|failed): )?"
    r'(connection to server (at|on socket) ".*?"( \(.*?\))?(, port \S+)? failed: )?((FATAL|ERROR):\s+)?'
)
_ASIDES = ("Is the server running", "Multiple connection attempts failed")


def endpoint(url: str) -> str:
    """`host:port/database`, for messages."""
    parts = _parts(url)
    hosts = str(parts.get("host") or parts.get("hostaddr") or "localhost").split(",")
    ports = str(parts.get("port") or "5432").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    where = ",".join(f"{host}:{port}" for host, port in zip(hosts, ports, strict=False))
    return f"{where}/{parts.get('dbname') or parts.get('user') or 'postgres'}"


def role_of(url: str) -> str:
    """Return the role that a connection to the URL is made as."""
    named = _parts(url).get("user")
    if named:
        return str(named)
    defaults = {option.keyword: option.val or option.compiled for option in pq.Conninfo.get_defaults()}
    return (defaults.get(b"user") or b"").decode()


def connect(url: str, *, autocommit: bool = True, application_name: str = "penstock") -> Connection:
    """Return an ordinary session with SESSION_SETTINGS, which gives up waiting for a lock after LOCK_TIMEOUT
    (SourceLocked, by `source_errors`). SourceUnreachable says endpoint, reason and way out."""
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
    """Return a connection string that means the same in processes with another environment, on other machines: with
    what libpq took from variables, service and password files for `connection`, which was made with `url`."""
    parts = _parts(url)
    used = {option.keyword.decode(): option for option in connection.pgconn.info}
    for name, option in used.items():
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
            f"{doing}: {_one_line(str(error))}", "Run it as a role that may, or grant the right that is named"
        ) from error
    except psycopg.errors.LockNotAvailable as error:
        raise SourceLocked(
            f"{doing}: somebody holds a lock on it",
            "It is tried again by itself; who holds it: SELECT pid, query FROM pg_stat_activity WHERE pid IN (SELECT "
            "pid FROM pg_locks WHERE granted AND mode = 'AccessExclusiveLock')",
        ) from error
    except psycopg.OperationalError as error:
        raise SourceUnreachable(f"{doing}: {_one_line(str(error))}", _way_out(str(error))) from error
    except psycopg.Error as error:
        raise SourceMisconfigured(f"{doing}: {_one_line(str(error))}", "See the server's message") from error


def without_password(text: str, url: str) -> str:
    """`text` with every form of the URL's password replaced by ***."""
    password = _parts(url).get("password")
    if not password:
        return text
    secret = str(password)
    for form in sorted({secret, quote(secret, safe=""), quote(secret), unquote(secret)}, key=len, reverse=True):
        text = text.replace(form, "***")
    return text


def _parts(url: str) -> dict[str, str | int | None]:
    try:
        return dict(conninfo_to_dict(url))
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


def settings_statements(settings: Mapping[str, str]) -> str:
    """What gives a session these settings."""
    return "; ".join(f"SET {name} TO {value if name in _LISTS else literal(value)}" for name, value in settings.items())


def later_settings_query() -> str:
    """What gives a session the settings of later versions, where the server knows them."""
    return " UNION ALL ".join(
        f"SELECT pg_catalog.set_config(name, {literal(value)}, false) FROM pg_catalog.pg_settings"
        f" WHERE name OPERATOR(pg_catalog.=) {literal(name)}"
        for name, value in _LATER_SETTINGS.items()
    )


def _fix_settings(pgconn: pq.abc.PGconn, url: str, settings: Mapping[str, str]) -> None:
    for statement in (settings_statements(settings), later_settings_query()):
        result = pgconn.exec_(statement.encode())
        if result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
            message = result.get_error_message()
            pgconn.finish()
            raise _unreachable(url, message)


def _unreachable(url: str, message: str) -> SourceUnreachable:
    reason = _one_line(without_password(message, url))
    return SourceUnreachable(f"cannot connect to Postgres at {endpoint(url)}: {reason}", _way_out(message))


def _way_out(message: str) -> str:
    return next((way for pattern, way in _REASONS if re.search(pattern, message, re.IGNORECASE)), _OTHERWISE)


def _one_line(message: str) -> str:
    """Return the reasons alone: without libpq's preamble (the endpoint is named already), its questions and line
    breaks."""
    reasons: list[str] = []
    for line in message.strip().splitlines():
        reason = _PREAMBLE.sub("", line.strip())
        if reason and not reason.startswith(_ASIDES) and reason not in reasons:
            reasons.append(reason)
    return "; ".join(reasons) or "no reason given"
