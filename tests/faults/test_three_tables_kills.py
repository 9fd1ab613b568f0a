"""One pipeline into Iceberg, Delta and Postgres at once, killed again and again: all three equal the source.

One pipeline lives through all cases, under the oracle workload and a bank that moves money between two tables. After
each case every table of every destination is compared with the source, row by row, so that they are equal to each
other as well. The Postgres destination has a server of its own, behind a wire that a test may cut; the whole time a
reader there adds the bank's tables up, and never sees half of a transfer. With --full every step of the driver, of
capture and of a copy is taken.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from psycopg import sql
from pyspark.sql import SparkSession

import oracle
from cut_wire import CutWire
from databases import Database, fresh_database
from lake import WORK_TABLES, Lake, split_name
from level import level
from penstock.config.delta_destination import DeltaDestination
from penstock.demo.server import PostgresServer
from penstock.destinations.delta.reading import read_table
from penstock.destinations.lake.warehouse import table_folder
from penstock.failpoints import FAILPOINTS
from penstock.model.table import TableId
from running import PipelineFile, Running, await_condition, make_pipeline
from work_tables import TABLES
from workload import Workload, create_tables

DESTINATIONS = ("lake", "delta", "copy")
BANK = ("checking", "savings")
ACCOUNTS, DEPOSIT = 50, 1_000
TOTAL = len(BANK) * ACCOUNTS * DEPOSIT
EVERY_TABLE = (*WORK_TABLES, *(f"public.{name}" for name in BANK))
FIRE_SECONDS = 60.0
KEPT = {"expire_every": 4, "keep_snapshots": 3, "keep_for": "1s", "compact_files": 4, "advance_idle_every": "1s"}
# The first of them may be reached at any of the three destinations, so in full they are taken at later times too.
POINTS = (("postgres.before_commit", 2), ("apply.after_commit", 2))
CAPTURE_POINTS = tuple(name for name in FAILPOINTS if name.startswith("capture."))
BATCH_POINTS = tuple(
    name
    for name in FAILPOINTS
    if name.startswith(("apply.", "postgres.", "maintain.", "log.")) and name != "apply.written_beside"
)
COPY_POINTS = tuple(name for name in FAILPOINTS if name.startswith("copy."))
NTHS = (1, 2, 3, 5)
COPIED_AGAIN = "public.text_key"


def delta_rows(pipeline: PipelineFile, table: str) -> Any:
    config = DeltaDestination(type="delta", warehouse=str(pipeline.folder / "delta"))
    found = read_table(table_folder(config, TableId(*split_name(table))))
    return found.scan(list(found.types), None)


def postgres_rows(database: Database, names: list[str], table: str) -> Counter[Any]:
    """Every value as the text that replication would send."""
    columns = sql.SQL(", ").join(
        sql.SQL("CASE WHEN {0} IS DISTINCT FROM NULL THEN format('%s', {0}) END").format(sql.Identifier(name))
        for name in names
    )
    query = sql.SQL("SELECT {} FROM {}").format(columns, sql.Identifier(*split_name(table)))
    with database.connect() as connection:
        return Counter(connection.execute(query).fetchall())


@dataclass
class Bank:
    """Moves money at the source, and adds it up at the Postgres destination."""

    source: Database
    copy: Database
    torn: list[Any] = field(default_factory=list)
    sums: int = 0
    states: set[Any] = field(default_factory=set)  # different ones that were read
    _stop: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def open(self) -> Iterator[Bank]:
        threads = [threading.Thread(target=one) for one in (self._move, self._add_up)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()

    def _move(self) -> None:
        chance = random.Random(3)
        with self.source.connect() as connection:
            while not self._stop.wait(0.02):
                source, sink = chance.sample(BANK, 2)
                with connection.transaction():
                    for _ in range(3):
                        amount = chance.randrange(1, 500)
                        for table, change in ((source, -amount), (sink, amount)):
                            statement = f"update {table} set balance = balance + %s where id = %s"
                            connection.execute(statement.encode(), (change, chance.randrange(ACCOUNTS)))

    def _add_up(self) -> None:
        query = "select (select sum(balance) from checking), (select sum(balance) from savings)"
        while not self._stop.is_set():
            with suppress(psycopg.OperationalError), self.copy.connect() as connection:  # its server is killed too
                while not self._stop.wait(0.005):
                    row = connection.execute(query.encode()).fetchone()
                    assert row is not None
                    self.sums += 1
                    self.states.add(row)
                    if sum(row) != TOTAL:
                        self.torn.append(row)


@dataclass
class Three:
    source: Database
    server: PostgresServer  # of the Postgres destination
    copy: Database
    wire: CutWire
    pipeline: PipelineFile
    workload: Workload
    lake: Lake
    run: Running | None = None
    turns: int = 0

    def streaming(self) -> Running:
        if self.run is None or self.run.process.poll() is not None:
            self.run = Running(self.pipeline)
            self.run.await_streaming()
        return self.run

    def provoke(self, name: str, nth: int = 1, send: signal.Signals = signal.SIGKILL) -> None:
        """Traffic of the right kind until a process of the run is there."""
        self.pipeline.arm(name, nth, send)
        deadline = time.monotonic() + FIRE_SECONDS
        while not self.pipeline.fired():
            assert time.monotonic() < deadline, f"{name} was never reached:\n{self.streaming().tail()}"
            TRAFFIC.get(name, _small_transactions)(self)
            time.sleep(0.05)

    def level(self) -> None:
        level(self.streaming(), self.pipeline, DESTINATIONS)

    def assert_equal(self) -> None:
        """All three hold exactly what the source holds. The bank goes on meanwhile, so its tables are the reader's."""
        self.workload.take_turns(5)
        self.level()
        self.lake.assert_equals(self.source)
        self._assert_equal_beside_the_lake(WORK_TABLES)

    def _assert_equal_beside_the_lake(self, tables: tuple[str, ...]) -> None:
        wrong = []
        with self.source.connect() as connection:
            for table in tables:
                names = [column.name for column in oracle.source_columns(connection, table)]
                there, here = (postgres_rows(one, names, table) for one in (self.source, self.copy))
                if there != here:
                    wrong.append(f"copy: {table}: missing {there - here}, extra {here - there}"[:2000])
                if found := oracle.compare(connection, table, delta_rows(self.pipeline, table)):
                    wrong.append(f"delta: {found}")
        assert not wrong, "\n".join(wrong)

    def assert_all_equal_in_the_end(self) -> None:
        self.level()
        self.lake.assert_equals(self.source, EVERY_TABLE)
        self._assert_equal_beside_the_lake(EVERY_TABLE)

    def kill_server(self) -> None:
        """SIGKILL to every process of the destination's server: what was not committed is lost, and so are the rows of
        unlogged tables."""
        postmaster = psutil.Process(int((self.server.data / "postmaster.pid").read_text().split()[0]))
        every = [postmaster, *postmaster.children(recursive=True)]
        for process in every:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(every, timeout=30)
        (self.server.data / "postmaster.pid").unlink()

    def clean_up(self) -> None:
        if self.run is not None:
            self.run.clean_up()


