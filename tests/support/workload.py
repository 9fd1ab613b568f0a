"""A seeded random workload for a Postgres database: every kind of change that a clone must follow.

Tables and values are in work_tables.py. Each worker has its own connection and its own random numbers, so one worker
(or several that take turns) gives the same database for the same seed. Workers on threads meet in the same rows:
deadlocks and other refusals roll a transaction back, which is a part of the workload as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from random import Random
from threading import Event, Thread

import psycopg
from psycopg import errors

from work_tables import TABLES, Value, WorkTable

_REFUSALS = (
    errors.DeadlockDetected,
    errors.UniqueViolation,
    errors.SerializationFailure,
    errors.LockNotAvailable,
)
_SPARE_KEY = 10_000


def create_tables(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for table in TABLES:
            for statement in table.statements:
                connection.execute(statement.encode())


class Worker:
    """One connection's stream of transactions. `counts` says what was done, so that a test can see it was not idle."""

    def __init__(self, url: str, seed: str, number: int, bulk_rows: int, truncated_alone: frozenset[str]) -> None:
        self._random = Random(f"{seed}/{number}")
        self._number = number
        self._bulk_rows, self._truncated_alone, self._is_alone = bulk_rows, truncated_alone, False
        self._next_bulk = number * 10_000_000
        self.connection = psycopg.connect(url, autocommit=True)
        self.connection.execute("set lock_timeout = '5s'")
        self.counts: Counter[str] = Counter()
        self._operations: tuple[tuple[Callable[[WorkTable], None], int], ...] = (
            (self._insert, 30),
            (self._insert_many, 6),
            (self._upsert, 10),
            (self._update, 30),
            (self._update_several, 4),
            (self._change_key, 9),
            (self._swap_keys, 4),
            (self._delete, 12),
            (self._delete_and_insert, 5),
            (self._insert_update_delete, 4),
            (self._bulk, 2),
            (self._truncate, 1),
        )

    def close(self) -> None:
        self.connection.close()

    def transaction(self) -> None:
        """One transaction of random size and fate."""
        size = self._random.choice((1, 1, 1, 2, 3, 5, 8, 20))
        rolled_back = self._random.random() < 0.08
        try:
            with self.connection.transaction(force_rollback=rolled_back):
                for _ in range(size):
                    if self._random.random() < 0.15:
                        self._is_alone = False
                        self._savepoint()
                    else:
                        self._is_alone = size == 1
                        self._operation()
        except _REFUSALS as refusal:
            self.counts[type(refusal).__name__] += 1
        else:
            self.counts["rolled back" if rolled_back else "committed"] += 1

    def bulk_transaction(self, table: WorkTable, rows: int) -> None:
        """One transaction of that many inserted rows, and updates and deletes among them."""
        with self.connection.transaction():
            start = self._insert_bulk(table, rows)
            if table.unique:
                self._change_bulk(table, start, rows)

    def _savepoint(self) -> None:
        with self.connection.transaction(force_rollback=self._random.random() < 0.4):
            for _ in range(self._random.randint(1, 3)):
                self._operation()
        self.counts["savepoint"] += 1

    def _operation(self) -> None:
        table = self._random.choice(TABLES)
        if table.unique:
            (operation,) = self._random.choices(
                [operation for operation, _ in self._operations], [weight for _, weight in self._operations]
            )
        else:
            (operation,) = self._random.choices(
                (self._insert, self._insert_many, self._bulk, self._truncate), (60, 20, 3, 1)
            )
        operation(table)
        self.counts[operation.__name__.removeprefix("_")] += 1

    def _key(self, table: WorkTable) -> tuple[str, ...]:
        return table.key_of(self._random.randrange(table.size))

    def _row(self, table: WorkTable) -> list[Value]:
        return [*self._key(table), *(table.value(column, self._random) for column in table.columns)]

    def _run(self, statement: str, parameters: Sequence[Value]) -> int:
        return self.connection.execute(statement.encode(), parameters).rowcount

    def _insert_rows(self, table: WorkTable, rows: list[list[Value]], conflict: str) -> None:
        columns = {**table.key, **table.columns}
        one = "(" + ", ".join(f"%s::{_cast(type_name)}" for type_name in columns.values()) + ")"
        statement = (
            f"insert into {table.name} ({', '.join(map(_escaped, columns))}) values {', '.join([one] * len(rows))}"
        )
        self._run(statement + conflict, [value for row in rows for value in row])

    def _insert(self, table: WorkTable) -> None:
        self._insert_rows(table, [self._row(table)], " on conflict do nothing" if table.unique else "")

    def _insert_many(self, table: WorkTable) -> None:
        rows = [self._row(table) for _ in range(self._random.randint(2, 12))]
        self._insert_rows(table, rows, " on conflict do nothing" if table.unique else "")

    def _upsert(self, table: WorkTable) -> None:
        column = _escaped(self._random.choice(list(table.columns)))
        conflict = f" on conflict ({', '.join(map(_escaped, table.key))}) do update set {column} = excluded.{column}"
        self._insert_rows(table, [self._row(table)], conflict)

    def _assignments(self, table: WorkTable) -> tuple[str, list[Value]]:
        names = self._random.sample(list(table.columns), self._random.randint(1, min(3, len(table.columns))))
        text = ", ".join(f"{_escaped(name)} = %s::{_cast(table.columns[name])}" for name in names)
        return text, [table.value(name, self._random) for name in names]

    def _update(self, table: WorkTable) -> None:
        text, values = self._assignments(table)
        self._run(f"update {table.name} set {text} where {_match(table)}", [*values, *self._key(table)])

    def _update_several(self, table: WorkTable) -> None:
        text, values = self._assignments(table)
        first = _escaped(next(iter(table.key)))
        self._run(
            f"update {table.name} set {text} where hashtext({first}::text) %% 7 = %s::int "
            f"and {first}::text not like '%%000%%' and {first}::text not like 'bulk%%'",
            [*values, str(self._random.randint(-3, 3))],
        )

    def _move(self, table: WorkTable, old: tuple[str, ...], new: tuple[str, ...]) -> int:
        keys = ", ".join(f"{_escaped(name)} = %s::{type_name}" for name, type_name in table.key.items())
        condition = f"{_match(table)} and not exists (select from {table.name} where {_match(table)})"
        return self._run(f"update {table.name} set {keys} where {condition}", [*new, *old, *new])

    def _change_key(self, table: WorkTable) -> None:
        self._move(table, self._key(table), self._key(table))

    def _swap_keys(self, table: WorkTable) -> None:
        one, other, spare = self._key(table), self._key(table), table.key_of(_SPARE_KEY + self._number)
        if one != other and self._move(table, one, spare):
            self._move(table, other, one)
            self._move(table, spare, other)
            self._move(table, spare, one)

    def _delete(self, table: WorkTable) -> None:
        self._run(f"delete from {table.name} where {_match(table)}", self._key(table))

    def _delete_and_insert(self, table: WorkTable) -> None:
        row = self._row(table)
        self._run(f"delete from {table.name} where {_match(table)}", row[: len(table.key)])
        self._insert_rows(table, [row], " on conflict do nothing")

    def _insert_update_delete(self, table: WorkTable) -> None:
        row = self._row(table)
        key = row[: len(table.key)]
        self._insert_rows(table, [row], " on conflict do nothing")
        text, values = self._assignments(table)
        self._run(f"update {table.name} set {text} where {_match(table)}", [*values, *key])
        self._run(f"delete from {table.name} where {_match(table)}", key)

    def _bulk(self, table: WorkTable) -> None:
        rows = self._random.randint(1, self._bulk_rows)
        start = self._insert_bulk(table, rows)
        if table.unique:
            self._change_bulk(table, start, rows)

    def _insert_bulk(self, table: WorkTable, rows: int) -> int:
        start = self._next_bulk
        self._next_bulk += rows
        statement = (
            f"insert into {table.name} ({', '.join(map(_escaped, table.bulk))}) "
            f"select {', '.join(map(_escaped, table.bulk.values()))} from generate_series(%s::int, %s::int) g"
        )
        self._run(statement, [str(start), str(start + rows - 1)])
        self.counts["bulk rows"] += rows
        return start

    def _change_bulk(self, table: WorkTable, start: int, rows: int) -> None:
        """Updates one half of the rows just made and deletes a quarter, found by the keys they were given."""
        chosen = ", ".join(f"{table.bulk[name]}" for name in table.key)
        keys = ", ".join(map(_escaped, table.key))
        span = "from generate_series(%s::int, %s::int) g where g %% {} = 0"
        source = f"({keys}) in (select {_escaped(chosen)} {span})"
        text, values = self._assignments(table)
        bounds: list[Value] = [str(start), str(start + rows - 1)]
        self._run(f"update {table.name} set {text} where {source.format(2)}", [*values, *bounds])
        self._run(f"delete from {table.name} where {source.format(4)}", bounds)

    def _truncate(self, table: WorkTable) -> None:
        others = self._random.sample(TABLES, 1) if self._random.random() < 0.3 else []
        names = {table.name, *(other.name for other in others)}
        if not self._is_alone:
            names -= self._truncated_alone
        if not names:
            return
        self._run(f"truncate {', '.join(sorted(names))}", [])


