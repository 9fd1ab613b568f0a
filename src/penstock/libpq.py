"""What everybody needs who speaks to a Postgres server: fixed session settings, and libpq's messages made readable.

No connection is made here. `source/postgres/connect.py` and `destinations/postgres/connection.py` make theirs with it,
each with its own errors. No text that comes out of here has a password in it, unless it was given one without its URL.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote, unquote

from psycopg.conninfo import conninfo_to_dict

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

_REASONS: tuple[tuple[str, str], ...] = (
    (r"password authentication failed|no password supplied", "Check user and password in {url}"),
    (
        r"no pg_hba\.conf entry.*no encryption",
        "The server lets no such connection in without TLS: set sslmode=require, verify-ca or verify-full in "
        "{url}, or allow it in the server's pg_hba.conf",
    ),
    (
        r"no pg_hba\.conf entry|pg_hba\.conf rejects",
        "Allow this user, database and address in the server's pg_hba.conf, then run `SELECT pg_reload_conf()`",
    ),
    (
        r"server does not support SSL",
        "Turn ssl on at the server, or set sslmode=disable in {url} if the network is trusted",
    ),
    (
        r"server certificate for .* does not match host name",
        "With sslmode=verify-full the host in {url} must be a name in the server's certificate: use that name, "
        "or sslmode=verify-ca",
    ),
    (
        r"certificate verify failed|unable to get local issuer|self-signed",
        "The server's certificate is not signed by the CA in sslrootcert: point sslrootcert at the CA that signed it",
    ),
    (
        r"root certificate file .* does not exist|could not read root certificate file",
        "Set sslrootcert in {url} to the file of the CA that signed the server's certificate",
    ),
    (r"certificate authentication failed|connection requires a valid client certificate", "Set sslcert and sslkey"),
    (r'database ".*" does not exist', "Name a database that exists in {url}"),
    (r'role ".*" does not exist', "Name a role that exists in {url}"),
    (
        r"must be superuser or replication role|permission denied to start WAL sender",
        "Give the role the right to replicate: ALTER ROLE … REPLICATION (on Amazon RDS: GRANT rds_replication TO …)",
    ),
    (r"number of requested standby connections exceeds", "Raise max_wal_senders at the server and restart it"),
    (
        r"too many (clients|connections)|remaining connection slots",
        "Free connections at the server, or raise the limit",
    ),
    (r"could not translate host name|failed to resolve host|Name or service not known", "Check the host in {url}"),
    (r"Connection refused|No such file or directory", "Check host and port in {url}, and that the server runs"),
    (r"timeout|timed out|No route to host|Network is unreachable", "Check host, port and the way through firewalls"),
    (r"the database system is (starting up|shutting down|in recovery)", "Wait until the server accepts connections"),
)
_OTHERWISE = "Check {url} and the server's log"
_PREAMBLE = re.compile(
    r"^(- host: .*?: (?=connection ))?(connection (is bad|failed): )?"
    r'(connection to server (at|on socket) ".*?"( \(.*?\))?(, port \S+)? failed: )?((FATAL|ERROR):\s+)?'
)
_ASIDES = ("Is the server running", "Multiple connection attempts failed")


def parts_of(url: str) -> dict[str, str | int | None]:
    """Return what a URL says. psycopg.ProgrammingError, whose text may hold pieces of a password, if it is none."""
    return dict(conninfo_to_dict(url))


def endpoint(parts: Mapping[str, str | int | None]) -> str:
    """Return `host:port/database`, for messages."""
    hosts = str(parts.get("host") or parts.get("hostaddr") or "localhost").split(",")
    ports = str(parts.get("port") or "5432").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    where = ",".join(f"{host}:{port}" for host, port in zip(hosts, ports, strict=False))
    return f"{where}/{parts.get('dbname') or parts.get('user') or 'postgres'}"


def hidden(text: str, parts: Mapping[str, str | int | None]) -> str:
    """Return the text with every form of the password replaced by ***."""
    password = parts.get("password")
    if not password:
        return text
    secret = str(password)
    for form in sorted({secret, quote(secret, safe=""), quote(secret), unquote(secret)}, key=len, reverse=True):
        text = text.replace(form, "***")
    return text


def literal(text: str) -> str:
    """Quote a text for SQL, with standard_conforming_strings."""
    return "'" + text.replace("'", "''") + "'"


def settings_statements(settings: Mapping[str, str]) -> str:
    """Return the statements that give a session these settings."""
    return "; ".join(f"SET {name} TO {value if name in _LISTS else literal(value)}" for name, value in settings.items())


def later_settings_query() -> str:
    """Return the query that gives a session the settings of later versions, where the server knows them."""
    return " UNION ALL ".join(
        f"SELECT pg_catalog.set_config(name, {literal(value)}, false) FROM pg_catalog.pg_settings"
        f" WHERE name OPERATOR(pg_catalog.=) {literal(name)}"
        for name, value in _LATER_SETTINGS.items()
    )


def way_out(message: str, url: str) -> str:
    """Say what to do about a message of libpq's. `url`: what the URL is called in the pipeline file."""
    found = next((way for pattern, way in _REASONS if re.search(pattern, message, re.IGNORECASE)), _OTHERWISE)
    return found.replace("{url}", url)


def one_line(message: str) -> str:
    """Return the reasons alone, without libpq's preamble, its questions and its line breaks.

    The message that this goes into names the endpoint already.
    """
    reasons: list[str] = []
    for line in message.strip().splitlines():
        reason = _PREAMBLE.sub("", line.strip())
        if reason and not reason.startswith(_ASIDES) and reason not in reasons:
            reasons.append(reason)
    return "; ".join(reasons) or "no reason given"
