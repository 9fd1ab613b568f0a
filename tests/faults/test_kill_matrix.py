"""SIGKILL at every durability step: after a restart the lake equals the source, with nothing lost and nothing twice.

The cases share one pipeline that lives through all of them, as a pipeline in the field does; each case ends with the
comparison of every table. After a case that failed, the next one starts with a new pipeline. It has three destinations:
clones in a lake, which are compared with the source, and every change twice over, as rows of events in a second
warehouse and as files of JSON lines. In the end these two have the same changes, each of them once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from databases import Database, fresh_database
from lake import Lake, split_name
from penstock.demo.server import PostgresServer
from penstock.failpoints import FAILPOINTS
from running import PipelineFile, Running, await_condition, make_pipeline
from stream_reader import StreamReader
from work_tables import TABLES
from workload import Workload, create_tables

FIRE_SECONDS = 60.0
POLL_SECONDS = 0.05
PARTITIONED = "public.partitioned"
TRUNCATED_EVERY = 5  # rounds of traffic
CAPTURE_POINTS = tuple(name for name in FAILPOINTS if name.startswith("capture."))
# See test_copy_kills, test_upkeep_kills, test_huge_transaction, test_batch_writer_kills, test_stream_kills,
# test_three_tables_kills
ELSEWHERE = (
    "copy.",
    "publish.",
    "reset.",
    "leaving.",
    "merge.",
    "sweep.",
    "share.",
    "postgres.",
    "apply.written_beside",
)
DRIVER_POINTS = tuple(name for name in FAILPOINTS if not name.startswith(("capture.", *ELSEWHERE)))
MOVED = ".1"  # a change of a key is two events in a file, and one in a table
SECOND = {"name": "second", "type": "iceberg", "warehouse": "./second"}
CHANGES = {"name": "changes", "type": "files", "path": "./changes"}
LATER_COMMIT = ("apply.after_commit", 3)  # of the lake or of the second one, when batches have been committed before


@dataclass
class Matrix:
    """One database, its pipeline, and a run of it when there is one."""

    database: Database
    pipeline: PipelineFile
    workload: Workload
    lake: Lake
    run: Running | None = None
    sound: bool = True
    turns: int = 0

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

    def assert_changes_agree(self, spark: SparkSession) -> None:
        """The second warehouse and the files have the same changes, each once."""
        events = Lake(spark, self.pipeline.folder / "second", "second")
        published: dict[str, list[str]] = {}
        for event in StreamReader(self.pipeline.folder / "changes" / self.pipeline.name).events():
            published.setdefault(f"{event['schema']}.{event['table']}", []).append(event["place"])
        assert any(published.values())
        for schema, table in (split_name(table.name) for table in TABLES):
            rows = events.sql(f"select commit_position, ordinal from second.`{schema}`.`{table}` where op != 'read'")
            applied = sorted(f"{commit:016x}/{ordinal:016x}" for commit, ordinal in rows)
            places = published.get(f"{schema}.{table}", [])
            assert len(set(places)) == len(places), f"{table}: an event is in the files twice"
            assert sorted(place for place in places if not place.endswith(MOVED)) == applied, table

    def clean_up(self) -> None:
        if self.run is not None:
            self.run.clean_up()


def _small_transactions(matrix: Matrix) -> None:
    matrix.workload.take_turns(4)
    matrix.turns += 1
    if matrix.turns % TRUNCATED_EVERY == 0:
        matrix.database.execute(f"truncate {PARTITIONED}")


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


def three_destinations(folder: Path, database: Database, state: str = "./state.db") -> PipelineFile:
    mode = {"lake": "clone", "second": "events", "changes": "events"}
    file = make_pipeline(
        folder, database, state=state, tables=[{"match": name, "mode": mode} for name in ("public.*", "Odd Schema.*")]
    )
    file.settings["destinations"] += [SECOND, CHANGES]
    file.write()
    return file


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.full)])
def living(
    request: pytest.FixtureRequest,
    embedded_server: PostgresServer,
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[], Matrix]]:
    """Gives the matrix that lives on, or a new one after a case that failed; with the state in a file or in Postgres,
    where a lease takes the place of the lock."""
    with ExitStack() as cleanup:
        made: list[Matrix] = []

        def current() -> Matrix:
            if not made or not made[-1].sound:
                database = cleanup.enter_context(fresh_database(embedded_server))
                create_tables(database.url)
                state = "./state.db"
                if request.param == "postgres":
                    state = cleanup.enter_context(fresh_database(embedded_server)).url
                pipeline = three_destinations(tmp_path_factory.mktemp("matrix"), database, state)
                pipeline.run_once()  # tables are copied before the first change, so each change is an event
                # Rows after its TRUNCATE in one transaction might hide that of a partition: a stream is Errored then.
                workload = Workload(database.url, seed=4, connections=2, truncated_alone=[PARTITIONED])
                cleanup.enter_context(workload)
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


@pytest.mark.parametrize(("name", "nth"), [*((name, 1) for name in DRIVER_POINTS), LATER_COMMIT])
def test_killed_driver(matrix: Matrix, name: str, nth: int) -> None:
    run = matrix.streaming()
    matrix.provoke(name, nth)
    run.await_killed()
    matrix.workload.take_turns(5)
    matrix.assert_equal()
    assert matrix.streaming() is not run
    matrix.sound = True


def test_matrix_ends_well(matrix: Matrix, spark: SparkSession) -> None:
    """After all those deaths it still stops as it should, and its log has not kept everything."""
    matrix.assert_equal()
    waited = matrix.pipeline.command("wait", "FILE", "--timeout", "120", seconds=180)
    assert waited.returncode == 0, waited.stderr
    matrix.streaming().stop()
    matrix.assert_changes_agree(spark)
    matrix.lake.assert_equals(matrix.database)
    leftovers = [path.name for path in matrix.pipeline.log.iterdir() if path.suffix not in (".arrow", ".claim", "")]
    assert not leftovers, f"temporary files of killed captures: {leftovers}"
