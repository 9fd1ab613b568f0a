"""A table at a real server, read from its slot message by message, and tables in memory that follow it in a mode: the
way of a change without a pipeline and without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pyarrow as pa

from mode_cases import STORAGE, TABLE
from penstock.demo.server import PostgresServer
from penstock.destinations.memory import MemoryDestination
from penstock.fold.clone import fold_append, fold_clone
from penstock.fold.envelope import fold_events
from penstock.fold.history import fold_history
from penstock.fold.layout import layout_of
from penstock.fold.net_effect import NetEffect
from penstock.model.change import RAW_SCHEMA, RawChanges
from penstock.model.feed import Feed, Mode
from penstock.model.table import Column, ColumnType, TableId, TableSchema

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
T = TableId("public", "t")

RawRow = dict[str, Any]
FOLDS: dict[Mode, Callable[..., NetEffect]] = {
    Mode.CLONE: fold_clone,
    Mode.APPEND: fold_append,
    Mode.HISTORY: fold_history,
    Mode.EVENTS: fold_events,
}


@contextmanager
def database_with_slot(server: PostgresServer, name: str) -> Iterator[psycopg.Connection[Any]]:
    """A database with a publication of everything and a slot, both called `name` as it is."""
    with psycopg.connect(server.url(), autocommit=True) as session:
        session.execute(f"create database {name}".encode())
    with psycopg.connect(server.url(name), autocommit=True) as session:
        session.execute(f"create publication {name} for all tables".encode())
        session.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))
        yield session
        session.execute("select pg_drop_replication_slot(%s)", (name,))


class SourceTable:
    """`t (id int primary key, word text, large text)`, made anew, `large` stored out of line."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        for statement in ("drop table if exists {t}", TABLE, STORAGE):
            connection.execute(statement.format(t=T.name).encode())
        (relation,) = connection.execute("select 't'::regclass::oid::int8").fetchone() or (0,)
        columns = (
            Column("id", ColumnType(23, "int4"), False, 1),
            Column("word", ColumnType(25, "text"), True, 2),
            Column("large", ColumnType(25, "text"), True, 3),
        )
        self.schema = TableSchema(T, relation, columns, ("id",))
        self.sent()

    def run(self, statements: Sequence[str]) -> list[RawRow]:
        """One transaction; gives what the slot says of it."""
        with self._connection.transaction():
            for statement in statements:
                self._connection.execute(statement.format(t=T.name).encode())
        return self.sent()

    def sent(self) -> list[RawRow]:
        """The slot's changes since the last call, with the positions and commit times that Postgres says."""
        rows: list[RawRow] = []
        commit_position, at = 0, EPOCH
        messages = self._connection.execute(
            "select data from pg_logical_slot_get_binary_changes(current_database(), null, null, "
            "'proto_version', '1', 'publication_names', current_database())"
        ).fetchall()
        ordinal = 0
        for (message,) in messages:
            if message[:1] == b"B":
                commit_position, ordinal = int.from_bytes(message[1:9], "big"), 0
                at = EPOCH + timedelta(microseconds=int.from_bytes(message[9:17], "big"))
            elif message[:1] in (b"I", b"U", b"D", b"T"):
                row = {
                    "commit_position": commit_position,
                    "ordinal": ordinal,
                    "change_position": commit_position,
                    "transaction": 1,
                }
                rows.append({**row, "commit_time": at, "op": message[0], "data": message})
                ordinal += 1
        return rows

    def select(self) -> list[dict[str, Any]]:
        """What it holds now."""
        rows = self._connection.execute("select id, word, large from t").fetchall()
        return [dict(zip(("id", "word", "large"), row, strict=True)) for row in rows]


class Follower:
    """A table in memory that follows the source in one mode."""

    def __init__(self, schema: TableSchema, mode: Mode) -> None:
        self.schema, self.mode = schema, mode
        self._lake = MemoryDestination()
        self._lake.ensure_table(T, schema, "shop", 0, layout=layout_of(Feed(T, T, T, mode)))

    def apply(self, changes: Sequence[RawRow], *, killed: bool = False) -> None:
        """One batch; what the table has already is skipped. With `killed`, its driver dies when the batch is written
        and not committed; the next one knows what is committed, and nothing else."""
        plan = self._lake.plan(T, "shop")
        since = {"since": plan.moment} if self.mode is Mode.HISTORY else {}
        raw = RawChanges(self.schema, pa.RecordBatch.from_pylist(list(changes), schema=RAW_SCHEMA))
        net = FOLDS[self.mode]([raw], position=plan.position, **since)
        parts = [plan.write(net)]
        if killed:
            self._lake = MemoryDestination(store=self._lake.store)
            return
        moment = max(plan.moment, net.last_commit_time) if self.mode is Mode.HISTORY else None
        end = max([plan.position, *(row["commit_position"] + 1 for row in changes)])
        self._lake.commit(plan, parts, truncated=net.truncated, position=end, moment=moment)

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._lake.rows(T).to_pylist()
        return rows
