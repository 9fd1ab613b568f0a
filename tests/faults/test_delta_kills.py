"""SIGKILL at durability steps while tables go to Delta: after a restart they equal the source, nothing twice.

One pipeline lives through all cases: it is copied, follows a workload, is killed, and is compared table by table. With
--full every step of the driver is taken.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import oracle
from databases import Database, fresh_database
from lake import WORK_TABLES, split_name
from penstock.config.delta_destination import DeltaDestination
from penstock.demo.server import PostgresServer
from penstock.destinations.delta.reading import read_table
from penstock.destinations.lake.warehouse import table_folder
from penstock.model.table import TableId
from running import PipelineFile, Running, make_pipeline
from workload import Workload, create_tables

POINTS = ("apply.before_commit", "apply.after_commit", "maintain.compaction_committed")
MORE = ("apply.files_written", "apply.batch_committed", "maintain.compaction_written", "leaving.listed")
FIRE_SECONDS = 60.0
KEPT = {"expire_every": 4, "keep_snapshots": 3, "keep_for": "1s", "compact_files": 4, "advance_idle_every": "1s"}


def read(pipeline: PipelineFile, table: str) -> pa.Table:
    config = DeltaDestination(type="delta", warehouse=str(pipeline.folder / "delta"))
    found = read_table(table_folder(config, TableId(*split_name(table))))
    return found.scan(list(found.types), None)


def assert_equal(pipeline: PipelineFile, database: Database) -> None:
    with database.connect() as connection:
        found = [oracle.compare(connection, table, read(pipeline, table)) for table in WORK_TABLES]
    wrong = [str(difference) for difference in found if difference]
    assert not wrong, "\n".join(wrong)


@pytest.fixture
def pipeline(embedded_server: PostgresServer, tmp_path: Path) -> Iterator[PipelineFile]:
    with fresh_database(embedded_server) as database:
        create_tables(database.url)
        delta = {"name": "lake", "type": "delta", "warehouse": "./delta", "maintenance": KEPT}
        yield make_pipeline(tmp_path, database, destinations=[delta])


def test_killed_at_every_step_a_delta_table_equals_its_source(pipeline: PipelineFile, full: bool) -> None:
    database = pipeline.database
    with Workload(database.url, seed=7, connections=2) as workload:
        workload.take_turns(20)
        run = Running(pipeline)
        try:
            run.await_streaming()
            for name in (*POINTS, *(MORE if full else ())):
                pipeline.arm(name, 1)
                deadline = time.monotonic() + FIRE_SECONDS
                while not pipeline.fired():
                    assert time.monotonic() < deadline, f"{name} was never reached:\n{run.tail()}"
                    workload.take_turns(5)
                run.await_killed()
                workload.take_turns(5)
                run = Running(pipeline)
                run.await_streaming()
                run.drain()
                assert_equal(pipeline, database)
            run.stop()
        finally:
            if run.process.poll() is None:
                run.process.kill()
                run.process.wait()
    asked = pipeline.command("query", "FILE", "select count(*) from public.text_key")
    assert asked.returncode == 0, asked.stderr
