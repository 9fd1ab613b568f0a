"""A pipeline into Kafka, killed: workers in the middle of a transaction, the broker, the driver; executors that sleep.

The source keeps its own account of every change, which is the oracle; topics are read back by a consumer that knows
nothing of penstock, with `read_committed`.
"""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest

from accounted_traffic import SETUP, TABLES, Traffic, assert_equal, provoke
from cluster import Cluster, standalone_cluster
from databases import Database, fresh_database
from kafka_bench import read_committed
from kafka_server import KafkaServer
from penstock.demo.server import PostgresServer
from running import PipelineFile, Running, await_condition, make_pipeline, running

MIDDLE = "publish.file_written"  # of a transaction: its records are sent, its place is not
SEEDS, ROUNDS = range(15, 20), 20  # 100 kills, and as many in test_redis_and_nats_kills.py
SLEEPERS = 3
# of Spark, which gives an executor up after two minutes otherwise
LOST_SOON = {"network.timeout": "15s", "network.timeoutInterval": "5s", "executor.heartbeatInterval": "2s"}


@pytest.fixture
def database(embedded_server: PostgresServer) -> Iterator[Database]:
    with fresh_database(embedded_server) as database:
        with database.connect() as connection:
            connection.execute(SETUP.encode())
        yield database


@pytest.fixture
def server() -> Iterator[KafkaServer]:
    """One of its own: it is killed."""
    with KafkaServer() as server:
        yield server


@pytest.fixture
def pipeline(database: Database, server: KafkaServer, tmp_path: Path) -> PipelineFile:
    stream = {
        "type": "kafka",
        "brokers": server.brokers,
        "partitions": 3,
        "shards": 2,
        "timeout": "5s",
        "retry": {"longest": "500ms"},
    }
    return make_pipeline(tmp_path, database, destinations=[stream], tables=[{"match": f"public.{t}"} for t in TABLES])


def test_every_event_once_and_in_order_through_kills(
    database: Database, server: KafkaServer, pipeline: PipelineFile
) -> None:
    traffic = Traffic(database)
    run = Running(pipeline)
    try:
        run.await_streaming()
        traffic.transactions(40)
        provoke(pipeline, traffic, MIDDLE, run)
        assert run.process.poll() is None, run.tail()
        server.kill()
        traffic.transactions(20)
        await_condition(lambda: _says(pipeline, "retrying", "Connection refused"), "the outage to be shown", 90)
        server.start()
        provoke(pipeline, traffic, MIDDLE, run, signal.SIGSTOP)  # a worker sleeps while its driver is killed
        run.kill()
        traffic.transactions(20)
        pipeline.run_once()
    finally:
        run.clean_up()
    assert_equal(database, published(server))


@pytest.mark.full
@pytest.mark.parametrize("seed", SEEDS)
def test_many_random_kills(database: Database, server: KafkaServer, pipeline: PipelineFile, seed: int) -> None:
    traffic, chosen = Traffic(database), Random(seed)
    run = Running(pipeline)
    try:
        run.await_streaming()
        for number in range(ROUNDS):
            traffic.transactions(chosen.randrange(20))
            victim = chosen.choice(("worker", "worker", "committed", "capture", "broker", "driver", "asleep"))
            if victim in ("worker", "committed"):
                provoke(pipeline, traffic, MIDDLE if victim == "worker" else "publish.committed", run)
            elif victim == "capture":
                run.capture().kill()
            elif victim == "broker":
                server.kill()
                traffic.transactions(10)
                time.sleep(chosen.random() * 3)
                server.start()
            else:
                if victim == "asleep":
                    provoke(pipeline, traffic, MIDDLE, run, signal.SIGSTOP)
                    run.kill()
                else:  # once it has published something
                    provoke(pipeline, traffic, "publish.batch_done", run)
                    run.await_killed()
                run = Running(pipeline)
                run.await_streaming()
                traffic.transactions(10)
            assert run.process.poll() is None, f"round {number}, {victim}: {run.tail()}"
        run.stop()
    finally:
        run.clean_up()
    pipeline.run_once()
    assert_equal(database, published(server))


@pytest.mark.full
def test_an_executor_that_sleeps_until_it_is_replaced(
    database: Database, server: KafkaServer, pipeline: PipelineFile, tmp_path: Path
) -> None:
    """All its processes are stopped in the middle of a transaction. Another one does the task; then they wake up, and
    what they had begun is not published."""
    with standalone_cluster(tmp_path / "cluster") as cluster:
        failpoints = {"executorEnv.PENSTOCK_FAILPOINT_FILE": str(pipeline.failpoint)}
        pipeline.settings["spark"] = {**cluster.settings, **LOST_SOON, **failpoints}
        pipeline.write()
        traffic = Traffic(database)
        with running(pipeline) as run:
            for _ in range(SLEEPERS):
                provoke(pipeline, traffic, MIDDLE, run, signal.SIGSTOP)
                sleeper, others = _asleep(cluster)
                traffic.transactions(20)
                await_condition(lambda: _is_level(database, server), f"another executor:\n{run.tail()}", 180, 1)
                _wake(sleeper)
                psutil.wait_procs([sleeper], 20)
                for process in others:
                    _wake(process)
                traffic.transactions(20)
                await_condition(lambda: _is_level(database, server), f"the rest:\n{run.tail()}", 120, 1)
            assert len(re.findall(r"tasks ran again ", run.text())) >= SLEEPERS, run.tail()
    assert_equal(database, published(server))


def _asleep(cluster: Cluster) -> tuple[psutil.Process, list[psutil.Process]]:
    """Return the worker that is stopped, and the other processes of its executor, which are stopped now."""
    for executor in cluster.executors():
        family = [executor, *executor.children(recursive=True)]
        stopped = [one for one in family if one.status() == psutil.STATUS_STOPPED]
        if stopped:
            others = [one for one in family if one not in stopped]
            for process in others:
                process.suspend()
            return stopped[0], others
    raise AssertionError("no executor has a worker that is stopped")


def _wake(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.resume()


def _is_level(database: Database, server: KafkaServer) -> bool:
    """Whether as many events of rows are published as the source has accounted for."""
    with database.connect() as connection:
        row = connection.execute(b"select count(*) from account where op <> 'truncate'").fetchone()
    assert row is not None
    events = [event for part in published(server) for event in part if event["op"] != "truncate"]
    return len(events) >= int(row[0])


def _says(pipeline: PipelineFile, state: str, reason: str) -> bool:
    shown = pipeline.component("destination kafka")
    return shown["state"] == state and reason in str(shown)


def published(server: KafkaServer) -> list[list[dict[str, Any]]]:
    """Return the events of each partition, in order."""
    parts = [part for table in TABLES for part in read_committed(server.brokers, f"public.{table}")]
    return [[json.loads(message.value() or b"") for message in part] for part in parts]
