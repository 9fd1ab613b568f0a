"""A property of histories: as of every commit time, for every key, the table shows what the source held then.

A random workload runs in a real Postgres, one transaction after the other; after each of them the source is read: that
is the oracle. The slot's messages, with their own commit times, go through decode and fold into the memory twin, in
random batches. A key counts from its first version on: before it, a history shows the first version.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from penstock.demo.server import PostgresServer
from penstock.destinations.memory import MemoryDestination
from penstock.fold.history import fold_history
from penstock.fold.layout import Layout
from penstock.model.change import RAW_SCHEMA, RawChanges
from penstock.model.feed import Period
from penstock.model.table import Column, ColumnType, TableId, TableSchema

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
T = TableId("public", "people")
Rows = dict[int, tuple[Any, ...]]


@pytest.fixture(scope="module")
def connection(embedded_server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(embedded_server.url(), autocommit=True) as session:
        session.execute("create database history_property")
    with psycopg.connect(embedded_server.url("history_property"), autocommit=True) as session:
        session.execute("create publication p for all tables")
        session.execute("select pg_create_logical_replication_slot('history_property', 'pgoutput')")
        yield session
        session.execute("select pg_drop_replication_slot('history_property')")


def work(connection: psycopg.Connection[Any], rng: random.Random) -> None:
    """One transaction of a few statements; some of it is rolled back."""
    with connection.transaction():
        for _ in range(rng.randint(1, 4)):
            key, other, word = rng.randint(1, 12), rng.randint(1, 12), rng.choice("abc")
            statement = rng.choices(
                [
                    f"insert into people values ({key}, '{word}', repeat('{word}', 4000)) on conflict do nothing",
                    f"update people set word = '{word}' where id = {key}",
                    f"update people set word = '{word}', large = repeat('{word}', 3000) where id % 3 = {key % 3}",
                    f"update people set id = {other} where id = {key} and not exists "
                    f"(select from people where id = {other})",
                    f"delete from people where id = {key}",
                    "truncate people",
                ],
                [6, 5, 2, 2, 2, 0.2],
            )[0]
            if rng.random() < 0.1:
                connection.execute("savepoint s")
                connection.execute(statement.encode())
                connection.execute("rollback to s")
            else:
                connection.execute(statement.encode())


def sent(connection: psycopg.Connection[Any]) -> list[dict[str, Any]]:
    """The slot's changes as raw rows, with the commit times that Postgres says."""
    rows: list[dict[str, Any]] = []
    commit_lsn = ordinal = 0
    at = EPOCH
    messages = connection.execute(
        "select data from pg_logical_slot_get_binary_changes('history_property', null, null, "
        "'proto_version', '1', 'publication_names', 'p')"
    ).fetchall()
    for (message,) in messages:
        if message[:1] == b"B":
            commit_lsn, ordinal = int.from_bytes(message[1:9], "big"), 0
            at = EPOCH + timedelta(microseconds=int.from_bytes(message[9:17], "big"))
        elif message[:1] in (b"I", b"U", b"D", b"T"):
            row = {"commit_lsn": commit_lsn, "tx_ordinal": ordinal, "start_lsn": commit_lsn, "xid": 1}
            rows.append({**row, "commit_time": at, "op": message[0], "data": message})
            ordinal += 1
    return rows


@pytest.mark.parametrize("seed", range(3))
def test_as_of_every_commit_time(connection: psycopg.Connection[Any], seed: int, full: bool) -> None:
    rng = random.Random(seed)
    connection.execute("drop table if exists people")
    connection.execute("create table people (id int primary key, word text, large text)")
    connection.execute("alter table people alter column large set storage external")
    (relation,) = connection.execute("select 'people'::regclass::oid::int8").fetchone() or (0,)
    columns = (
        Column("id", ColumnType(23, "int4"), False, 1),
        Column("word", ColumnType(25, "text"), True, 2),
        Column("large", ColumnType(25, "text"), True, 3),
    )
    schema = TableSchema(T, relation, columns, ("id",))
    lake = MemoryDestination()
    lake.ensure_table(T, schema, "shop", 0, layout=Layout(period=Period()))
    sent(connection)
    held: list[tuple[datetime, Rows]] = []
    waiting: list[dict[str, Any]] = []
    for turn in range(400 if full else 80):
        work(connection, rng)
        changes = sent(connection)
        waiting += changes
        if changes:
            present = connection.execute("select * from people").fetchall()
            held.append((changes[-1]["commit_time"], {row[0]: row for row in present}))
        if waiting and (rng.random() < 0.3 or turn % 20 == 19):
            plan = lake.plan(T, "shop")
            raw = RawChanges(schema, pa.RecordBatch.from_pylist(waiting, schema=RAW_SCHEMA))
            net = fold_history([raw], position=plan.position, since=plan.moment)
            end, moment = waiting[-1]["commit_lsn"] + 1, max(plan.moment, net.last_commit_time)
            lake.commit(plan, [plan.write(net)], truncated=False, position=end, moment=moment)
            waiting = []
    versions = lake.rows(T).to_pylist()
    seen: set[int] = set()
    for at, rows in held:
        seen |= rows.keys()
        as_of = [row for row in versions if row["valid_from"] <= at < row["valid_to"] and row["id"] in seen]
        assert {row["id"]: (row["id"], row["word"], row["large"]) for row in as_of} == rows, at
        assert len(as_of) == len(rows), "versions of a key never overlap"
    assert len(held) > 40
    assert any(row["deleted"] for row in versions)
