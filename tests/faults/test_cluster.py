"""The pipeline on a Spark standalone cluster: tasks run on the workers' executors, and one that is killed in the middle
of a copy or of a batch costs a retry and no row.

Log, warehouse and key index are on a path that all share. In CI an application is ended in a copy, and of the
next, which goes on with it, one executor is killed in the copy and one in a batch; `make test-full` also kills
executors and whole workers at random under a workload, and has clusters that are not there, have no worker, end an
idle application or go for good.
"""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from random import Random

import psutil
import pytest

from cluster import Cluster, standalone_cluster
from databases import Database
from lake import Lake
from running import PipelineFactory, PipelineFile, Running, await_condition, running
from work_tables import TABLES as TABLES_OF_WORK
from workload import Workload, create_tables

KILL_SECONDS = 120.0
ROUNDS, KILLS_A_ROUND = 4, 4
ENDED = "Master removed our application: KILLED. Start penstock again"
TABLES = ("public.large", "public.one", "public.other")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With two workers. A test leaves it without an application."""
    with standalone_cluster(tmp_path_factory.mktemp("shared") / "cluster") as cluster:
        yield cluster


def data_files(file: PipelineFile, *tables: str) -> set[Path]:
    """Of these tables alone: others may be compacted meanwhile."""
    return {path for table in tables for path in (file.warehouse / "public" / table).rglob("*.parquet")}


def executors_told(run: Running, job: str) -> set[int]:
    """The processes that the run's log says have run such tasks."""
    return {int(pid) for pid in re.findall(rf"tasks run on .*executor=\S+/(\d+) job='lake {job}' ", run.text())}


def kill_in_copy(cluster: Cluster, database: Database) -> int:
    """A range takes about two seconds here, and the executor is killed as soon as it is seen to read one."""
    victims: list[psutil.Process] = []

    def reads() -> bool:
        victims.extend(cluster.copying(database)[:1])
        return bool(victims)

    await_condition(reads, "an executor to read a range", KILL_SECONDS)
    victims[0].kill()
    return int(victims[0].pid)


def end_in_copy(cluster: Cluster, file: PipelineFile) -> None:
    """The application is ended at the master while an executor reads; a supervisor would start the run again."""
    with running(file) as run:
        await_condition(lambda: bool(cluster.copying(file.database)), "an executor to read a range", KILL_SECONDS)
        cluster.end_applications()
        assert ENDED in run.await_end(3)


def kill_in_batch(cluster: Cluster, run: Running, database: Database) -> int:
    """An executor that has worked before is given its half of a batch and never does it, while the other does its."""
    file = run.pipeline
    victim = next(one for one in cluster.executors() if one.pid in executors_told(run, "copy_range"))
    victim.send_signal(signal.SIGSTOP)
    tables = ("one", "other")
    before = data_files(file, *tables)
    with database.connect() as connection, connection.transaction():
        for table in tables:
            connection.execute(
                f"insert into {table} select g, repeat(md5(g::text), 4) from generate_series(1, 20000) g".encode()
            )
    await_condition(lambda: bool(data_files(file, *tables) - before), "a half of the batch to be written", KILL_SECONDS)
    assert file.processed() is None or file.processed() < database.flush_position()  # type: ignore[operator]
    victim.kill()
    return int(victim.pid)


def test_an_application_ended_in_a_copy_then_executors_killed_in_the_copy_and_in_a_batch(
    pipeline: PipelineFactory, postgres: Database, lake: Lake, cluster: Cluster
) -> None:
    postgres.execute(
        "create table large (id int primary key, t text)",
        "insert into large select g, repeat(md5(g::text), 3) from generate_series(1, 16000) g",
        "create table one (id int primary key, t text)",
        "create table other (id int primary key, t text)",
    )
    file = pipeline(
        spark=cluster.settings,
        log={"segment_bytes": "16MiB"},
        copy={"range_bytes": "512KiB", "max_connections": 2, "max_rows_per_second": 4000},
    )
    end_in_copy(cluster, file)
    with running(file) as run:
        killed = {kill_in_copy(cluster, postgres)}
        await_condition(lambda: file.processed() is not None, "all tables to be copied", KILL_SECONDS)
        assert re.search(r"tasks ran again .*job='lake copy_range'", run.text()), run.tail()
        alive = {executor.pid for executor in cluster.executors()}
        killed.add(kill_in_batch(cluster, run, postgres))
        postgres.execute("update large set t = 'changed' where id % 7 = 0", "delete from one where id % 3 = 0")
        run.drain()
        assert re.search(r"tasks ran again .*job='lake apply'", run.text()), run.tail()
        alive |= {executor.pid for executor in cluster.executors()}
        for job in ("copy_range", "apply"):
            told = executors_told(run, job)
            assert told, f"nobody ran {job}:\n{run.tail()}"
            assert told <= alive | killed, f"{job} ran outside the cluster: {told - alive - killed}"
    lake.assert_equals(postgres, TABLES)


