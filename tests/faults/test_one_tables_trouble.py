"""One table's trouble in a pipeline that runs: the others go on, the table says why, and comes back by the way out.

And the end of Spark's Java process, which is everybody's: one line, exit code 3.
"""

from __future__ import annotations

from contextlib import suppress

import psutil
import pytest

from databases import Database
from lake import Lake
from penstock.model.table import TableId
from penstock.model.table_state import State, TableStatus
from penstock.state.sql import find_store
from running import PipelineFactory, PipelineFile, Running, await_condition, running

HEALTHY = "public.healthy"
PATIENCE = 120.0  # seconds
SPARK = "org.apache.spark.deploy.SparkSubmit"
STARTED_AFTER = 6.0  # seconds of processor time
ENDLESS = "select max(id % 7) from range(1000000000000)"  # as good as: it takes hours
TABLES = (
    "create table healthy (id bigint primary key, note text)",
    "create table masked (id bigint primary key, tags text[])",
    "create table dropped (id bigint primary key, note text)",
    "create table lost (id bigint primary key, note text, photo text)",
    "alter table lost alter photo set storage external",
    "create table tuned (id bigint primary key, note text)",
    "create table bare ()",
    "insert into bare default values",
    "insert into masked values (1, '{a,b}')",
    "insert into dropped select n, 'x' from generate_series(1, 50) n",
    "insert into lost select n, 'x', repeat('p', 9000) from generate_series(1, 5) n",
)
RULES = [
    {"match": "public.masked", "columns": {"tags": "mask"}},
    {"match": "public.*"},
]


def status(pipeline: PipelineFile, name: str) -> TableStatus:
    store = find_store(pipeline.state)
    assert store is not None
    try:
        return store.table_status("lake")[TableId("public", name)]
    finally:
        store.close()


def await_state(pipeline: PipelineFile, name: str, state: State) -> TableStatus:
    await_condition(lambda: status(pipeline, name).state is state, f"{name} to be {state}", PATIENCE, every=0.2)
    return status(pipeline, name)


def assert_flows(run: Running, postgres: Database, lake: Lake) -> None:
    """The healthy table takes a change, whatever the others are up to."""
    postgres.execute("insert into healthy select coalesce(max(id), 0) + 1, 'x' from healthy")
    run.drain(60)
    lake.assert_equals(postgres, [HEALTHY])


def test_the_others_go_on(pipeline: PipelineFactory, postgres: Database, lake: Lake) -> None:
    postgres.execute(*TABLES)
    file = pipeline(tables=RULES, mask_salt="pepper")
    check = file.command("check", "FILE")
    assert "column tags of type text[] cannot be masked" in check.stdout
    assert "table public.bare: it has no columns" in check.stdout
    with running(file) as run:
        assert "cannot be masked" in await_state(file, "masked", State.ERRORED).reason
        assert "no columns" in await_state(file, "bare", State.ERRORED).reason
        await_state(file, "lost", State.READY)
        assert_flows(run, postgres, lake)
        postgres.execute("insert into bare default values", "insert into masked values (2, '{c}')")
        assert_flows(run, postgres, lake)

        _a_table_dropped_in_the_lake(file, run, postgres, lake)
        _a_file_lost(file, run, postgres, lake)
        _a_property_that_is_no_number(file, run, postgres, lake)

        postgres.execute("alter table bare add column id bigint")
        await_state(file, "bare", State.READY)
        postgres.execute("insert into bare values (7)")
        assert_flows(run, postgres, lake)
        lake.assert_equals(postgres, ["public.bare", "public.dropped", "public.lost", "public.tuned"])
        assert "unexpected" not in run.text()


def _a_table_dropped_in_the_lake(file: PipelineFile, run: Running, postgres: Database, lake: Lake) -> None:
    """Noticed with its next change; and, idle, when its position is to be moved on."""
    await_state(file, "dropped", State.READY)
    for change in ("update dropped set note = 'y' where id = 7", "insert into healthy values (-1, 'x')"):
        _drop_and_await(run, postgres, lake, change)
        await_state(file, "dropped", State.READY)
        assert_flows(run, postgres, lake)
        lake.assert_equals(postgres, ["public.dropped"])


