"""The whole path from outside: what a user's tables become, on the embedded server and on Debian's."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest
from psycopg import pq

from databases import Database
from lake import WORK_TABLES, Lake
from running import PipelineFactory, Running, make_pipeline, running
from work_tables import TABLES
from workload import Workload, create_tables

BULK_ROWS = 50_000
ORDERS = "create table orders (id int primary key, state text, total numeric(10,2))"


def test_random_workload_arrives_whole(any_postgres: Database, tmp_path: Path, lake: Lake, full: bool) -> None:
    create_tables(any_postgres.url)
    pipeline = make_pipeline(tmp_path, any_postgres)
    with running(pipeline) as run, Workload(any_postgres.url, seed=20, connections=4, bulk_rows=500) as workload:
        for round_ in range(8 if full else 2):
            workload.run_together(60)
            for table in TABLES:
                rows = BULK_ROWS if table.name in ("public.text_key", "public.every_type") else 400
                workload.workers[round_ % 4].bulk_transaction(table, rows)
        workload.run_together(30)
        run.drain()
        counts = workload.counts
        lake.assert_equals(any_postgres)
        lake.assert_equals_in_pyiceberg(any_postgres, WORK_TABLES)
        any_postgres.execute(
            "create schema elsewhere", "create table elsewhere.busy as select generate_series(1, 20000)"
        )
        pipeline.await_confirmed()
    for kind in ("committed", "rolled back", "savepoint", "truncate", "change_key", "swap_keys", "delete"):
        assert counts[kind], f"the workload never did: {kind}"
    lake.assert_equals(any_postgres)


STATEMENTS = (
    # statements of one transaction each; after all of them the tables must be equal
    ("insert into orders values (1, 'new', 1), (2, 'new', 2), (3, 'new', 3)",),
    (
        "update orders set id = -1 where id = 1",
        "update orders set id = 1 where id = 2",
        "update orders set id = 2 where id = -1",
    ),
    (
        "delete from orders where id = 3",
        "insert into orders values (3, 'again', 30)",
        "delete from orders where id = 3",
    ),
    (
        "insert into orders values (4, 'a', 4)",
        "truncate orders",
        "insert into orders values (4, 'b', 5), (5, '', null)",
    ),
    (
        "update orders set id = 6 where id = 5",
        "update orders set id = 7 where id = 6",
        "insert into orders values (5, 'x', 1)",
    ),
)


def test_once_drains_to_the_position_at_its_start(pipeline: PipelineFactory, postgres: Database, lake: Lake) -> None:
    postgres.execute(ORDERS, "insert into orders values (99, 'before the slot', 0)")
    file = pipeline()
    file.run_once()
    assert lake.count("public.orders") == 1
    postgres.execute("delete from orders")
    for transaction in STATEMENTS:
        postgres.execute("; ".join(transaction))
    postgres.execute("create table added (id int primary key)", "insert into added values (0)")
    stop = Event()
    busy = Thread(target=_insert_until, args=(postgres, stop))
    busy.start()
    try:
        file.run_once()
    finally:
        stop.set()
        busy.join()
    with postgres.connect() as connection:
        rows = connection.execute("select id, state from orders where id < 100 order by id").fetchall()
    found = lake.sql("select id, state from lake.public.orders where id < 100 order by id")
    assert [tuple(row) for row in found] == rows == [(4, "b"), (5, "x"), (7, "")]
    assert lake.count("public.added") == 1
    postgres.execute("insert into added values (1)", "delete from added where id = 0")
    file.run_once()
    lake.assert_equals(postgres, ["public.orders", "public.added"])


def _insert_until(database: Database, stop: Event) -> None:
    with database.connect() as connection:
        for number in range(100, 10_000_000):
            if stop.is_set():
                return
            connection.execute("insert into orders values (%s, 'busy', 1)", (number,))


def test_stopping_finishes_what_is_in_flight(pipeline: PipelineFactory, postgres: Database, lake: Lake) -> None:
    """Ctrl-C reaches the whole group, Spark's JVM and workers too; none of them may go before the batch is done."""
    create_tables(postgres.url)
    file = pipeline()
    with Workload(postgres.url, seed=3, connections=2) as workload:
        with running(file) as run:
            workload.take_turns(40)
            run.stop(signal.SIGTERM)
        with running(file) as interrupted:
            workload.take_turns(40)
            os.killpg(interrupted.process.pid, signal.SIGINT)
            assert interrupted.process.wait(60) == 0, interrupted.tail()
            interrupted.assert_nothing_left()
        workload.take_turns(10)
    for said in (run.text(), interrupted.text()):
        assert "stopped" in said
        assert "Traceback" not in said
        assert "Exception" not in said
    file.run_once()
    lake.assert_equals(postgres)


def test_second_run_is_refused(pipeline: PipelineFactory, postgres: Database, lake: Lake) -> None:
    postgres.execute(ORDERS)
    file = pipeline()
    with running(file) as run:
        second = file.command("run", "FILE")
        assert second.returncode == 1
        last = second.stderr.strip().splitlines()[-1]
        assert last.startswith("penstock: [already-running] ")
        assert str(run.process.pid) in last, "the refusal names the process that runs"
        assert "Traceback" not in second.stderr
        postgres.execute("insert into orders values (1, 'flows', 1)")
        run.drain()
        lake.assert_equals(postgres, ["public.orders"])


