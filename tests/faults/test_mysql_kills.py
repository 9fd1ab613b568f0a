"""MariaDB and MySQL under SIGKILL at the steps of capture, copy and apply: equal afterwards, and nothing twice.

One pipeline lives through all of them, with random work at the server all the time: a table with a key and a trigger,
one with a key of two columns, one without any, and one in mode `append`, where a change that is applied twice stays.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lake import Lake
from mysql_server import SERVERS, Server
from mysql_workload import COLUMNS, MysqlWorkload, differences
from penstock.config.mysql_source import address_of
from penstock.source.mysql.connect import connect
from penstock.source.mysql.positions import head, position_of
from running import PipelineFile, Running

POINTS = (
    "capture.segment_written",
    "capture.segment_sealed",
    "capture.part_written",
    "capture.idle_sealed",
    "copy.begun",
    "copy.range_finished",
    "copy.finished",
    "copy.catching_up",
    "copy.committed",
    "copy.done",
    "apply.files_written",
    "apply.before_commit",
    "apply.after_commit",
    "apply.batch_committed",
)
FIRE_SECONDS = 120.0
ALTERED_EVERY = 20.0  # seconds: a copy is void when its table is altered meanwhile


@dataclass
class Place:
    """What `Running` asks of a database."""

    url: str

    def flush_position(self) -> int:
        address = address_of(self.url)
        connection = connect(address)
        try:
            return position_of(*head(connection, address))
        finally:
            connection.close()


@pytest.fixture(params=["mariadb", "mysql"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with SERVERS[request.param](tmp_path / "server") as started:
        yield started


def make(folder: Path, url: str) -> PipelineFile:
    folder.mkdir()
    settings: dict[str, Any] = {
        "version": 1,
        "name": "shop",
        "source": {"type": "mysql", "url": url},
        "tables": [{"match": "shop.journal", "mode": "append"}, {"match": "shop.*"}],
        "destinations": [{"name": "lake", "type": "iceberg", "warehouse": "./warehouse"}],
        "copy": {"range_bytes": "32KiB"},
        "log": {"segment_bytes": "128KiB", "segment_age": "50ms", "idle_every": "200ms"},
        "batch": {"max_age": "100ms"},
        "state": "./state.db",
        "spark": {"spark.driver.memory": "1g"},
    }
    database: Any = Place(url)
    pipeline = PipelineFile(folder, database, settings)
    pipeline.write()
    return pipeline


@pytest.mark.full
def test_killed_at_every_step_and_equal(server: Server, tmp_path: Path, spark: SparkSession) -> None:
    workload = MysqlWorkload(server)
    pipeline = make(tmp_path / "pipeline", server.url)
    lake = Lake(spark, pipeline.warehouse)
    run = Running(pipeline)
    try:
        run.await_streaming()
        for point in POINTS:
            pipeline.arm(point)
            deadline, altered = time.monotonic() + FIRE_SECONDS, 0.0
            while not pipeline.fired():
                assert time.monotonic() < deadline, f"{point} was never reached:\n{run.tail()}"
                if run.process.poll() is not None:
                    run = Running(pipeline)
                if point == "capture.part_written":
                    workload.large_transaction()
                elif point == "capture.idle_sealed":
                    time.sleep(0.5)
                elif point.startswith("copy.") and time.monotonic() - altered > ALTERED_EVERY:
                    workload.alter()
                    altered = time.monotonic()
                workload.take_turns(10)
                time.sleep(0.1)
            workload.take_turns(20)
            if run.process.poll() is not None or not point.startswith("capture."):
                run.process.wait(30)
                run = Running(pipeline)
                run.await_streaming()
            run.drain()
            wrong = {table: found for table in COLUMNS if (found := compared(workload, lake, table))}
            assert not wrong, (point, wrong)
        run.stop()
    finally:
        run.clean_up()


def compared(workload: MysqlWorkload, lake: Lake, table: str) -> list[str]:
    rows = lake.read(f"shop.{table}")[0].select(COLUMNS[table].split(", ")).to_pylist()
    return differences(workload.expected(table), Counter(tuple(row.values()) for row in rows))
