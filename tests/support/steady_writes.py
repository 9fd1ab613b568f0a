"""Steady writes into one table, and how old each change is when a destination has processed it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from databases import Database
from penstock.state.sql import find_store

TICK = 0.05  # seconds
UPDATED_AFTER = 20  # ticks, after which a tick's rows are updated
TABLE = "create table steady (id bigint primary key, n int, note text)"


class SteadyWrites:
    """Transactions of inserts and updates of `steady`, at a rate of changes per second."""

    def __init__(self, database: Database, state: Path, rate: int = 2_000) -> None:
        self._database, self._state, self._rows = database, state, round(rate * TICK / 2)
        self._tick = 0

    @property
    def rows(self) -> int:
        """How many there are."""
        return self._tick * self._rows

    def run(self, seconds: float, watched: Iterable[str] = ()) -> dict[str, list[float]]:
        """Write for so long. Return the ages, in seconds, of those transactions that each watched destination has
        processed by the end."""
        store = find_store(self._state)
        assert store is not None
        ages: dict[str, list[float]] = {name: [] for name in watched}
        pending: dict[str, deque[tuple[int, float]]] = {name: deque() for name in ages}
        began = time.monotonic()
        try:
            with self._database.connect() as connection:
                for number in range(round(seconds / TICK)):
                    time.sleep(max(0.0, began + number * TICK - time.monotonic()))
                    first, old = self.rows, (self._tick - UPDATED_AFTER) * self._rows
                    with connection.transaction():
                        connection.execute(
                            "insert into steady select g, 0, repeat(md5(g::text), 4) "
                            "from generate_series(%s::bigint, %s) g",
                            (first, first + self._rows - 1),
                        )
                        connection.execute(
                            "update steady set n = n + 1 where id between %s and %s", (old, old + self._rows - 1)
                        )
                    self._tick += 1
                    at = connection.execute("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
                    assert at is not None
                    for name, waiting in pending.items():
                        waiting.append((int(at[0]), time.monotonic()))
                        reached, now = store.processed(name) or 0, time.monotonic()
                        while waiting and waiting[0][0] <= reached:
                            ages[name].append(now - waiting.popleft()[1])
        finally:
            store.close()
        return ages