def test_status_and_query_show_what_a_running_pipeline_did(
    pipeline: PipelineFactory, postgres: Database, lake: Lake
) -> None:
    """Also that an Errored table holds up no other, and says why and what to do about it: here one that is strict about
    values that do not fit, in the copy and in the stream."""
    postgres.execute(
        ORDERS,
        "create table moments (id int primary key, at timestamp)",
        "create table copied_moments (id int primary key, at timestamp)",
        "insert into copied_moments values (1, '-infinity')",
        "create table unkeyed (id int, note text)",
        "alter table unkeyed replica identity full",
    )
    file = pipeline()
    with running(file, "--strict") as run:
        run.await_text("table=public.unkeyed")  # its copy has joined: what follows comes by the stream
        postgres.execute(
            "insert into orders values (1, 'new', 12.50)",
            "insert into moments values (1, 'infinity')",
            "insert into unkeyed values (1, 'a')",
            "update unkeyed set note = 'b'",
            "insert into orders values (2, 'new', null)",
        )
        run.drain()
        lake.assert_equals(postgres, ["public.orders", "public.unkeyed"])
        tables = {table["table"]: table for table in file.status()["tables"]}
        assert tables["public.orders"]["state"] == "Ready"
        assert tables["public.moments"]["state"] == "Errored"
        assert "'infinity' does not fit" in tables["public.moments"]["error"]
        assert "types: {at: text}" in tables["public.moments"]["solution"]
        assert tables["public.copied_moments"]["state"] == "Errored"
        assert "'-infinity' does not fit" in tables["public.copied_moments"]["error"]
        assert tables["public.unkeyed"]["state"] == "Ready", "it is followed by its whole row"
        asked = file.command(
            "query", "FILE", "select id, state, total from public.orders order by id", "--format", "json"
        )
        assert asked.returncode == 0, asked.stderr
    assert asked.stdout.strip().startswith("[")
    assert '"12.50"' in asked.stdout
    ended = file.command("run", "FILE", "--once", "--strict")
    assert ended.returncode == 1, "a drained pipeline with Errored tables is not well"
    assert "public.moments" in ended.stderr.strip().splitlines()[-1]


@contextmanager
def _slot_held(database: Database, slot: str) -> Iterator[None]:
    """Reads the slot as a forgotten process would, and confirms nothing."""
    connection = pq.PGconn.connect(f"{database.url}?replication=database".encode())
    try:
        statement = f"START_REPLICATION SLOT {slot} LOGICAL 0/0 (proto_version '1', publication_names '{slot}')"
        answer = connection.exec_(statement.encode())
        assert answer.status == pq.ExecStatus.COPY_BOTH, answer.error_message
        yield
    finally:
        connection.finish()


def test_run_waits_until_another_capture_lets_go(pipeline: PipelineFactory, postgres: Database, lake: Lake) -> None:
    postgres.execute(ORDERS, "insert into orders values (1, 'copied', 1)")
    file = pipeline()
    other = Running(file, ("capture", "FILE"))
    try:
        other.await_text("started")
        refused = file.command("capture", "FILE")
        assert refused.returncode == 1
        assert str(other.process.pid) in refused.stderr.strip().splitlines()[-1]
        run = Running(file)
        try:
            run.await_text("capture unavailable, retrying")
            run.await_streaming()
            other.stop()
            postgres.execute("insert into orders values (2, 'streamed', 2)")
            run.drain()
            lake.assert_equals(postgres, ["public.orders"])
            run.stop()
        finally:
            run.clean_up()
    finally:
        other.clean_up()


@pytest.mark.parametrize(
    "any_postgres", ["embedded_server", pytest.param("debian_server", marks=pytest.mark.full)], indirect=True
)
def test_slot_is_waited_for_and_its_loss_is_told(any_postgres: Database, tmp_path: Path, lake: Lake) -> None:
    any_postgres.execute(ORDERS)
    pipeline = make_pipeline(tmp_path, any_postgres)
    pipeline.run_once()
    any_postgres.execute("insert into orders values (1, 'kept', 1)")
    run = Running(pipeline)
    try:
        with _slot_held(any_postgres, pipeline.slot):
            run.await_text("capture unavailable, retrying")
            run.await_streaming()
        any_postgres.execute("insert into orders values (2, 'later', 2)")
        run.drain()
        lake.assert_equals(any_postgres, ["public.orders"])
        run.stop()
    finally:
        run.clean_up()

    dropped = pipeline.command("slots", "drop", "FILE")
    assert dropped.returncode != 0, "dropping a slot needs --yes"
    assert (
        any_postgres.value("select count(*) from pg_replication_slots where slot_name = '" + pipeline.slot + "'") == 1
    )
    dropped = pipeline.command("slots", "drop", "FILE", "--yes")
    assert dropped.returncode == 0, dropped.stderr
    assert (
        any_postgres.value("select count(*) from pg_replication_slots where slot_name = '" + pipeline.slot + "'") == 0
    )
    any_postgres.execute("insert into orders values (3, 'lost', 3)")
    gap = pipeline.command("run", "FILE", "--once")
    assert gap.returncode == 1, gap.stderr
    last = gap.stderr.strip().splitlines()[-1]
    assert last.startswith("penstock: [gap] ")
    assert pipeline.slot in last
    assert lake.count("public.orders") == 2, "nothing is passed over in silence"
    (told,) = pipeline.status()["tables"]
    assert (told["state"], told["code"]) == ("Errored", "gap")
    assert pipeline.slot in told["error"]

    shutil.rmtree(pipeline.log)  # the way out that the error names
    with running(pipeline) as run:
        asked = pipeline.command("resync", "FILE", "public.orders")
        assert asked.returncode == 0, asked.stderr
        run.await_text("table joined")
        run.drain()
        lake.assert_equals(any_postgres, ["public.orders"])