def _small_transactions(three: Three) -> None:
    three.workload.take_turns(4)
    three.turns += 1
    if three.turns % 5 == 0:
        three.source.execute("truncate public.partitioned")


def _one_large_transaction(three: Three) -> None:
    (table,) = [table for table in TABLES if table.name == COPIED_AGAIN]
    three.workload.workers[0].bulk_transaction(table, 8_000)


def _nothing_for_our_tables(three: Three) -> None:
    three.source.value("select pg_current_wal_lsn() from pg_logical_emit_message(false, 'elsewhere', 'x')")


def _the_bank_alone(three: Three) -> None:
    """So that the positions of the other tables fall behind."""


TRAFFIC: dict[str, Callable[[Three], None]] = {
    "capture.part_written": _one_large_transaction,
    "capture.idle_sealed": _nothing_for_our_tables,
    "apply.position_advanced": _the_bank_alone,
}


@pytest.fixture
def three(embedded_server: PostgresServer, spark: SparkSession, tmp_path: Path) -> Iterator[Three]:
    with (
        fresh_database(embedded_server) as source,
        PostgresServer() as server,
        CutWire(server.port) as wire,
    ):
        create_tables(source.url)
        for table in BANK:
            source.execute(
                f"create table {table} (id int primary key, balance bigint not null)",
                f"insert into {table} select g, {DEPOSIT} from generate_series(0, {ACCOUNTS - 1}) g",
            )
        copy = Database("copy", server.url())
        destinations = [
            {"name": "lake", "type": "iceberg", "warehouse": "./warehouse", "maintenance": KEPT},
            {"name": "delta", "type": "delta", "warehouse": "./delta", "maintenance": KEPT},
            {"name": "copy", "type": "postgres", "url": f"postgresql://postgres@127.0.0.1:{wire.port}/postgres"},
        ]
        pipeline = make_pipeline(tmp_path, source, destinations=destinations, copy={"max_connections": 2})
        with Workload(source.url, seed=16, connections=2, truncated_alone=["public.partitioned"]) as workload:
            workload.take_turns(20)
            made = Three(source, server, copy, wire, pipeline, workload, Lake(spark, pipeline.warehouse))
            try:
                yield made
            finally:
                made.clean_up()


