"""A large table joins while others stream: it arrives equal, and the others hardly notice. In full size only."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from threading import Event, Thread

import pytest

from databases import Database
from lake import Lake
from penstock.model.table import TableId
from penstock.model.table_state import State
from penstock.state.sql import find_store
from running import PipelineFactory, PipelineFile, await_condition, running

TABLES = [f"streamed_{number}" for number in range(5)]
ADDED = TableId("public", "added")
CHANGES_A_SECOND = 2000
ADDED_ROWS = 2_000_000
KEYS = 20_000
TICK = 0.1
CALM_SECONDS = 20.0
MOST_LAG = 5.0


@contextmanager
def streaming_changes(database: Database) -> Iterator[list[float]]:
    """Upserts of all five tables, ten times a second; gives the seconds by which the writer itself was late."""
    stop, late = Event(), [0.0]
    each = round(CHANGES_A_SECOND * TICK / len(TABLES))

    def write() -> None:
        with database.connect() as connection:
            due, number = time.monotonic(), 0
            while not stop.is_set():
                for table in TABLES:
                    connection.execute(
                        f"insert into {table} select (n * 7919) % {KEYS}, n, repeat('x', 100) "
                        f"from generate_series({number}, {number + each - 1}) n "
                        "on conflict (id) do update set n = excluded.n".encode()
                    )
                number, due = number + each, due + TICK
                late[0] = max(late[0], time.monotonic() - due)
                stop.wait(max(0.0, due - time.monotonic()))

    thread = Thread(target=write)
    thread.start()
    try:
        yield late
    finally:
        stop.set()
        thread.join()


class Lag:
    """The age of the newest change that each streaming table shows, as the state store has it; the worst counts."""

    def __init__(self, file: PipelineFile) -> None:
        store = find_store(file.state)
        assert store is not None
        self._store = store
        self.worst = 0.0

    def known(self) -> set[str]:
        return {table.name for table, made in self._store.progress("lake").items() if made.commit_time is not None}

    def look(self) -> None:
        progress = self._store.progress("lake")
        for name in TABLES:
            newest = progress[TableId("public", name)].commit_time
            assert newest is not None
            self.worst = max(self.worst, (datetime.now(UTC) - newest).total_seconds())

    def state_of(self, table: TableId) -> State | None:
        status = self._store.table_status("lake").get(table)
        return None if status is None else status.state

    def close(self) -> None:
        self._store.close()


@pytest.mark.full
def test_a_table_joins_while_five_others_stream(
    pipeline: PipelineFactory, postgres: Database, lake: Lake, record_property: Callable[[str, object], None]
) -> None:
    postgres.execute(
        *(f"create table {name} (id int primary key, n int, t text)" for name in TABLES),
        "create schema later",
        "create table later.added (id bigint primary key, a int, t text, price numeric(12,2), at timestamptz)",
        "insert into later.added select n, n % 1000, 'row ' || n, n / 100.0, timestamptz '2024-01-01' + n * interval "
        f"'1 s' from generate_series(1, {ADDED_ROWS}) n",
    )
    lake_as_it_comes = {"name": "lake", "type": "iceberg", "warehouse": "./warehouse"}
    file = pipeline(
        copy={"discover_every": "500ms"},
        batch={"max_age": "500ms"},
        log={"segment_age": "200ms", "segment_bytes": "16MiB"},
        destinations=[lake_as_it_comes],
    )
    with running(file) as run:
        with streaming_changes(postgres) as late:
            run.drain()
            calm, busy = Lag(file), Lag(file)
            await_condition(lambda: calm.known() == set(TABLES), "all five to stream", 60)
            began = time.monotonic()
            while time.monotonic() < began + CALM_SECONDS:
                calm.look()
                time.sleep(TICK)
            postgres.execute("alter table later.added set schema public")
            asked = time.monotonic()

            def arrived() -> bool:
                busy.look()
                return busy.state_of(ADDED) is State.READY

            await_condition(arrived, "the table to join", 600, TICK)
            took = time.monotonic() - asked
        calm.close()
        busy.close()
        figures = (
            f"worst lag {calm.worst:.1f} s before, {busy.worst:.1f} s while {ADDED_ROWS:,} rows came in {took:.0f} s; "
            f"the writer was late by {late[0]:.1f} s"
        )
        record_property("lag", figures)
        sys.stderr.write(f"{figures}\n")  # with -s
        postgres.execute("update added set a = -a where id % 1000 = 0", "delete from added where id % 1001 = 0")
        run.drain()
        lake.assert_equals(postgres, [str(ADDED), *(f"public.{name}" for name in TABLES)])
    assert busy.worst <= calm.worst + MOST_LAG, figures
