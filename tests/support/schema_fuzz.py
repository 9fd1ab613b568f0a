"""Random sequences of DDL and DML over tables that a pipeline follows; Postgres says what is legal, and what is so."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg

Connection = psycopg.Connection[Any]
TYPES = ("int", "bigint", "text", "varchar(30)", "numeric(8,2)", "boolean", "date", "float4", "jsonb", "timestamptz")
LONG = "repeat(md5(random()::text), 120)"  # stays in TOAST, so that updates do not send it
VALUES = {
    "int4": "(random() * 1000)::int",
    "int8": "(random() * 1000000000000)::bigint",
    "text": "(array['x' || (random() * 1000)::int, " + LONG + "])[1 + floor(random() * 2)::int]",
    "varchar": "'v' || (random() * 1000)::int",
    "numeric": "round((random() * 1000)::numeric, 2)",
    "bool": "random() < 0.5",
    "date": "date '2024-01-01' + (random() * 300)::int",
    "float4": "(random() * 100)::float4",
    "float8": "random() * 100",
    "jsonb": "jsonb_build_object('n', (random() * 10)::int)",
    "timestamptz": "timestamptz '2024-01-01' + random() * interval '300 days'",
}


@dataclass
class Fuzzer:
    """One table and what has been done to it, for whoever has to find out why it differs."""

    name: str
    random: random.Random
    history: list[str] = field(default_factory=list)
    columns_made: int = 0

    def create(self, connection: Connection) -> None:
        self._do(
            connection, f"create table {self.name} (id int primary key, a text, n int, v varchar(30), d numeric(8,2))"
        )
        self._do(connection, f"alter table {self.name} alter a set storage external")
        for _ in range(8):
            self.insert(connection)

    def turn(self, connection: Connection) -> None:
        """One statement, or several in one transaction. What Postgres refuses is as if it had not been tried."""
        if self.random.random() < 0.1:
            self._try(connection, lambda: self._do(connection, f"vacuum full {self.name}"))
            return
        if self.random.random() < 0.5:
            self._try(connection, lambda: self.step(connection))
            return
        with connection.transaction():
            self.history.append("begin")
            for _ in range(self.random.randint(2, 6)):
                self._try(connection, lambda: self.step(connection))
            self.history.append("commit")

    def try_insert(self, connection: Connection) -> None:
        """A row, if Postgres takes it."""
        self._try(connection, lambda: self.insert(connection))

    def try_update(self, connection: Connection) -> None:
        """Some rows change, if Postgres lets them."""
        self._try(connection, lambda: self.update(connection))

    def _try(self, connection: Connection, act: Callable[[], None]) -> None:
        before = len(self.history)
        try:
            if connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS:
                with connection.transaction():
                    act()
            else:
                act()
        except psycopg.Error as refused:
            self.history[before:] = [f"-- {line}: {type(refused).__name__}" for line in self.history[before:]]

    def step(self, connection: Connection) -> None:
        rows = (self.insert, self.insert, self.update, self.update, self.update, self.delete, self.move)
        structure = (
            *(
                self.add,
                self.add,
                self.add_default,
                self.add_computed,
                self.drop,
                self.rename,
                self.rename_key,
                self.swap,
            ),
            *(
                self.again,
                self.nullable,
                self.widen,
                self.retype,
                self.compute,
                self.identity,
                self.rekey,
                self.truncate,
            ),
            *(self.anew, self.elsewhere, self.unkey),
        )
        self.random.choice(rows if self.random.random() < 0.6 else structure)(connection)

    def insert(self, connection: Connection) -> None:
        columns = self._columns(connection)
        names = ", ".join(f'"{name}"' for name, _ in columns)
        key = f"(select coalesce(max({self._key(connection)}), 0) + 1 from {self.name})"
        values = ", ".join(key if name == self._key(connection) else VALUES[type] for name, type in columns)
        self._do(connection, f"insert into {self.name} ({names}) values ({values})")

    def update(self, connection: Connection) -> None:
        name, type = self.random.choice(self.other_columns(connection))
        value = "null" if self.random.random() < 0.1 else VALUES[type]
        some = f'"{self._key(connection)}" % 3 = {self.random.randint(0, 2)}'
        self._do(connection, f'update {self.name} set "{name}" = {value} where {some}')

    def delete(self, connection: Connection) -> None:
        self._do(
            connection, f'delete from {self.name} where "{self._key(connection)}" % 7 = {self.random.randint(0, 6)}'
        )

    def move(self, connection: Connection) -> None:
        """Rows take other keys."""
        key = self._key(connection)
        self._do(
            connection, f'update {self.name} set "{key}" = "{key}" + 1000 where "{key}" % 5 = 1 and "{key}" < 9000'
        )

    def truncate(self, connection: Connection) -> None:
        if self.random.random() < 0.3:
            self._do(connection, f"truncate {self.name}")

    def add(self, connection: Connection) -> None:
        self._do(connection, f"alter table {self.name} add {self._new()} {self.random.choice(TYPES)}")

    def add_default(self, connection: Connection) -> None:
        self._do(connection, f"alter table {self.name} add {self._new()} text not null default 'before'")

    def add_computed(self, connection: Connection) -> None:
        self._do(connection, f"alter table {self.name} add {self._new()} text default md5(random()::text)")

    def drop(self, connection: Connection) -> None:
        name, _ = self.random.choice(self.other_columns(connection))
        self._do(connection, f'alter table {self.name} drop "{name}"')

    def rename(self, connection: Connection) -> None:
        name, _ = self.random.choice(self.other_columns(connection))
        self._do(connection, f'alter table {self.name} rename "{name}" to {self._new()}')

    def rename_key(self, connection: Connection) -> None:
        self._do(connection, f'alter table {self.name} rename "{self._key(connection)}" to {self._new()}')

    def swap(self, connection: Connection) -> None:
        names = [name for name, _ in self.other_columns(connection)]
        if len(names) < 2:
            return
        first, second = self.random.sample(names, 2)
        for before, after in ((first, "between"), (second, first), ("between", second)):
            self._do(connection, f'alter table {self.name} rename "{before}" to "{after}"')

    def again(self, connection: Connection) -> None:
        """A column goes, and another of its name comes."""
        name, _ = self.random.choice(self.other_columns(connection))
        self._do(connection, f'alter table {self.name} drop "{name}"')
        self._do(connection, f'alter table {self.name} add "{name}" {self.random.choice(TYPES)}')

    def nullable(self, connection: Connection) -> None:
        name, _ = self.random.choice(self.other_columns(connection))
        self._do(connection, f'alter table {self.name} alter "{name}" {self.random.choice(("set", "drop"))} not null')

    def widen(self, connection: Connection) -> None:
        wider = {"int4": "bigint", "varchar": "text", "numeric": "numeric(20,2)", "float4": "float8"}
        fitting = [(name, wider[type]) for name, type in self.other_columns(connection) if type in wider]
        name, type = self.random.choice(fitting or [("none", "int")])
        self._do(connection, f'alter table {self.name} alter "{name}" type {type}')

    def retype(self, connection: Connection) -> None:
        name, _ = self.random.choice(self.other_columns(connection))
        self._do(connection, f'alter table {self.name} alter "{name}" type text using "{name}"::text')

    def compute(self, connection: Connection) -> None:
        texts = [name for name, type in self.other_columns(connection) if type == "text"]
        name = self.random.choice(texts or ["none"])
        self._do(connection, f'alter table {self.name} alter "{name}" type text using \'was \' || "{name}"')

    def identity(self, connection: Connection) -> None:
        self._do(connection, f"alter table {self.name} replica identity {self.random.choice(('full', 'default'))}")

    def rekey(self, connection: Connection) -> None:
        """The same column becomes key again under a new index, or a longer key."""
        names = [name for name, type in self.other_columns(connection) if type in ("int4", "int8")]
        longer = f', "{self.random.choice(names)}"' if names and self.random.random() < 0.5 else ""
        key, constraint = self._key(connection), self._constraint(connection)
        with connection.transaction():
            if constraint is not None:
                self._do(connection, f'alter table {self.name} drop constraint "{constraint}"')
            self._do(connection, f'alter table {self.name} add primary key ("{key}"{longer})')

    def unkey(self, connection: Connection) -> None:
        """No key for a while, and changes that nobody can place without one."""
        constraint = self._constraint(connection)
        if constraint is not None and self.random.random() < 0.3:
            self._do(connection, f"alter table {self.name} replica identity full")
            self._do(connection, f'alter table {self.name} drop constraint "{constraint}"')
            self.update(connection)

    def settle(self, connection: Connection) -> None:
        """A last row; and if it has no key by now, it gets one, by which it comes back."""
        self.insert(connection)
        if self._constraint(connection) is None:
            self._do(connection, f'alter table {self.name} add primary key ("{self._key(connection)}")')

    def anew(self, connection: Connection) -> None:
        if self.random.random() < 0.3:
            self._do(connection, f"drop table {self.name}")
            self.create(connection)

    def elsewhere(self, connection: Connection) -> None:
        """The table has another name for a while, and changes under it."""
        if self.random.random() < 0.3:
            self._do(connection, f"alter table {self.name} rename to {self.name}_away")
            self._do(
                connection,
                f"delete from {self.name}_away where true and ctid in (select ctid from {self.name}_away limit 1)",
            )
            self._do(connection, f"alter table {self.name}_away rename to {self.name}")

    def _do(self, connection: Connection, statement: str) -> None:
        self.history.append(statement)
        connection.execute(statement.encode())

    def _new(self) -> str:
        self.columns_made += 1
        return f"c{self.columns_made}"

    def _columns(self, connection: Connection) -> list[tuple[str, str]]:
        return connection.execute(
            "select attname::text, typname::text from pg_attribute a join pg_type t on t.oid = atttypid "
            "where attrelid = %s::regclass and attnum > 0 and not attisdropped order by attnum",
            (self.name,),
        ).fetchall()

    def _constraint(self, connection: Connection) -> str | None:
        """The name of its primary key."""
        found = connection.execute(
            "select conname::text from pg_constraint where conrelid = %s::regclass and contype = 'p'", (self.name,)
        ).fetchone()
        return None if found is None else str(found[0])

    def _key(self, connection: Connection) -> str:
        return self._columns(connection)[0][0]

    def other_columns(self, connection: Connection) -> list[tuple[str, str]]:
        return self._columns(connection)[1:] or [("none", "int4")]
