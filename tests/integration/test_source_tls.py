"""TLS for real: a server that takes nothing else, certificates of our own, and each of libpq's modes.

The server is Debian's, for the embedded one is built without TLS.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.config.source_url import checked_source_url
from penstock.demo.server import PostgresServer
from penstock.errors import SourceUnreachable
from penstock.source.postgres.connect import connect, replication_connection

CONNECTORS: tuple[Callable[[str], object], ...] = (connect, replication_connection)


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def _authority(folder: Path, name: str) -> None:
    _openssl(
        folder, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-subj", f"/CN={name}", "-addext", "basicConstraints=critical,CA:TRUE",
        "-keyout", f"{name}.key", "-out", f"{name}.pem",
    )  # fmt: skip


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.pem signed server.pem, which is good for the name `localhost` only; other.pem signed nothing."""
    folder = tmp_path_factory.mktemp("certificates")
    _authority(folder, "ca")
    _authority(folder, "other")
    (folder / "names").write_text("subjectAltName=DNS:localhost\n")
    _openssl(
        folder, "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=localhost",
        "-keyout", "server.key", "-out", "server.csr",
    )  # fmt: skip
    _openssl(
        folder, "x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
        "-days", "2", "-extfile", "names", "-out", "server.pem",
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def tls_server(certificates: Path, debian_server: PostgresServer) -> Iterator[PostgresServer]:
    hba = "local all all trust\nhostssl all all 127.0.0.1/32 trust\nhostssl all all ::1/128 trust\n"
    with PostgresServer(debian_server.binaries, {"listen_addresses": "localhost"}) as server:
        for source, target in (("server.pem", "server.crt"), ("server.key", "server.key")):
            shutil.copy(certificates / source, server.data / target)
            (server.data / target).chmod(0o600)
            if os.geteuid() == 0:
                nobody = pwd.getpwnam("nobody")
                os.chown(server.data / target, nobody.pw_uid, nobody.pw_gid)
        server.stop()
        (server.data / "pg_hba.conf").write_text(hba)
        with (server.data / "postgresql.conf").open("a") as settings:
            settings.write("ssl = on\n")
        server.start()
        yield server


def _url(server: PostgresServer, mode: str, host: str = "localhost", authority: Path | None = None) -> str:
    root = f"&sslrootcert={authority}" if authority else ""
    return checked_source_url(f"postgresql://postgres@{host}:{server.port}/postgres?sslmode={mode}{root}", Path("/"))


def _refusals(url: str) -> list[SourceUnreachable]:
    errors = []
    for connector in CONNECTORS:
        with pytest.raises(SourceUnreachable) as caught:
            connector(url)
        errors.append(caught.value)
    return errors


@pytest.mark.parametrize(
    ("mode", "host", "checked"),
    [
        ("allow", "localhost", False),
        ("prefer", "localhost", False),
        ("require", "localhost", False),
        ("require", "127.0.0.1", False),
        ("verify-ca", "localhost", True),
        ("verify-ca", "127.0.0.1", True),
        ("verify-full", "localhost", True),
    ],
)
def test_modes_that_the_certificate_satisfies(
    tls_server: PostgresServer, certificates: Path, mode: str, host: str, checked: bool
) -> None:
    url = _url(tls_server, mode, host, certificates / "ca.pem" if checked else None)
    with connect(url) as connection:
        assert connection.pgconn.ssl_in_use
    pgconn = replication_connection(url)
    assert pgconn.ssl_in_use
    pgconn.finish()


def test_disable_is_refused_by_a_server_that_wants_tls(tls_server: PostgresServer) -> None:
    for error in _refusals(_url(tls_server, "disable")):
        assert "no encryption" in error.what
        assert "sslmode=require, verify-ca or verify-full" in error.solution


@pytest.mark.parametrize("mode", ["verify-ca", "verify-full", "require"])
def test_another_authority_is_refused(tls_server: PostgresServer, certificates: Path, mode: str) -> None:
    """`require` with a root certificate checks it too: that is libpq's own rule."""
    for error in _refusals(_url(tls_server, mode, authority=certificates / "other.pem")):
        assert "certificate verify failed" in error.what
        assert "point sslrootcert at the CA that signed it" in error.solution


def test_a_name_that_is_not_in_the_certificate_is_refused(tls_server: PostgresServer, certificates: Path) -> None:
    for error in _refusals(_url(tls_server, "verify-full", "127.0.0.1", certificates / "ca.pem")):
        assert "does not match host name" in error.what
        assert "verify-full the host in source.url must be a name in the server's certificate" in error.solution


def test_an_authority_file_that_is_not_there(tls_server: PostgresServer, certificates: Path) -> None:
    for error in _refusals(_url(tls_server, "verify-full", authority=certificates / "missing.pem")):
        assert "missing.pem" in error.what
        assert "Set sslrootcert" in error.solution


def test_a_server_without_tls(embedded_server: PostgresServer) -> None:
    for mode in ("disable", "prefer"):
        with connect(_url(embedded_server, mode, "127.0.0.1")) as connection:
            assert not connection.pgconn.ssl_in_use
    for error in _refusals(_url(embedded_server, "require", "127.0.0.1")):
        assert "does not support SSL" in error.what
        assert "Turn ssl on at the server" in error.solution