def test_three_destinations_equal_their_source_whoever_is_killed(three: Three, full: bool) -> None:
    three.streaming()
    three.level()
    with Bank(three.source, three.copy).open() as bank:
        for name, nth in POINTS:
            driver_killed(three, name, nth)
        server_killed_before_commit(three)
        answer_lost(three)
        if full:
            every_step(three)
        three.workload.take_turns(20)
        assert bank.torn == []
        assert bank.sums > 500
        assert len(bank.states) > 20, "the reader saw the money move"
    three.assert_all_equal_in_the_end()
    three.streaming().stop()
    assert three.copy.value("select count(*) from penstock.parts") == 0, "tables of killed batches are left"


def driver_killed(three: Three, name: str, nth: int) -> None:
    run = three.streaming()
    three.provoke(name, nth)
    run.await_killed()
    three.assert_equal()


def server_killed_before_commit(three: Three) -> None:
    """The driver is stopped with a transaction that is ready; the server dies, and the others go on without it."""
    run = three.streaming()
    three.provoke("postgres.before_commit", 1, signal.SIGSTOP)
    await_condition(lambda: run.process.poll() is None and _stopped(run), "the driver to stop", 30)
    three.kill_server()
    run.process.send_signal(signal.SIGCONT)
    three.workload.take_turns(5)
    run.await_text("destination unavailable, retrying", 120)
    three.server.start()
    three.assert_equal()
    assert three.run is run, "the driver lives on when the destination's server dies"


def _stopped(run: Running) -> bool:
    return any(one.status() == psutil.STATUS_STOPPED for one in run.members())


def answer_lost(three: Three) -> None:
    """COMMIT reaches the server, and no answer comes: the positions say that it took place."""
    run, before = three.streaming(), three.wire.lost
    three.wire.lose_an_answer()
    await_condition(lambda: three.wire.lost > before, "the answer to a COMMIT to be lost", 30)
    three.assert_equal()
    three.wire.cut()
    three.assert_equal()
    assert three.run is run


def every_step(three: Three) -> None:
    for name in CAPTURE_POINTS:
        run = three.streaming()
        before = run.capture().pid
        three.provoke(name)
        await_condition(lambda: [one.pid for one in run.captures()] not in ([], [before]), "a new capture", 30)  # noqa: B023
        three.assert_equal()
    for name in BATCH_POINTS:
        for nth in NTHS if name.startswith(("apply.", "postgres.")) else (1,):
            driver_killed(three, name, nth)
    for nth in NTHS:
        three.streaming()
        _one_large_transaction(three)
        driver_killed(three, "postgres.before_commit", nth)
    for name in COPY_POINTS:
        for nth in (1, 2, 3):  # one for each destination
            run = three.streaming()
            three.pipeline.arm(name, nth)
            asked = three.pipeline.command("resync", "FILE", COPIED_AGAIN)
            assert asked.returncode == 0, asked.stderr
            run.await_killed()
            three.assert_equal()
    for _ in range(5):
        three.streaming()
        three.workload.take_turns(10)
        three.kill_server()
        three.server.start()
        three.assert_equal()
        server_killed_before_commit(three)
        answer_lost(three)
