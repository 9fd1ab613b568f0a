"""The pipeline on a Spark standalone cluster: tasks run on the workers' executors, and one that is killed in the middle
of a copy or of a batch costs a retry and no row.

Log, warehouse and key index are on a path that all share. In CI one executor is killed in a copy and one in a batch;
`make test-full` also kills executors and whole workers at random under a workload.
"""

from __future__ import annotations

import os
import re
import signal
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
TABLES = ("public.large", "public.one", "public.other")


def data_files(file: PipelineFile) -> set[Path]:
    return set(file.warehouse.rglob("*.parquet"))


def executors_told(run: Running, job: str) -> set[int]:
    """The processes that the run's log says have run such tasks."""
    return {int(pid) for pid in re.findall(rf"tasks run on .*executor=\S+/(\d+) job={job} ", run.text())}


def kill_in_copy(cluster: Cluster, database: Database) -> int:
    """A range takes about two seconds here, and the executor is killed as soon as it is seen to read one."""
    victims: list[psutil.Process] = []

    def reads() -> bool:
        victims.extend(cluster.copying(database)[:1])
        return bool(victims)

    await_condition(reads, "an executor to read a range", KILL_SECONDS)
    victims[0].kill()
    return int(victims[0].pid)


def kill_in_batch(cluster: Cluster, run: Running, database: Database) -> int:
    """An executor that has worked before is given its half of a batch and never does it, while the other does its."""
    file = run.pipeline
    victim = next(one for one in cluster.executors() if one.pid in executors_told(run, "copy_range"))
    victim.send_signal(signal.SIGSTOP)
    before = data_files(file)
    with database.connect() as connection, connection.transaction():
        for table in ("one", "other"):
            connection.execute(
                f"insert into {table} select g, repeat(md5(g::text), 4) from generate_series(1, 20000) g".encode()
            )
    await_condition(lambda: bool(data_files(file) - before), "a half of the batch to be written", KILL_SECONDS)
    assert file.processed() is None or file.processed() < database.flush_position()  # type: ignore[operator]
    victim.kill()
    return int(victim.pid)


def test_an_executor_killed_in_a_copy_and_in_a_batch(
    pipeline: PipelineFactory, postgres: Database, lake: Lake, tmp_path: Path
) -> None:
    postgres.execute(
        "create table large (id int primary key, t text)",
        "insert into large select g, repeat(md5(g::text), 3) from generate_series(1, 16000) g",
        "create table one (id int primary key, t text)",
        "create table other (id int primary key, t text)",
    )
    with standalone_cluster(tmp_path / "cluster") as cluster:
        file = pipeline(
            spark=cluster.settings,
            log={"segment_bytes": "16MiB"},
            copy={"range_bytes": "512KiB", "max_connections": 2, "max_rows_per_second": 4000},
        )
        with running(file) as run:
            killed = {kill_in_copy(cluster, postgres)}
            await_condition(lambda: file.processed() is not None, "all tables to be copied", KILL_SECONDS)
            assert re.search(r"tasks ran again .*job=copy_range", run.text()), run.tail()
            alive = {executor.pid for executor in cluster.executors()}
            killed.add(kill_in_batch(cluster, run, postgres))
            postgres.execute("update large set t = 'changed' where id % 7 = 0", "delete from one where id % 3 = 0")
            run.drain()
            assert re.search(r"tasks ran again .*job=apply", run.text()), run.tail()
            alive |= {executor.pid for executor in cluster.executors()}
            for job in ("copy_range", "apply"):
                told = executors_told(run, job)
                assert told, f"nobody ran {job}:\n{run.tail()}"
                assert told <= alive | killed, f"{job} ran outside the cluster: {told - alive - killed}"
        lake.assert_equals(postgres, TABLES)


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
