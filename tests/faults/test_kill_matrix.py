"""SIGKILL at every durability step: after a restart the lake equals the source, with nothing lost and nothing twice.

The cases share one pipeline that lives through all of them, as a pipeline in the field does; each case ends with the
comparison of every table. After a case that failed, the next one starts with a new pipeline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from pyspark.sql import SparkSession

from databases import Database, fresh_database
from lake import Lake
from penstock.demo.server import PostgresServer
from penstock.failpoints import FAILPOINTS
from running import PipelineFile, Running, await_condition, make_pipeline
from work_tables import TABLES
from workload import Workload, create_tables

FIRE_SECONDS = 60.0
POLL_SECONDS = 0.05
CAPTURE_POINTS = tuple(name for name in FAILPOINTS if name.startswith("capture."))
# See test_copy_kills, test_upkeep_kills, test_huge_transaction, test_batch_writer_kills, test_stream_kills
ELSEWHERE = ("copy.", "publish.", "reset.", "leaving.", "merge.", "sweep.", "share.", "apply.written_beside")
DRIVER_POINTS = tuple(name for name in FAILPOINTS if not name.startswith(("capture.", *ELSEWHERE)))
BETWEEN_TABLES = ("apply.after_commit", 3)  # two tables of the batch are committed, the others are not


@dataclass
class Matrix:
    """One database, its pipeline, and a run of it when there is one."""

    database: Database
    pipeline: PipelineFile
    workload: Workload
    lake: Lake
    run: Running | None = None
    sound: bool = True

    def streaming(self) -> Running:
        if self.run is None or self.run.process.poll() is not None:
            self.run = Running(self.pipeline)
            self.run.await_streaming()
        return self.run

    def provoke(self, name: str, nth: int = 1) -> None:
        """Traffic of the right kind until a process has died at the failpoint."""
        self.pipeline.arm(name, nth)
        deadline = time.monotonic() + FIRE_SECONDS
        while not self.pipeline.fired():
            assert time.monotonic() < deadline, f"{name} was never reached:\n{self.streaming().tail()}"
            TRAFFIC.get(name, _small_transactions)(self)
            time.sleep(POLL_SECONDS)

    def assert_equal(self) -> None:
        self.streaming().drain()
        self.lake.assert_equals(self.database)

    def clean_up(self) -> None:
        if self.run is not None:
            self.run.clean_up()


def _small_transactions(matrix: Matrix) -> None:
    matrix.workload.take_turns(4)


def _one_large_transaction(matrix: Matrix) -> None:
    (table,) = [table for table in TABLES if table.name == "public.text_key"]
    matrix.workload.workers[0].bulk_transaction(table, 8_000)


def _nothing_for_our_tables(matrix: Matrix) -> None:
    matrix.database.value("select pg_current_wal_lsn() from pg_logical_emit_message(false, 'elsewhere', 'x')")
    matrix.database.execute("create temporary table elsewhere as select generate_series(1, 10)")


def _one_table_only(matrix: Matrix) -> None:
    """So that the others' positions fall behind."""
    matrix.database.execute("insert into keyless values (1, 'alone', 1)")


TRAFFIC: dict[str, Callable[[Matrix], None]] = {
    "capture.part_written": _one_large_transaction,
    "capture.idle_sealed": _nothing_for_our_tables,
    "apply.position_advanced": _one_table_only,
}


@pytest.fixture(scope="module")
def living(
    embedded_server: PostgresServer, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Matrix]]:
    """Gives the matrix that lives on, or a new one after a case that failed."""
    with ExitStack() as cleanup:
        made: list[Matrix] = []

        def current() -> Matrix:
            if not made or not made[-1].sound:
                database = cleanup.enter_context(fresh_database(embedded_server))
                create_tables(database.url)
                pipeline = make_pipeline(tmp_path_factory.mktemp("matrix"), database)
                workload = cleanup.enter_context(Workload(database.url, seed=4, connections=2))
                made.append(Matrix(database, pipeline, workload, Lake(spark, pipeline.warehouse)))
                cleanup.callback(made[-1].clean_up)
            return made[-1]

        yield current


@pytest.fixture
def matrix(living: Callable[[], Matrix]) -> Iterator[Matrix]:
    matrix = living()
    matrix.sound = False
    yield matrix
    if not matrix.sound:
        matrix.clean_up()


@pytest.mark.parametrize("name", CAPTURE_POINTS)
def test_killed_capture(matrix: Matrix, name: str) -> None:
    run = matrix.streaming()
    before = run.capture().pid
    matrix.provoke(name)
    await_condition(lambda: [c.pid for c in run.captures()] not in ([], [before]), "a new capture process", 30)
    matrix.workload.take_turns(5)
    matrix.assert_equal()
    assert matrix.streaming() is run, "the driver lives on when capture dies"
    matrix.sound = True


@pytest.mark.parametrize(("name", "nth"), [*((name, 1) for name in DRIVER_POINTS), BETWEEN_TABLES])
def test_killed_driver(matrix: Matrix, name: str, nth: int) -> None:
    run = matrix.streaming()
    matrix.provoke(name, nth)
    run.await_killed()
    matrix.workload.take_turns(5)
    matrix.assert_equal()
    assert matrix.streaming() is not run
    matrix.sound = True


def test_matrix_ends_well(matrix: Matrix) -> None:
    """After all those deaths it still stops as it should, and its log has not kept everything."""
    matrix.assert_equal()
    matrix.streaming().stop()
    matrix.lake.assert_equals(matrix.database)
    leftovers = [path.name for path in matrix.pipeline.log.iterdir() if path.suffix not in (".arrow", ".lock", "")]
    assert not leftovers, f"temporary files of killed captures: {leftovers}"
