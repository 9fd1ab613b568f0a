"""A read replica as the source of a copy."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from copying import held_snapshot, prepared
from databases import Database
from penstock.demo.server import PostgresServer
from penstock.errors import RangeVoid, SnapshotBlocked
from penstock.model.table import TableId
from penstock.source.postgres.connect import connect
from penstock.source.postgres.slot import flush_position
from penstock.source.postgres.snapshot import Blocker, export_snapshot


@pytest.fixture(scope="module")
def primary() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        with connect(server.url()) as connection:
            connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
            connection.execute("INSERT INTO t SELECT generate_series(1, 1000)")
        yield server


@pytest.fixture(scope="module")
def replica(primary: PostgresServer) -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        server.stop()
        shutil.rmtree(server.data)
        subprocess.run(
            [server.binaries / "pg_basebackup", "-d", primary.url(), "-D", server.data, "-R", "-c", "fast"],
            check=True,
            capture_output=True,
            user=pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None,
            cwd=server.folder,
        )
        with (server.data / "postgresql.conf").open("a") as settings:
            settings.write(f"port = {server.port}\nunix_socket_directories = '{server.folder}'\n")
            settings.write("hot_standby_feedback = on\n")
        server.start()
        yield server


def test_a_replica_is_copied_and_its_rewrites_are_seen(primary: PostgresServer, replica: PostgresServer) -> None:
    database = Database("replica", replica.url())
    with connect(primary.url()) as above, connect(replica.url()) as below:

        def help_it(blockers: list[Blocker]) -> None:
            above.execute("SELECT pg_log_standby_snapshot()")

        with held_snapshot(database, help_it) as snapshot:
            copy = prepared(database, snapshot, TableId("public", "t"))
            assert sorted(copy.read()["id"].to_pylist()) == list(range(1, 1001))
            above.execute("VACUUM FULL t")
            wanted = flush_position(above)
            while flush_position(below) < wanted:
                below.execute("SELECT pg_sleep(0.02)")
            with pytest.raises(RangeVoid):
                copy.read()


def refusal(url: str) -> SnapshotBlocked | None:
    try:
        export_snapshot(url, timeout=0.3, waiting=lambda blockers: None).close()
    except SnapshotBlocked as error:
        return error
    return None


def test_a_primary_that_says_nothing_is_named(replica: PostgresServer) -> None:
    """Now and then it does say it by itself, just then: so it is tried a few times."""
    refused = next((error for error in (refusal(replica.url()) for _ in range(5)) if error is not None), None)
    assert refused is not None
    assert "its primary to report the running transactions" in refused.what
    assert "pg_log_standby_snapshot()" in refused.solution
