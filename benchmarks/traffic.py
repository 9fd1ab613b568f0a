"""Steady traffic: small transactions of inserts and updates, into one table or many, at a rate of row changes.

With `keep` rows that old are deleted again, so that tables stay as large as they are.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

import psycopg

TICK_SECONDS = 0.05
UPDATED_AFTER = 10  # ticks, after which half of a tick's rows are updated


@dataclass(frozen=True)
class Committed:
    """A transaction: its position or one just behind it, when it was known to be committed, its newest key."""

    position: int
    at: float
    key: int


@dataclass
class Traffic:
    """`run` may be called again and again; it goes on where it was."""

    url: str
    names: list[str]
    rate: int
    keep: int | None = None  # rows
    reached: float = 0.0  # changes a second, of the last run
    cpu_seconds: float = 0.0  # that writing took in this process, in all
    _tick: int = 0
    _connection: psycopg.Connection[tuple[object, ...]] | None = field(default=None, repr=False)

    def __enter__(self) -> Traffic:
        self._connection = psycopg.connect(self.url, autocommit=True)
        for name in self.names:
            self._connection.execute(
                f"create table if not exists {name} (id bigint primary key, n int, note text, at timestamptz)".encode()
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._connection is not None
        self._connection.close()

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> dict[str, list[Committed]]:
        """Traffic for so long, or until that holds: what was committed, by table."""
        rows = self._rows
        changes = rows * len(self.names)
        each = changes / self.rate
        committed: dict[str, list[Committed]] = defaultdict(list)
        began, began_cpu, number = time.monotonic(), time.thread_time(), 0
        while (due := began + number * each) < began + seconds and not until():
            time.sleep(max(0.0, due - time.monotonic()))
            for name in self.names:
                committed[name].append(self._transaction(name, rows))
            self._tick, number = self._tick + 1, number + 1
        self.reached = number * changes / (time.monotonic() - began)
        self.cpu_seconds += time.thread_time() - began_cpu
        return dict(committed)

    @property
    def _rows(self) -> int:
        return max(2, round(self.rate * TICK_SECONDS / len(self.names)))

    def _transaction(self, name: str, rows: int) -> Committed:
        assert self._connection is not None
        updates = rows // 2 if self.keep is None else rows // 3
        inserts = rows - updates if self.keep is None else (rows - updates) // 2
        first = 1 + self._tick * inserts
        older = first - UPDATED_AFTER * inserts
        statement = (
            f"with changed as (update {name} set n = n + 1 where id between {older} and {older + updates - 1})"
            if self.keep is None
            else f"with changed as (update {name} set n = n + 1 where id between {older} and {older + updates - 1}), "
            f"gone as (delete from {name} where id < {first - self.keep})"
        )
        statement += (
            f" insert into {name} select g, 1, 'note ' || g, now() from generate_series({first}, {first + inserts - 1})"
            " g"
        )
        self._connection.execute(statement.encode())
        at = time.monotonic()
        row = self._connection.execute("select pg_current_wal_insert_lsn() - '0/0'").fetchone()
        assert row is not None
        return Committed(int(str(row[0])), at, first + inserts - 1)
