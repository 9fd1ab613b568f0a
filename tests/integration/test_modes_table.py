"""The table of modes (mode_cases.py), from a real server's messages through decode and fold into the memory twin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from mode_cases import CASES, STORAGE, TABLE, Case, Rows, ranked, value
from penstock.demo.server import PostgresServer
from penstock.destinations.memory import MemoryDestination
from penstock.fold.clone import fold_append, fold_clone
from penstock.fold.history import fold_history
from penstock.fold.layout import layout_of
from penstock.fold.net_effect import NetEffect
from penstock.model.change import RawChanges
from penstock.model.feed import Feed, Mode
from penstock.model.table import Column, ColumnType, TableId, TableSchema
from pgoutput_messages import Change, raw_changes

T = TableId("public", "t")


class Source:
    """A table at a real server, and what its slot has said of it: one list of changes for each transaction."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        connection.execute("drop table if exists t")
        connection.execute(TABLE.format(t="t"))
        connection.execute(STORAGE.format(t="t"))
        (relation,) = connection.execute("select 't'::regclass::oid::int8").fetchone() or (0,)
        columns = (
            Column("id", ColumnType(23, "int4"), False, 1),
            Column("word", ColumnType(25, "text"), True, 2),
            Column("large", ColumnType(25, "text"), True, 3),
        )
        self.schema = TableSchema(T, relation, columns, ("id",))
        self.transactions: list[list[Change]] = []

    def run(self, statements: tuple[str, ...]) -> None:
        with self._connection.transaction():
            for statement in statements:
                self._connection.execute(statement.format(t="t").encode())
        number, changes = len(self.transactions) + 1, list[Change]()
        messages = self._connection.execute(
            "select data from pg_logical_slot_get_binary_changes('modes', null, null, "
            "'proto_version', '1', 'publication_names', 'modes')"
        ).fetchall()
        for (message,) in messages:
            if message[:1] in (b"I", b"U", b"D", b"T"):
                changes.append(Change(number * 100, len(changes), message))
        self.transactions.append(changes)

    def select(self) -> Rows:
        return sorted(self._connection.execute("select * from t").fetchall(), key=repr)


@pytest.fixture(scope="module")
def connection(embedded_server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(embedded_server.url(), autocommit=True) as session:
        session.execute("create database modes")
    with psycopg.connect(embedded_server.url("modes"), autocommit=True) as session:
        session.execute("create publication modes for all tables")
        session.execute("select pg_create_logical_replication_slot('modes', 'pgoutput')")
        yield session
        session.execute("select pg_drop_replication_slot('modes')")


FOLDS: dict[Mode, Callable[..., NetEffect]] = {
    Mode.CLONE: fold_clone,
    Mode.APPEND: fold_append,
    Mode.HISTORY: fold_history,
}


class Follower:
    """A table in memory that follows the source in one mode."""

    def __init__(self, schema: TableSchema, mode: Mode) -> None:
        self.schema, self.mode = schema, mode
        self.lake = MemoryDestination()
        self.lake.ensure_table(T, schema, "shop", 0, layout=layout_of(Feed(T, T, T, mode)))

    def apply(self, transactions: list[list[Change]], end: int) -> None:
        """One batch; what the table has already is skipped, as after a crash."""
        raw: RawChanges = raw_changes(self.schema, [change for changes in transactions for change in changes])
        plan = self.lake.plan(T, "shop")
        since = {"since": plan.moment} if self.mode is Mode.HISTORY else {}
        net = FOLDS[self.mode]([raw], position=plan.position, until=end, **since)
        moment = max(plan.moment, net.last_commit_time) if self.mode is Mode.HISTORY else None
        if end > plan.position:
            self.lake.commit(plan, [plan.write(net)], truncated=net.truncated, position=end, moment=moment)

    def rows(self) -> Rows:
        table: pa.Table = self.lake.rows(T)
        rows = [tuple(row.values()) for row in table.to_pylist()]
        if self.mode is not Mode.HISTORY:
            return sorted(rows, key=repr)

        def moment(at: Any) -> Any:
            return None if at.year in (1900, 9999) else at

        return ranked([(*row[:3], moment(row[3]), moment(row[4]), row[5]) for row in rows])


def expected(case: Case, mode: Mode) -> Rows:
    rows = [value(row) for row in getattr(case, mode)]
    return ranked(rows) if mode is Mode.HISTORY else sorted(rows, key=repr)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_mode(case: Case, connection: psycopg.Connection[Any]) -> None:
    source = Source(connection)
    source.run(case.copied)
    for statements in case.transactions:
        source.run(statements)
    first, rest = source.transactions[:1], source.transactions[1:]
    assert source.select() == expected(case, Mode.CLONE), "the case says what the source itself holds"
    for mode in FOLDS:
        wanted = expected(case, mode)
        together, apart, replayed = (Follower(source.schema, mode) for _ in range(3))
        for follower in (together, apart, replayed):
            follower.apply(first, 200)
        together.apply(rest, 10_000)
        assert together.rows() == wanted, f"{mode}, in one batch"
        for number, transaction in enumerate(rest, start=2):
            apart.apply([transaction], (number + 1) * 100)
        assert apart.rows() == wanted, f"{mode}, a batch for each transaction"
        for number in range(2, len(rest) + 2):
            replayed.apply(source.transactions, (number + 1) * 100)
        replayed.apply(source.transactions, 10_000)
        assert replayed.rows() == wanted, f"{mode}, every batch again from the start"
