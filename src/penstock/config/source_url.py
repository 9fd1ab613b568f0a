"""The source's URL, looked at before anything connects: a URL that would make libpq quote a password is refused here.

No message of this module holds any part of the URL. Certificate paths in it are made absolute, as all the file's paths.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl, quote

import psycopg
from psycopg.conninfo import conninfo_to_dict

ALLOWED = "postgresql://user:password@host:port/database?sslmode=…"
SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_ENCODE = (
    "a password's special characters must be percent-encoded (@ as %40, : as %3A, / as %2F, % as %25), or left out of"
    " the URL and given in the environment variable PGPASSWORD as it is"
)
_CERTIFICATE_PATHS = ("sslrootcert", "sslcert", "sslkey", "sslcrl")


def checked_source_url(url: str, folder: Path) -> str:
    """Return the URL with absolute certificate paths. ValueError says what is wrong with it, never what it is."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in ("postgresql", "postgres"):
        raise ValueError(f"must be {ALLOWED}")
    address, question, query = rest.partition("?")
    authority, _, database = address.partition("/")
    if authority.count("@") > 1 or "@" in database or "#" in address:
        raise ValueError(f"has a special character where a host or a database was expected: {_ENCODE}")
    try:
        parts = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise ValueError(f"is not a URL that libpq understands; it must be {ALLOWED}, and {_ENCODE}") from None
    if not all(port.isdigit() for port in str(parts.get("port") or "5432").split(",")):
        raise ValueError(f"has a port that is no number; if that is a piece of the password: {_ENCODE}")
    mode = str(parts.get("sslmode") or "prefer")
    if mode not in SSL_MODES:
        raise ValueError(f"has an sslmode that does not exist; allowed: {', '.join(SSL_MODES)}")
    if not question:
        return url
    options = [(key, _absolute(key, value, folder)) for key, value in parse_qsl(query, keep_blank_values=True)]
    return f"{scheme}://{address}?" + "&".join(f"{key}={quote(value, safe='/,')}" for key, value in options)


def _absolute(key: str, value: str, folder: Path) -> str:
    if key not in _CERTIFICATE_PATHS or not value or (key == "sslrootcert" and value == "system"):
        return value
    return str((folder / Path(value).expanduser()).resolve())