def _drop_and_await(run: Running, postgres: Database, lake: Lake, change: str) -> None:
    before = run.text().count("table queued for resync")
    lake.sql("drop table lake.public.dropped")
    postgres.execute(change)
    await_condition(lambda: run.text().count("table queued for resync") > before, "the drop to be noticed", 60)


def _a_file_lost(file: PipelineFile, run: Running, postgres: Database, lake: Lake) -> None:
    folder = file.warehouse / "public" / "lost" / "data"
    for data in folder.glob("*.parquet"):
        data.unlink()
    postgres.execute("update lost set note = 'y'")  # the photos are in the lake alone
    errored = await_state(file, "lost", State.ERRORED)
    assert str(folder) in errored.reason
    assert "is missing" in errored.reason
    assert "penstock resync" in errored.solution
    assert_flows(run, postgres, lake)
    assert "destination unavailable" not in run.text()
    assert file.command("resync", "FILE", "public.lost").returncode == 0
    await_state(file, "lost", State.READY)
    assert_flows(run, postgres, lake)
    lake.assert_equals(postgres, ["public.lost"])


def _a_property_that_is_no_number(file: PipelineFile, run: Running, postgres: Database, lake: Lake) -> None:
    """Iceberg reads it in every commit, which fails until somebody corrects it."""
    await_state(file, "tuned", State.READY)
    lake.sql("alter table lake.public.tuned set tblproperties ('commit.manifest.target-size-bytes' = 'large')")
    postgres.execute("insert into tuned values (1, 'x')")
    errored = await_state(file, "tuned", State.ERRORED)
    assert 'NumberFormatException: For input string: "large"' in errored.reason
    assert "penstock retry" in errored.solution
    assert_flows(run, postgres, lake)
    assert "destination unavailable" not in run.text()
    lake.sql("alter table lake.public.tuned unset tblproperties ('commit.manifest.target-size-bytes')")
    assert file.command("retry", "FILE", "public.tuned").returncode == 0
    await_state(file, "tuned", State.READY)
    assert_flows(run, postgres, lake)


def _java(run: Running) -> list[psutil.Process]:
    """Spark's, not the one that is asked for its version first."""
    found = []
    for process in run.members():
        with suppress(psutil.NoSuchProcess):
            if SPARK in process.cmdline():
                found.append(process)
    return found


def _assert_one_line(run: Running) -> None:
    last = run.await_end(3)
    assert last.startswith("penstock: [environment] Spark's Java process has ended. Start penstock again"), last
    assert "Traceback" not in run.text()
    assert "unexpected" not in run.text()


@pytest.mark.parametrize("busy", [True, False])
def test_java_is_killed(pipeline: PipelineFactory, postgres: Database, lake: Lake, busy: bool) -> None:
    postgres.execute("create table healthy (id bigint primary key, note text)")
    file = pipeline()
    with running(file) as run:
        assert_flows(run, postgres, lake)
        if busy:
            postgres.execute("insert into healthy select n, 'x' from generate_series(1000, 60000) n")
        (java,) = _java(run)
        java.kill()
        _assert_one_line(run)
    if busy:
        file.run_once()
        lake.assert_equals(postgres, [HEALTHY])
        _kill_java_of(file, "query", "FILE", ENDLESS)


def _kill_java_of(file: PipelineFile, *command: str) -> None:
    """Once it has started, and is at work."""
    asked = Running(file, command)
    try:
        await_condition(lambda: _is_at_work(asked), "Spark to be at work", PATIENCE)
        for java in _java(asked):
            java.kill()
        last = asked.await_end(3)
        assert "Java" in last or "Spark did not start" in last, last
        assert "unexpected" not in asked.text()
    finally:
        asked.clean_up()


def _is_at_work(asked: Running) -> bool:
    assert asked.process.poll() is None, asked.tail()
    return _seconds(asked) > STARTED_AFTER


def _seconds(asked: Running) -> float:
    """Processor time that Java has taken."""
    taken = 0.0
    for java in _java(asked):
        with suppress(psutil.NoSuchProcess):
            taken += java.cpu_times().user
    return taken
