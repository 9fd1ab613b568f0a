"""The server's counters of updates and deletes: what they tell, and when they tell nothing."""

from __future__ import annotations

import time

from databases import Database
from penstock.demo.server import PostgresServer
from penstock.model.write_counters import WriteCounters
from penstock.source.postgres.connect import connect
from penstock.source.postgres.write_counters import are_kept, read_counters

TABLES = (
    "create table t (id int)",
    "create table days (k int) partition by range (k)",
    "create table days_0 partition of days for values from (0) to (10)",
    "insert into t values (1), (2), (3); insert into days values (1), (2)",
)


def read(url: str, table: str) -> WriteCounters:
    with connect(url) as connection:
        oid = connection.execute(f"select '{table}'::regclass::oid::bigint".encode()).fetchall()[0][0]
        return read_counters(connection, [oid])[oid]


def await_since(url: str, table: str, before: WriteCounters, expected: int | None) -> None:
    """A session reports what it changed a moment after its transaction."""
    deadline = time.monotonic() + 30
    while read(url, table).since(before) != expected:
        assert time.monotonic() < deadline, read(url, table)
        time.sleep(0.05)


def test_updates_and_deletes_are_counted_and_a_reset_is_noticed(any_postgres: Database) -> None:
    any_postgres.execute(*TABLES)
    url = any_postgres.url
    plain, parts = read(url, "t"), read(url, "days")
    any_postgres.execute("insert into t values (4)", "truncate t", "insert into t values (5), (6)", "vacuum full t")
    any_postgres.execute("update days set k = 3 where k = 2", "delete from days where k = 3")
    await_since(url, "days", parts, 2)
    assert read(url, "t").since(plain) == 0, "what is sent is not counted"
    any_postgres.execute("update t set id = 7 where id = 5")
    await_since(url, "t", plain, 1)
    any_postgres.execute("select pg_stat_reset_single_table_counters('t'::regclass)")
    await_since(url, "t", plain, None)
    parts = read(url, "days")
    any_postgres.execute("select pg_stat_reset()")
    await_since(url, "days", parts, None)


def test_a_crash_of_the_server_is_noticed() -> None:
    """Also where nothing had been counted before it."""
    with PostgresServer() as server:
        database = Database("postgres", server.url())
        database.execute(*TABLES)
        before = read(server.url(), "t")
        with connect(server.url()) as connection:
            assert are_kept(connection)
        server.stop("immediate")
        server.start()
        database.execute("update t set id = 9 where id = 1")
        assert read(server.url(), "t").since(before) is None
