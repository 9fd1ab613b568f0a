"""Connections to a real server: fixed settings whatever role and environment say, and errors with the way out."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg import pq

from databases import Database
from penstock.demo.server import PostgresServer, free_port
from penstock.errors import SourceUnreachable
from penstock.source.postgres.connect import connect, everywhere, replication_connection

SECRET = "hunter2-secret"
SETTINGS = ("client_encoding", "DateStyle", "IntervalStyle", "TimeZone", "extra_float_digits", "bytea_output")
FIXED = ["UTF8", "ISO, MDY", "postgres", "UTC", "3", "hex"]


@pytest.fixture(scope="module")
def strict_server() -> Iterator[PostgresServer]:
    """Passwords are asked for, and one role may not connect at all."""
    hba = "host all postgres 127.0.0.1/32 trust\nhost all app 127.0.0.1/32 scram-sha-256\n"
    with PostgresServer(hba=hba) as server:
        with connect(server.url()) as connection:
            connection.execute(f"CREATE ROLE app LOGIN REPLICATION PASSWORD '{SECRET}'".encode())
            connection.execute("CREATE ROLE other LOGIN")
        yield server


def _odd_role(postgres: Database) -> str:
    role = f"odd_{postgres.name}"
    postgres.execute(
        f"CREATE ROLE {role} LOGIN SUPERUSER",
        *(
            f"ALTER ROLE {role} SET {setting}"
            for setting in (
                "client_encoding = 'LATIN1'",
                "DateStyle = 'German, DMY'",
                "IntervalStyle = 'iso_8601'",
                "TimeZone = 'Asia/Tokyo'",
                "extra_float_digits = -5",
                "bytea_output = 'escape'",
                "statement_timeout = 50",
            )
        ),
    )
    return postgres.url.replace("postgres@", f"{role}@")


def test_settings_hold_against_role_and_environment(any_postgres: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGTZ", "America/New_York")
    monkeypatch.setenv("PGDATESTYLE", "SQL, DMY")
    monkeypatch.setenv("PGOPTIONS", "-c bytea_output=escape")
    url = _odd_role(any_postgres)
    with connect(url, autocommit=False) as connection:
        connection.rollback()
        found = [connection.execute("SELECT current_setting(%s)", (name,)).fetchall()[0][0] for name in SETTINGS]
        connection.execute("SELECT pg_sleep(0.2)")
    assert [value.replace("DMY", "MDY") for value in found] == FIXED
    pgconn = replication_connection(url)
    shown = []
    for name in SETTINGS:
        result = pgconn.exec_(f"SHOW {name}".encode())
        assert result.status == pq.ExecStatus.TUPLES_OK, result.get_error_message()
        shown.append((result.get_value(0, 0) or b"").decode().replace("DMY", "MDY"))
    assert pgconn.exec_(b"IDENTIFY_SYSTEM").status == pq.ExecStatus.TUPLES_OK
    pgconn.finish()
    assert shown == FIXED


def _refused(url: str) -> str:
    """What both kinds of connection say: it must be the same cause and way out."""
    messages = []
    for make in (connect, replication_connection):
        with pytest.raises(SourceUnreachable) as caught:
            make(url)
        error = caught.value
        assert SECRET not in str(error)
        assert "\n" not in str(error)
        messages.append(f"{error.what} -> {error.solution}")
    assert messages[0].rpartition(" -> ")[2] == messages[1].rpartition(" -> ")[2]
    return messages[0]


def test_a_wrong_password(strict_server: PostgresServer) -> None:
    message = _refused(strict_server.url(user="app", password=f"{SECRET}x"))
    assert f"127.0.0.1:{strict_server.port}/postgres: password authentication failed" in message
    assert "Check user and password" in message
    with connect(strict_server.url(user="app", password=SECRET)) as connection:
        assert connection.info.user == "app"


def test_no_password(strict_server: PostgresServer) -> None:
    assert "Check user and password" in _refused(strict_server.url(user="app"))


def test_the_password_may_come_from_the_environment(
    strict_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", SECRET)
    replication_connection(strict_server.url(user="app")).finish()


def test_a_role_that_pg_hba_does_not_let_in(strict_server: PostgresServer) -> None:
    assert "pg_hba.conf" in _refused(strict_server.url(user="other"))


def test_a_database_and_a_role_that_do_not_exist(embedded_server: PostgresServer) -> None:
    assert "Name a database that exists" in _refused(embedded_server.url("nowhere"))
    assert "Name a role that exists" in _refused(embedded_server.url(user="nobody_here"))


def test_no_server_and_no_host() -> None:
    refused = _refused(f"postgresql://app:{SECRET}@127.0.0.1:{free_port()}/shop")
    assert "Connection refused" in refused
    assert "Check host and port" in refused
    assert "Check the host" in _refused(f"postgresql://app:{SECRET}@no-such-host.invalid/shop")


def test_a_server_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        message = _refused(f"postgresql://app:{SECRET}@127.0.0.1:{port}/shop?connect_timeout=2")
    assert f"cannot connect to Postgres at 127.0.0.1:{port}/shop" in message
    assert "firewalls" in message


def test_a_role_without_the_right_to_replicate(postgres: Database) -> None:
    postgres.execute(f"CREATE ROLE plain_{postgres.name} LOGIN")
    with pytest.raises(SourceUnreachable, match="ALTER ROLE … REPLICATION"):
        replication_connection(postgres.url.replace("postgres@", f"plain_{postgres.name}@"))


@pytest.mark.parametrize("told", ["variable", "file"])
def test_a_password_from_here_goes_along_to_other_machines(
    strict_server: PostgresServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: str
) -> None:
    passwords = tmp_path / "pgpass"
    passwords.write_text(f"*:*:*:app:{SECRET}\n")
    passwords.chmod(0o600)
    variables = {"variable": ("PGPASSWORD", SECRET), "file": ("PGPASSFILE", str(passwords))}
    url = f"postgresql://app@127.0.0.1:{strict_server.port}"
    with monkeypatch.context() as here:
        here.setenv(*variables[told])
        here.setenv("PGDATABASE", "postgres")
        with connect(url) as connection:
            elsewhere = everywhere(url, connection)
    with connect(elsewhere) as connection:
        row = connection.execute("SELECT current_user::text, current_database()::text").fetchone()
    assert row == ("app", "postgres")
    with pytest.raises(SourceUnreachable):
        connect(url)
