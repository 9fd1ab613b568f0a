"""A property of histories: as of every commit time, for every key, the table shows what the source held then.

A random workload runs in a real Postgres, one transaction after the other; after each of them the source is read: that
is the oracle. The slot's messages, with their own commit times, go through decode and fold into the memory twin, in
random batches. A key counts from its first version on: before it, a history shows the first version.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import psycopg
import pytest

from followed_table import Follower, RawRow, SourceTable, database_with_slot
from penstock.demo.server import PostgresServer
from penstock.model.feed import Mode
from versions_oracle import as_of

Rows = dict[int, dict[str, Any]]


@pytest.fixture(scope="module")
def connection(embedded_server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with database_with_slot(embedded_server, "history_property") as session:
        yield session


def work(rng: random.Random) -> list[str]:
    """The few statements of one transaction; some of it is rolled back."""
    statements = []
    for _ in range(rng.randint(1, 4)):
        key, other, word = rng.randint(1, 12), rng.randint(1, 12), rng.choice("abc")
        statement = rng.choices(
            [
                f"insert into t values ({key}, '{word}', repeat('{word}', 4000)) on conflict do nothing",
                f"update t set word = '{word}' where id = {key}",
                f"update t set word = '{word}', large = repeat('{word}', 3000) where id % 3 = {key % 3}",
                f"update t set id = {other} where id = {key} and not exists (select from t where id = {other})",
                f"delete from t where id = {key}",
                "truncate t",
            ],
            [6, 5, 2, 2, 2, 0.2],
        )[0]
        statements += ["savepoint s", statement, "rollback to s"] if rng.random() < 0.1 else [statement]
    return statements


@pytest.mark.parametrize("seed", range(3))
def test_as_of_every_commit_time(connection: psycopg.Connection[Any], seed: int, full: bool) -> None:
    rng = random.Random(seed)
    source = SourceTable(connection)
    history = Follower(source.schema, Mode.HISTORY)
    held: list[tuple[datetime, Rows]] = []
    waiting: list[RawRow] = []
    for turn in range(400 if full else 80):
        changes = source.run(work(rng))
        waiting += changes
        if changes:
            held.append((changes[-1]["commit_time"], {row["id"]: row for row in source.select()}))
        if waiting and (rng.random() < 0.3 or turn % 20 == 19):
            history.apply(waiting)
            waiting = []
    versions = history.rows()
    seen: set[int] = set()
    for at, rows in held:
        seen |= rows.keys()
        shown = [row for row in as_of(versions, at) if row["id"] in seen]
        assert {row["id"]: {name: row[name] for name in ("id", "word", "large")} for row in shown} == rows, at
        assert len(shown) == len(rows), "versions of a key never overlap"
    assert len(held) > 40
    assert any(row["deleted"] for row in versions)
