"""Transaction ids past two billion: rows carry 32 bits of them, and what is told by them must hold all the same."""

from __future__ import annotations

import os

import psycopg
import pytest

from penstock.demo.server import PostgresServer
from penstock.model.partitions import Partition, Partitions
from penstock.source.postgres import publication
from penstock.source.postgres.connect import connect
from penstock.source.postgres.partitions import has_rows_before, read_partitions
from penstock.source.postgres.publication import slot_sees

XIDS_PER_FILE = 8192 * 4 * 32  # of the commit log
JUMP = 1_500_000_000  # less than the server allows between two freezes


def move_on(server: PostgresServer, times: int = 1) -> None:
    """Let the server's transaction counter run on, freezing as it must: by as many ids as years of traffic take."""
    for _ in range(times):
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("update pg_database set datallowconn = true")
            names = [name for (name,) in connection.execute("select datname from pg_database")]
            (now,) = connection.execute("select pg_snapshot_xmax(pg_current_snapshot())::text::bigint").fetchall()[0]
        for name in names:
            with psycopg.connect(server.url(name), autocommit=True) as connection:
                connection.execute("vacuum freeze")
        server.stop()
        epoch, xid = divmod(now + JUMP, 2**32)
        file = server.data / "pg_xact" / f"{xid // XIDS_PER_FILE:04X}"
        if not file.exists():
            file.write_bytes(bytes(XIDS_PER_FILE // 4))
            os.chown(file, server.data.stat().st_uid, server.data.stat().st_gid)
        server._command("pg_resetwal", "-x", str(xid), "-e", str(epoch), str(server.data))
        server.start()


def look(server: PostgresServer) -> tuple[Partitions, Partition]:
    with connect(server.url()) as connection:
        (relation,) = connection.execute("select 't'::regclass::oid::int8").fetchall()[0]
        looked = read_partitions(connection, [relation])[relation]
    return looked, looked.partitions[0]


def older_rows(server: PostgresServer, since: Partitions) -> bool:
    with connect(server.url()) as connection:
        return has_rows_before(connection, since.partitions[0], since.horizon)


def old_publication_is_seen(server: PostgresServer) -> bool:
    """By a slot that is made now, as servers before 18 have to be asked."""
    with connect(server.url()) as connection:
        connection.execute("select pg_create_logical_replication_slot('s', 'pgoutput')")
        seen = slot_sees(connection, "s", "p")
        connection.execute("select pg_drop_replication_slot('s')")
    return seen


def test_what_is_told_by_age_holds_past_two_billion_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "SKIPS_MISSING", 10**9)
    with PostgresServer() as server:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("create table t (id int primary key) partition by hash (id)")
            connection.execute("create table t_0 partition of t for values with (modulus 1, remainder 0)")
            connection.execute("insert into t values (1)")
            connection.execute("create publication p for table t")
        first, _ = look(server)
        move_on(server)
        assert older_rows(server, first), "one and a half billion later the row is still known to be older"
        move_on(server)
        assert old_publication_is_seen(server)
        later, partition = look(server)
        assert later.horizon - first.horizon > 2 * JUMP - 10_000, "looks count in 64 bits"
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("vacuum full t_0")
        assert look(server)[1].file != partition.file
        assert older_rows(server, later), "three billion older than the look, and frozen: a rewrite, no TRUNCATE"
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("truncate t_0")
            connection.execute("insert into t values (2)")
        assert not older_rows(server, later)
        assert not older_rows(server, first), "what is younger than so old a look cannot be told: it is not claimed"
        recent, _ = look(server)
        move_on(server)
        assert look(server)[0].horizon > 2**32
        assert older_rows(server, recent), "across the end of the 32 bits"
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("truncate t_0")
            connection.execute("insert into t values (3)")
        assert not older_rows(server, recent)
