"""One pipeline into Redis and NATS at once, killed: workers between two pieces, both servers, and the driver.

The source keeps its own account of every change, which is the oracle; streams are read back by the clients that Redis
and NATS have themselves. Writers that are stopped, replaced and go on are in tests/behaviour/test_stream_pieces.py: a
worker that is stopped does not outlive its driver.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import redis

from accounted_traffic import SETUP, TABLES, Traffic, assert_equal, provoke
from databases import Database, fresh_database
from penstock.demo.server import PostgresServer
from running import PipelineFile, Running, await_condition, make_pipeline
from stream_benches import read_nats_events
from stream_servers import Server, nats_server, redis_server

SHARDS = 2
SEEDS, ROUNDS = range(20, 25), 20  # 100 kills, and as many in test_kafka_kills.py
WORKER_STEPS = ("publish.file_written", "publish.piece_out", "publish.committed")


@pytest.fixture
def database(embedded_server: PostgresServer) -> Iterator[Database]:
    with fresh_database(embedded_server) as database:
        with database.connect() as connection:
            connection.execute(SETUP.encode())
        yield database


@pytest.fixture
def servers() -> Iterator[dict[str, Server]]:
    """Servers of their own: they are killed."""
    with redis_server() as one, nats_server() as other:
        yield {"redis": one, "nats": other}


@pytest.fixture
def pipeline(database: Database, servers: dict[str, Server], tmp_path: Path) -> PipelineFile:
    shared = {"shards": SHARDS, "timeout": "5s", "retry": {"longest": "500ms"}}
    streams = [
        {"type": "redis", "url": f"redis://127.0.0.1:{servers['redis'].port}", **shared},
        {"type": "nats", "url": f"nats://127.0.0.1:{servers['nats'].port}", "stream": "SHOP", **shared},
    ]
    tables = [{"match": f"public.{table}"} for table in TABLES]
    return make_pipeline(tmp_path, database, destinations=streams, tables=tables)


def test_every_event_once_and_in_order_through_kills(
    database: Database, servers: dict[str, Server], pipeline: PipelineFile
) -> None:
    traffic = Traffic(database)
    run = Running(pipeline)
    try:
        run.await_streaming()
        traffic.transactions(40)
        pipeline.arm("publish.piece_out")  # of either destination
        _huge(database)
        await_condition(pipeline.fired, f"a publication in pieces:\n{run.tail()}", 60)
        assert run.process.poll() is None, run.tail()
        for name, server in servers.items():
            server.kill()
            traffic.transactions(10)
            await_condition(
                lambda name=name: pipeline.component(f"destination {name}")["state"] == "retrying",  # type: ignore[misc]
                f"{name} to be away",
                60,
                0.5,
            )
            server.start()
        traffic.transactions(20)
        run.process.kill()
        run.process.wait(60)
        traffic.transactions(20)
        pipeline.run_once()
    finally:
        run.clean_up()
    states = {(table["destination"], table["state"]) for table in pipeline.status()["tables"]}
    assert states == {("redis", "Ready"), ("nats", "Ready")}
    assert_equal(database, _published(servers, "redis"))
    assert_equal(database, _published(servers, "nats"))


@pytest.mark.full
@pytest.mark.parametrize("seed", SEEDS)
def test_many_random_kills(database: Database, servers: dict[str, Server], pipeline: PipelineFile, seed: int) -> None:
    traffic, chosen = Traffic(database), Random(seed)
    run = Running(pipeline)
    try:
        run.await_streaming()
        for number in range(ROUNDS):
            traffic.transactions(chosen.randrange(20))
            victim = chosen.choice((*WORKER_STEPS, "capture", "redis", "nats", "driver"))
            if victim == "publish.piece_out":
                pipeline.arm(victim)
                _huge(database)
                await_condition(pipeline.fired, f"round {number}, {victim}: {run.tail()}", 300)
            elif victim in WORKER_STEPS:
                provoke(pipeline, traffic, victim, run)
            elif victim == "capture":
                run.capture().kill()
            elif victim in servers:
                servers[victim].kill()
                traffic.transactions(10)
                time.sleep(chosen.random() * 3)
                servers[victim].start()
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
    assert_equal(database, _published(servers, "redis"))
    assert_equal(database, _published(servers, "nats"))


def _huge(database: Database) -> None:
    """One transaction with more events than go out at once, also in a shard."""
    with database.connect() as connection, connection.transaction():
        connection.execute(
            b"insert into notes select n, 'new', 1, '' from generate_series(0, 39) n on conflict do nothing"
        )
        for number in range(120):
            connection.execute(f"update notes set state = 'round {number}'".encode())


def _published(servers: dict[str, Server], name: str) -> list[list[dict[str, Any]]]:
    """Return the events of each stream, in order."""
    if name == "nats":
        return [read_nats_events(servers["nats"], f"SHOP_{shard}") for shard in range(SHARDS)]
    with redis.Redis(port=servers["redis"].port) as client:
        entries = [client.xrange(f"public.{table}") for table in TABLES]
    return [[json.loads(fields[b"value"]) for _, fields in stream] for stream in entries]