class Workload:
    """Several workers on one database. Tables in `truncated_alone`, by name, are truncated by transactions that do
    nothing else."""

    def __init__(
        self,
        url: str,
        seed: int | str,
        connections: int = 1,
        bulk_rows: int = 300,
        truncated_alone: Collection[str] = (),
    ) -> None:
        alone = frozenset(truncated_alone)
        self.workers = [Worker(url, str(seed), number, bulk_rows, alone) for number in range(connections)]

    def close(self) -> None:
        for worker in self.workers:
            worker.close()

    def __enter__(self) -> Workload:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take_turns(self, transactions: int) -> None:
        """Transactions one after another, on this thread: reproducible."""
        for number in range(transactions):
            self.workers[number % len(self.workers)].transaction()

    def run_together(self, transactions: int, stop: Event | None = None) -> None:
        """Every worker runs that many transactions at once with the others, or fewer when `stop` is set."""
        failures: list[BaseException] = []

        def work(worker: Worker) -> None:
            try:
                for _ in range(transactions):
                    if stop is not None and stop.is_set():
                        return
                    worker.transaction()
            except psycopg.Error as failure:
                failures.append(failure)

        threads = [Thread(target=work, args=(worker,)) for worker in self.workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    @property
    def counts(self) -> Counter[str]:
        return sum((worker.counts for worker in self.workers), Counter[str]())


def _cast(type_name: str) -> str:
    return type_name.removeprefix("large ")


def _escaped(sql: str) -> str:
    """A percent sign in a name or expression is no parameter."""
    return sql.replace("%", "%%")


def _match(table: WorkTable) -> str:
    return " and ".join(f"{_escaped(name)} = %s::{type_name}" for name, type_name in table.key.items())