@pytest.mark.full
def test_an_application_that_is_ended_while_there_is_nothing_to_do(
    pipeline: PipelineFactory, postgres: Database, lake: Lake, cluster: Cluster
) -> None:
    postgres.execute("create table one (id int primary key)", "insert into one values (1)")
    file = pipeline(spark=cluster.settings)
    with running(file) as run:
        run.drain()
        cluster.end_applications()
        assert ENDED in run.await_end(3)
    postgres.execute("insert into one values (2)")
    with running(file) as run:
        run.drain()
    lake.assert_equals(postgres, ("public.one",))


@pytest.mark.full
def test_a_cluster_that_goes_for_good(
    pipeline: PipelineFactory, postgres: Database, lake: Lake, tmp_path: Path
) -> None:
    postgres.execute("create table one (id int primary key)", "insert into one values (1)")
    with standalone_cluster(tmp_path / "cluster") as cluster:
        file = pipeline(spark=cluster.settings)
        with running(file) as run:
            run.drain()
            cluster.clean_up()
            postgres.execute("insert into one values (2)")
            line = run.await_end(3)
            assert re.search(r"no executors .*jobs wait", run.text()), run.tail()
            master = f"Spark's master {cluster.url} (`spark.master` in {file.path})"
            assert line.startswith(f"penstock: [environment] {master} and our executors")
    file.settings["spark"] = {}
    file.write()
    file.run_once()
    lake.assert_equals(postgres, ("public.one",))


@pytest.mark.full
def test_a_cluster_without_a_worker(pipeline: PipelineFactory, postgres: Database, lake: Lake, tmp_path: Path) -> None:
    """Jobs wait, and say so, until there is one."""
    postgres.execute("create table one (id int primary key)", "insert into one values (1)")
    with (
        standalone_cluster(tmp_path / "cluster", workers=0) as cluster,
        running(pipeline(spark=cluster.settings)) as run,
    ):
        run.await_text("jobs wait: the cluster has given us none")
        cluster.add_workers()
        run.drain()
    lake.assert_equals(postgres, ("public.one",))


@pytest.mark.full
def test_a_master_that_is_not_there_or_is_none(pipeline: PipelineFactory, postgres: Database) -> None:
    postgres.execute("create table one (id int primary key)")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for address, said in (
            ("127.0.0.1:1", "does not answer"),
            (f"127.0.0.1:{silent.getsockname()[1]}", "did not take"),
        ):
            file = pipeline(spark={"master": f"spark://{address}", "driver.host": "127.0.0.1"})
            run = Running(file)
            try:
                line = run.await_end(3)
            finally:
                run.clean_up()
            assert line.startswith(
                f"penstock: [environment] Spark's master spark://{address} (`spark.master` in {file.path}) {said}"
            )
            assert "capture started" in run.text(), "the log takes what it can meanwhile"


@pytest.mark.full
def test_executors_and_workers_killed_under_a_workload(
    pipeline: PipelineFactory, postgres: Database, lake: Lake, tmp_path: Path
) -> None:
    """Wherever it meets them: while twelve tables are copied, and in batches afterwards. A worker that was killed is
    replaced by another; now and then the driver dies as well."""
    random = Random(os.environ.get("PENSTOCK_TEST_SEED", "7"))
    create_tables(postgres.url)
    with (
        standalone_cluster(tmp_path / "cluster") as cluster,
        Workload(postgres.url, seed=random.randrange(1000), connections=3, bulk_rows=20_000) as workload,
    ):
        for number, table in enumerate(TABLES_OF_WORK):
            workload.workers[number % 3].bulk_transaction(table, 40_000)
        file = pipeline(spark=cluster.settings, copy={"range_bytes": "1MiB", "max_connections": 2})
        for round in range(ROUNDS):
            with running(file) as run:
                for _ in range(KILLS_A_ROUND):
                    workload.run_together(random.randint(5, 25))
                    victims = cluster.executors() if random.random() < 0.75 else cluster.living_workers()
                    if victims:
                        random.choice(victims).kill()
                    if len(cluster.living_workers()) < 2:
                        cluster.add_workers()
                if round % 2:
                    run.kill()
                    continue
                run.drain(seconds=600)
                lake.assert_equals(postgres)
        with running(file) as run:
            run.drain(seconds=600)
        lake.assert_equals(postgres)
