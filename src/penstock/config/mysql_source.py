"""The section of the pipeline file that describes a MySQL or MariaDB source.

The URL is looked at before anything connects. No message of this module holds any part of it.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from pydantic import AfterValidator, Field, PrivateAttr, SecretStr, ValidationInfo

from penstock.config.section import Section
from penstock.config.source_id import SourceId
from penstock.config.values import Name

ALLOWED = "mysql://user:password@host:port/database?ssl-mode=…"
SSL_MODES = ("DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")
_PATHS = ("ssl-ca", "ssl-cert", "ssl-key")
_ENCODE = "a password's special characters must be percent-encoded (@ as %40, : as %3A, / as %2F, % as %25)"


@dataclass(frozen=True)
class MysqlAddress:
    """What a URL says. `socket` is a path of this machine; "": none."""

    host: str
    port: int
    user: str
    password: str
    database: str
    ssl_mode: str
    ssl_ca: str
    ssl_cert: str
    ssl_key: str
    socket: str
    epoch: int = 0


def checked_url(url: str, folder: Path) -> str:
    """Return the URL with absolute paths. ValueError says what is wrong with it, never what it is."""
    parts = urlsplit(url)
    if parts.scheme not in ("mysql", "mariadb") or not parts.netloc:
        raise ValueError(f"must be {ALLOWED}")
    if parts.netloc.count("@") > 1 or "#" in url or parts.path.count("/") > 1:
        raise ValueError(f"has a special character where a host or a database was expected: {_ENCODE}")
    try:
        port = parts.port
    except ValueError:
        raise ValueError(f"has a port that is no number; if that is a piece of the password: {_ENCODE}") from None
    if port == 0 or not parts.username:
        raise ValueError(f"names no user, or no port that exists; it must be {ALLOWED}")
    options = parse_qsl(parts.query, keep_blank_values=True)
    for key, value in options:
        if key not in (*_PATHS, "ssl-mode", "socket"):
            raise ValueError(f"has an option that is not known; allowed: ssl-mode, {', '.join(_PATHS)}, socket")
        if key == "ssl-mode" and value not in SSL_MODES:
            raise ValueError(f"has an ssl-mode that does not exist; allowed: {', '.join(SSL_MODES)}")
    located = [(key, _absolute(value, folder) if key in _PATHS else value) for key, value in options]
    query = "&".join(f"{key}={quote(value, safe='/,')}" for key, value in located)
    return f"{parts.scheme}://{parts.netloc}{parts.path}" + (f"?{query}" if query else "")


def address_of(url: str, epoch: int = 0) -> MysqlAddress:
    """Take apart a URL that `checked_url` has made."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    return MysqlAddress(
        host=parts.hostname or "localhost",
        port=parts.port or 3306,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        database=unquote(parts.path.removeprefix("/")),
        ssl_mode=options.get("ssl-mode", "PREFERRED"),
        ssl_ca=options.get("ssl-ca", ""),
        ssl_cert=options.get("ssl-cert", ""),
        ssl_key=options.get("ssl-key", ""),
        socket=options.get("socket", ""),
        epoch=epoch,
    )


def _absolute(value: str, folder: Path) -> str:
    return str((folder / Path(value).expanduser()).resolve())


def _url(secret: SecretStr, info: ValidationInfo) -> SecretStr:
    folder: Path = (info.context or {}).get("folder", Path.cwd())
    return SecretStr(checked_url(secret.get_secret_value(), folder))


class MysqlSource(Section):
    """Where changes come from: a MySQL or MariaDB server.

    `server_id` is the number under which capture reads the binlog, as a replica does; no other replica of the server
    may have it. By default it follows from the pipeline's and the source's name. `failover` counts how often another
    server took over: with one more, a pipeline goes on at the server that `url` names now, by GTID.
    """

    name: Name = ""
    type: Literal["mysql"]
    url: Annotated[SecretStr, AfterValidator(_url)]
    sid: SourceId = None
    server_id: Annotated[int, Field(ge=1, le=2**32 - 1)] | None = None
    failover: Annotated[int, Field(ge=0, le=1023)] = 0

    _pipeline: str = PrivateAttr("")

    @property
    def address(self) -> MysqlAddress:
        return address_of(self.url.get_secret_value(), self.failover)

    @property
    def database(self) -> str:
        """The database that the URL names; "" when it names none."""
        return self.address.database

    @property
    def events_database(self) -> str:
        """ "": each event is of the database that its table is in."""
        return ""

    @property
    def connector(self) -> str:
        """Debezium's word for this kind of source: the URL says which of the two it is to be."""
        return urlsplit(self.url.get_secret_value()).scheme

    @property
    def keeps_changes(self) -> bool:
        """Whether the source keeps changes for the pipeline while no run reads them."""
        return True

    @property
    def pipeline(self) -> str:
        return self._pipeline

    @property
    def replica_id(self) -> int:
        """The server id under which the binlog is read."""
        if self.server_id is not None:
            return self.server_id
        return 1_000_000 + zlib.crc32(f"{self._pipeline}/{self.name}".encode()) % 4_000_000_000

    @property
    def own(self) -> tuple[tuple[str, object, object], ...]:
        """What no two sources may share: a key of the section, its value, and what makes that value the same one."""
        address = self.address
        return (("server_id", self.replica_id, (address.host, address.port, self.replica_id)),)
