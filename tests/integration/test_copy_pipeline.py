"""The initial copy from outside: what was there before, what happens meanwhile, tables that come, go or start anew."""

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
from workload import Workload, create_tables

ODD = '"Sélect ""x"""'
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


def test_rows_from_before_arrive_while_everything_goes_on_changing(
    pipeline: PipelineFactory, postgres: Database, lake: Lake
) -> None:
    """All work tables (every type, every kind of key, one without), in many ranges, under a workload."""
    create_tables(postgres.url)
    postgres.execute("create table empty (id int primary key)")
    with Workload(postgres.url, seed=31, connections=3, bulk_rows=500) as workload:
        workload.take_turns(40)
        file = pipeline(copy=SMALL_RANGES)
        stop = Event()
        busy = Thread(target=until, args=(stop, lambda: workload.take_turns(2)))
        busy.start()
        try:
            with running(file) as run:
                run.await_text("table joined")
                stop.set()
                busy.join()
                run.drain()
                lake.assert_equals(postgres)
                assert lake.count("public.empty") == 0
        finally:
            stop.set()
            busy.join()


def test_partitioned_and_odd_tables_are_copied(pipeline: PipelineFactory, postgres: Database, lake: Lake) -> None:
    postgres.execute(
        "create table measured (at date, n int, primary key (at, n)) partition by range (at)",
        "create table measured_1 partition of measured for values from ('2020-01-01') to ('2021-01-01')",
        "create table measured_2 partition of measured for values from ('2021-01-01') to ('2022-01-01')",
        "insert into measured select date '2020-06-01' + n, n from generate_series(1, 500) n",
        f'create table {ODD} (id int primary key, "Gröup" text)',
        f"insert into {ODD} select n, 'ä' || n from generate_series(1, 50) n",
        "create table parent (id int primary key)",
        "create table child () inherits (parent)",
        "alter table child add primary key (id)",
        "insert into parent values (1)",
        "insert into child values (2)",
    )
    file = pipeline(copy=SMALL_RANGES)
    file.run_once()
    assert lake.count("public.measured") == 500
    assert lake.count("public.child") == 1
    assert [row[0] for row in lake.sql("select id from lake.public.parent")] == [1]
    postgres.execute(
        "update measured set n = n + 1000 where n < 10",
        f"delete from {ODD} where id > 40",
    )
    file.run_once()
    lake.assert_equals(postgres, ["public.measured", f"public.{ODD}"])


def test_a_table_made_while_it_runs_just_appears_and_one_that_goes_is_marked(
    pipeline: PipelineFactory, postgres: Database, lake: Lake
) -> None:
    postgres.execute("create table first (id int primary key)", "insert into first values (1)")
    file = pipeline(copy=SMALL_RANGES)
    with running(file) as run:
        postgres.execute(
            "create table second (id int primary key, t text)",
            "insert into second select n, 'x' from generate_series(1, 2000) n",
        )
        await_condition(lambda: table_states(file).get("public.second", {}).get("state") == "Ready", "Ready", 60, 0.5)
        postgres.execute("update second set t = 'y' where id <= 10", "insert into first values (2)")
        run.drain()
        lake.assert_equals(postgres, ["public.first", "public.second"])
        postgres.execute("drop table second")
        await_condition(lambda: table_states(file)["public.second"]["state"] == "Errored", "marked", 60, 0.5)
        assert "no longer at the source" in table_states(file)["public.second"]["error"]
        assert lake.count("public.second") == 2000, "its destination is kept"


def test_resync_shows_the_old_table_or_the_new_one(pipeline: PipelineFactory, postgres: Database, lake: Lake) -> None:
    postgres.execute(
        "create table big (id int primary key, t text)",
        "insert into big select n, 'x' || n from generate_series(1, 5000) n",
        "create table other (id int primary key)",
    )
    file = pipeline(copy=SMALL_RANGES)
    with running(file) as run:
        run.drain()
        await_condition(lambda: _deleted_by_somebody(lake), "somebody's mistake", 60, 1.0)
        assert lake.count("public.big") == 4900
        seen: set[int] = set()
        stop = Event()
        reader = Thread(target=until, args=(stop, lambda: seen.add(lake.count("public.big"))))
        reader.start()
        try:
            asked = file.command("resync", "FILE", "public.big")
            assert asked.returncode == 0, asked.stderr
            postgres.execute("insert into other values (1)")
            await_condition(lambda: 5000 in seen, "the new table", 90)
        finally:
            stop.set()
            reader.join()
        assert seen == {4900, 5000}, "never empty, never half"
        postgres.execute("update big set t = 'after' where id = 1")
        run.drain()
        lake.assert_equals(postgres, ["public.big", "public.other"])


REWRITES = [
    "vacuum full slow",
    pytest.param("cluster slow using slow_pkey", marks=pytest.mark.full),
    "truncate slow",
]


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


def test_the_connections_end_in_the_middle_of_a_copy(pipeline: PipelineFactory, postgres: Database, lake: Lake) -> None:
    postgres.execute(
        "create table slow (id int primary key, n int)",
        "insert into slow select n, n from generate_series(1, 20000) n",
    )
    file = pipeline(copy={**SMALL_RANGES, "max_connections": 1, "max_rows_per_second": 20000})
    with running(file) as run:
        await_condition(lambda: (table_states(file)["public.slow"]["copy"] or {}).get("rows", 0) > 0, "begun", 60, 0.2)
        ended = postgres.value(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name = 'penstock copy'"
        )
        assert int(str(ended)) > 0
        postgres.execute("update slow set n = -n where id % 3 = 0", "delete from slow where id % 7 = 0")
        await_condition(lambda: table_states(file)["public.slow"]["state"] == "Ready", "Ready", 90, 0.5)
        run.drain()
        assert "copy goes on" in run.text(), "finished ranges are not read again"
        lake.assert_equals(postgres, ["public.slow"])
