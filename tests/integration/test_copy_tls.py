"""The copy's driver has a libpq of its own: TLS by the same URL, refused for the same reasons.

The server is Debian's, for the embedded one is built without TLS.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.demo.server import PostgresServer
from penstock.destinations.postgres.connection import Sessions
from penstock.errors import DestinationUnreachable, SourceUnreachable
from penstock.source.postgres.copy_session import copy_session
from penstock.source.postgres.snapshot import export_snapshot


def certificate(folder: Path, name: str) -> Path:
    """One that vouches for itself, good for the name `localhost` only."""
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost",
            "-keyout", f"{name}.key", "-out", f"{name}.crt",
        ],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    return folder / f"{name}.crt"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificate(tmp_path_factory.mktemp("tls"), "server")


@pytest.fixture(scope="module")
def tls_only(authority: Path, debian_server: PostgresServer) -> Iterator[PostgresServer]:
    with PostgresServer(debian_server.binaries, {"listen_addresses": "localhost"}) as server:
        for name in ("server.crt", "server.key"):
            (server.data / name).write_bytes((authority.parent / name).read_bytes())
            (server.data / name).chmod(0o600)
            if os.geteuid() == 0:
                nobody = pwd.getpwnam("nobody")
                os.chown(server.data / name, nobody.pw_uid, nobody.pw_gid)
        server.stop()
        (server.data / "pg_hba.conf").write_text("local all all trust\nhostssl all all samehost trust\n")
        with (server.data / "postgresql.conf").open("a") as settings:
            settings.write("ssl = on\n")
        server.start()
        yield server


def url(server: PostgresServer, mode: str, host: str = "localhost", authority: Path | None = None) -> str:
    root = f"&sslrootcert={authority}" if authority else ""
    return f"postgresql://postgres@{host}:{server.port}/postgres?sslmode={mode}{root}"


def test_modes_that_the_certificate_satisfies(tls_only: PostgresServer, authority: Path) -> None:
    with export_snapshot(url(tls_only, "require"), timeout=30, waiting=lambda blockers: None) as snapshot:
        for mode, host, root in (
            ("require", "127.0.0.1", None),
            ("verify-ca", "127.0.0.1", authority),
            ("verify-full", "localhost", authority),
        ):
            with copy_session(url(tls_only, mode, host, root), snapshot.name, statement_timeout=10) as session:
                row = session.row("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
            assert row == {"ssl": True}


def test_what_the_certificate_does_not_satisfy(tls_only: PostgresServer, authority: Path, tmp_path: Path) -> None:
    other = certificate(tmp_path, "other")
    for refused, reason, way_out in (
        (url(tls_only, "disable"), "no encryption", "sslmode=require, verify-ca or verify-full"),
        (url(tls_only, "verify-ca", authority=other), "certificate verify failed", "point sslrootcert at the CA"),
        (url(tls_only, "verify-full", "127.0.0.1", authority), "does not match host name", "or sslmode=verify-ca"),
    ):
        with (
            pytest.raises(SourceUnreachable, match=reason) as caught,
            copy_session(refused, "none", statement_timeout=10),
        ):
            pass
        assert way_out in caught.value.solution


def test_a_postgres_destination_has_tls_by_the_same_url(
    tls_only: PostgresServer, authority: Path, tmp_path: Path
) -> None:
    sessions = Sessions(url(tls_only, "verify-full", authority=authority), "copy")
    with sessions.session() as session:
        row = session.connection.execute("select ssl from pg_stat_ssl where pid = pg_backend_pid()").fetchone()
    sessions.close()
    assert row == (True,)
    other = certificate(tmp_path, "other")
    for wrong in (url(tls_only, "verify-full", authority=other), url(tls_only, "verify-full", "127.0.0.1", authority)):
        with pytest.raises(DestinationUnreachable, match="certificate"), Sessions(wrong, "copy").session():
            pass
    with pytest.raises(DestinationUnreachable, match="no encryption"), Sessions(url(tls_only, "disable")).session():
        pass
