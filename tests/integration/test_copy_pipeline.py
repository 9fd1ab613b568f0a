"""The initial copy from outside: tables that come, go or are copied again. First copies: faults/test_copy_kills.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from databases import Database
from lake import Lake
from running import PipelineFactory, PipelineFile, await_condition, running

SMALL_RANGES = {"range_bytes": "64KiB", "discover_every": "300ms", "max_connections": 3}


def until(stop: Event, act: Callable[[], None]) -> None:
    while not stop.is_set():
        act()


def _deleted_by_somebody(lake: Lake) -> bool:
    """A foreign writer may lose a race against our compaction, and then tries again, as any writer does."""
    try:
        lake.sql("delete from lake.public.big where id <= 100")
    except Py4JJavaError as lost:
        if "ValidationException" not in str(lost):
            raise
        return False
    return True


def table_states(file: PipelineFile) -> dict[str, dict[str, Any]]:
    done = file.command("tables", "FILE", "--json")
    assert done.returncode == 0, done.stderr
    return {table["table"]: table for table in json.loads(done.stdout)["tables"]}


def test_tables_come_start_anew_and_go_while_others_stream(
    pipeline: PipelineFactory, postgres: Database, lake: Lake, full: bool
) -> None:
    """One is made and just appears; one is copied again, and readers see the old one or the new one; one is dropped."""
    rows = 300_000 if full else 5_000
    postgres.execute(
        "create table big (id int primary key, t text)",
        f"insert into big select n, 'x' || n from generate_series(1, {rows}) n",
        "create table other (id int primary key)",
    )
    file = pipeline(copy=SMALL_RANGES)
    with running(file) as run:
        postgres.execute(
            "create table second (id int primary key, t text)",
            "insert into second select n, 'x' from generate_series(1, 2000) n",
        )
        await_condition(lambda: table_states(file).get("public.second", {}).get("state") == "Ready", "Ready", 60, 0.5)
        postgres.execute("update second set t = 'y' where id <= 10", "insert into other values (1)")
        run.drain()
        lake.assert_equals(postgres, ["public.big", "public.second", "public.other"])
        await_condition(lambda: _deleted_by_somebody(lake), "somebody's mistake", 60, 1.0)
        assert lake.count("public.big") == rows - 100
        seen: set[int] = set()
        stop = Event()
        reader = Thread(target=until, args=(stop, lambda: seen.add(lake.count("public.big"))))
        reader.start()
        try:
            asked = file.command("resync", "FILE", "public.big")
            assert asked.returncode == 0, asked.stderr
            postgres.execute("insert into other values (2)", "drop table second")
            await_condition(lambda: rows in seen, "the new table", 180)
        finally:
            stop.set()
            reader.join()
        assert seen == {rows - 100, rows}, "never empty, never half"
        postgres.execute("update big set t = 'after' where id = 1")
        run.drain()
        lake.assert_equals(postgres, ["public.big", "public.other"])
        await_condition(lambda: table_states(file)["public.second"]["state"] == "Errored", "marked", 60, 0.5)
        assert "no longer at the source" in table_states(file)["public.second"]["error"]
        assert lake.count("public.second") == 2000, "its destination is kept"


REWRITES = (
    "vacuum full slow",
    "cluster slow using slow_pkey",
    "truncate slow",
    "alter table slow alter n type int using n + 1",
)


@pytest.mark.full  # in CI without Spark: tests/integration/test_copy_resumed.py
@pytest.mark.parametrize("rewrite", REWRITES)
def test_a_rewrite_in_the_middle_of_a_copy(
    pipeline: PipelineFactory, postgres: Database, lake: Lake, rewrite: str
) -> None:
    postgres.execute(
        "create table slow (id int primary key, n int)",
        "insert into slow select n, n from generate_series(1, 20000) n",
    )
    file = pipeline(copy={**SMALL_RANGES, "max_connections": 1, "max_rows_per_second": 20000})
    with running(file) as run:
        await_condition(lambda: (table_states(file)["public.slow"]["copy"] or {}).get("rows", 0) > 0, "begun", 60, 0.2)
        postgres.execute(rewrite, "insert into slow values (0, 0)")
        run.drain()
        lake.assert_equals(postgres, ["public.slow"])
