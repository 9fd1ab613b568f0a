"""Connections to a MySQL or MariaDB server, and what its errors mean. No message holds a password."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import pymysql
from pymysql.constants import CLIENT

from penstock.errors import RangeVoid, SourceError, SourceMisconfigured, SourceUnreachable

CONNECT_SECONDS = 10
READ_SECONDS = 120.0
SESSION = (
    "SET SESSION time_zone = '+00:00', sql_mode = '', net_write_timeout = 600, net_read_timeout = 600,"
    " wait_timeout = 28800, lock_wait_timeout = 10"
)
_DENIED = frozenset({1044, 1045, 1142, 1143, 1227, 1370, 1698, 3118, 2059})
_ALTERED = frozenset({1054, 1146, 1412, 1049})


class Address(Protocol):
    """Where a server is, and as whom to log in (`config.mysql_source.MysqlAddress`)."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def user(self) -> str: ...
    @property
    def password(self) -> str: ...
    @property
    def database(self) -> str: ...
    @property
    def ssl_mode(self) -> str: ...
    @property
    def ssl_ca(self) -> str: ...
    @property
    def ssl_cert(self) -> str: ...
    @property
    def ssl_key(self) -> str: ...
    @property
    def socket(self) -> str: ...
    @property
    def epoch(self) -> int:
        """How often another server took over (positions.py)."""
        ...


Connection = Any  # pymysql's, whose packets are read here too


def endpoint(address: Address) -> str:
    return f"{address.host}:{address.port}" + (f"/{address.database}" if address.database else "")


def connect(address: Address, *, purpose: str = "penstock") -> Connection:
    """Open a connection whose sessions write what copies read: UTC, UTF-8, no modes.

    With ssl-mode PREFERRED, without TLS where the server has none.
    """
    try:
        return _connect(address, purpose, tls=address.ssl_mode != "DISABLED" and not address.socket)
    except _NoTls as error:
        if address.ssl_mode == "PREFERRED":
            return _connect(address, purpose, tls=False)
        raise SourceUnreachable(
            f"the server at {endpoint(address)} does not offer TLS, and ssl-mode is {address.ssl_mode}",
            "Set up TLS there, or choose another ssl-mode in source.url",
        ) from error


class _NoTls(Exception):
    """The server does not offer TLS."""


def _connect(address: Address, purpose: str, *, tls: bool) -> Connection:
    made: Connection = None
    try:
        made = pymysql.connect(
            host=address.host,
            port=address.port,
            user=address.user,
            password=address.password,
            unix_socket=address.socket or None,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=CONNECT_SECONDS,
            read_timeout=READ_SECONDS,
            write_timeout=READ_SECONDS,
            client_flag=CLIENT.MULTI_RESULTS,
            program_name=purpose,
            **(_tls(address) if tls else {"ssl_disabled": True}),
        )
        if tls and not isinstance(made._sock, ssl.SSLSocket):
            raise _NoTls
        with made.cursor() as cursor:
            cursor.execute(SESSION if is_mariadb(made) else f"{SESSION}, information_schema_stats_expiry = 0")
        return made
    except (pymysql.Error, OSError, RuntimeError) as error:
        if made is not None:
            with suppress(pymysql.Error, OSError):
                made.close()
        if tls and "SSL is required" in str(error):
            raise _NoTls from None
        raise _not_connected(address, error) from None


def _tls(address: Address) -> dict[str, Any]:
    if address.ssl_mode in ("VERIFY_CA", "VERIFY_IDENTITY"):
        context = ssl.create_default_context(cafile=address.ssl_ca or None)
        context.check_hostname = address.ssl_mode == "VERIFY_IDENTITY"
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if address.ssl_cert:
        context.load_cert_chain(address.ssl_cert, address.ssl_key or None)
    return {"ssl": context}


def _not_connected(address: Address, error: Exception) -> SourceError:
    reason = _reason(error, address)
    if isinstance(error, RuntimeError) and "cryptography" in reason:
        return SourceUnreachable(
            f"the server at {endpoint(address)} takes the password of {address.user} over TLS only"
            " (caching_sha2_password)",
            "Choose another ssl-mode than DISABLED in source.url, or a socket",
        )
    if _code(error) in _DENIED:
        return SourceUnreachable(
            f"the server at {endpoint(address)} does not let {address.user} in: {reason}",
            "Check user and password in source.url, and from where the account may connect",
        )
    return SourceUnreachable(
        f"no connection to the server at {endpoint(address)}: {reason}",
        "Check source.url, that the server runs and that it can be reached from here; it is tried again",
    )


@contextmanager
def source_errors(doing: str, address: Address) -> Iterator[None]:
    """Turn what the driver raises inside into a SourceError, or RangeVoid where a table is not what it was."""
    try:
        yield
    except (pymysql.Error, OSError) as error:
        reason, code = _reason(error, address), _code(error)
        if code in _ALTERED:
            raise RangeVoid(
                f"{doing}: {reason}", "The table was altered or dropped meanwhile; its copy starts again by itself"
            ) from None
        if code in _DENIED:
            raise SourceMisconfigured(
                f"{doing}: {reason}",
                f"Give the account the rights that docs/source-mysql.md lists: GRANT … TO '{address.user}'@'…'",
            ) from None
        raise SourceUnreachable(f"{doing}: {reason}", "Check the server and its log; it is tried again") from None


def rows(
    connection: Connection, address: Address, statement: str, values: Sequence[object] = ()
) -> list[tuple[Any, ...]]:
    """Run a statement. `values` are for its placeholders."""
    with source_errors("asking the server", address), connection.cursor() as cursor:
        cursor.execute(statement, tuple(values) or None)
        return list(cursor.fetchall())


def named_rows(connection: Connection, address: Address, statement: str) -> list[dict[str, Any]]:
    """Run a SHOW statement, whose columns differ from one server to the next; names are in lower case."""
    with source_errors("asking the server", address), connection.cursor() as cursor:
        cursor.execute(statement)
        names = [one[0].lower() for one in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def is_mariadb(connection: Connection) -> bool:
    return "mariadb" in connection.get_server_info().lower()


def _code(error: Exception) -> int:
    first = error.args[0] if error.args else 0
    return first if isinstance(first, int) else 0


def _reason(error: Exception, address: Address) -> str:
    text = " ".join(str(one) for one in error.args[1:] or error.args) or type(error).__name__
    text = " ".join(text.split())
    return text.replace(address.password, "…") if address.password else text
