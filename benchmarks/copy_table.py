"""Copy of a table into Iceberg by the pipeline's own copier, against Spark's JDBC reader, psql and Debezium.

    python benchmarks/copy_table.py [--rows 2000000] [--scale 10] [--rounds 3] [--without-debezium]
                                    [--debezium-seconds 300]

Two tables: the one of the design with 8 columns (bigint key, int, text, numeric(12,2), timestamptz, jsonb, text, bool),
and pgbench_accounts at a scale (10: a million rows). They are copied in turns, in one warm Spark session; the best
round of each counts. JDBC reads 4 partitions and writes the same Iceberg table; its driver is fetched by Spark for this
benchmark alone. psql throws `COPY … TO STDOUT` away: the limit of one connection. Debezium's engine makes its initial
snapshot of pgbench_accounts, once, into a handler that only counts.

Java's memory is not reported here, for JDBC has its share in it: `memory copy` has it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from pyspark.sql import SparkSession

import debezium
from copy_read import by_psql, fill
from harness import Result, parser, report, say
from penstock.changelog.log import ChangeLog
from penstock.changelog.writer import SegmentWriter
from penstock.config.destinations import IcebergDestination as IcebergSection
from penstock.config.load import load
from penstock.config.sources import PostgresSource
from penstock.demo.server import PostgresServer
from penstock.destinations.iceberg.destination import IcebergDestination
from penstock.model.feed import Feed
from penstock.model.position import Position
from penstock.model.table import TableId, TableSchema
from penstock.runtime.copy.copier import Copier
from penstock.runtime.copy.copying_table import CopyingTable
from penstock.runtime.copy.progress_view import Unseen
from penstock.runtime.spark.runner import SparkRunner
from penstock.runtime.spark.session import session
from penstock.source.postgres.connect import connect
from penstock.source.postgres.discover import discover
from penstock.state.sql import open_store
from pipelines import write_pipeline
from source_rows import pgbench_tables
from targets import COPY_AGAINST_DEBEZIUM, COPY_AGAINST_JDBC
from watch import Usage, Watch

DRIVER = "org.postgresql:postgresql:42.7.7"
PARTITIONS = 4
FETCHED_ROWS = 10_000
WARM_UP_ROWS = 50_000
WORDS = {"copy": "penstock, the copier", "jdbc": f"Spark, JDBC, {PARTITIONS} parts", "psql": "psql, COPY to nowhere"}


@dataclass
class Subject:
    """A table that is copied, and what it took: seconds by way, and the processes of the last copy."""

    table: TableId
    key: str
    rows: int
    seconds: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WORDS})
    roles: dict[str, Usage] = field(default_factory=dict)

    @property
    def best(self) -> dict[str, float]:
        return {way: min(took) for way, took in self.seconds.items()}


class Bench:
    def __init__(self, folder: Path, server: PostgresServer, cleanup: ExitStack) -> None:
        self.server, self._folder = server, folder
        settings = {"spark.driver.memory": "2g", "spark.jars.packages": DRIVER}
        self._pipeline = load(write_pipeline(folder, server.url(), spark=settings))
        self.spark: SparkSession = session(self._pipeline).whole
        cleanup.callback(self.spark.stop)
        lake = self._pipeline.lake
        assert isinstance(lake, IcebergSection)
        self._destination = IcebergDestination(lake, self.spark, index=folder / "index")
        self._destination.open()
        cleanup.callback(self._destination.close)
        self._runner, self._rounds = SparkRunner(self.spark), 0
        with SegmentWriter(ChangeLog(self._pipeline.log_uri)) as writer:  # a copy belongs to the history of a log
            writer.begin(1, "bench")
            writer.advance(2)

    def by_copier(self, subject: Subject) -> float:
        """Seconds from the wish to have the table to its commit."""
        self._rounds += 1
        target = TableId("public", f"copied_{self._rounds}")
        with connect(self.server.url()) as connection:
            source = self._pipeline.source
            assert isinstance(source, PostgresSource)
            (schema,) = discover(connection, lambda found: found == subject.table, source.publication)
        self._destination.ensure_table(target, schema, self._pipeline.name, None)
        with Watch(os.getpid()) as watch:
            began = time.perf_counter()
            self._copy(schema, target)
            took = time.perf_counter() - began
        subject.roles = {role: usage for role, usage in watch.roles.items() if role in ("driver", "workers")}
        self._require_rows(f"lake.{target}", subject.rows)
        return took

    def _copy(self, schema: TableSchema, target: TableId) -> None:
        joined = threading.Event()
        state = open_store(self._folder / f"state-{self._rounds}.db")

        def noted(copied: CopyingTable, position: Position) -> None:
            joined.set()

        log = ChangeLog(self._pipeline.log_uri)
        copier = Copier(self._pipeline, self._destination, self._runner, log, state, noted, Unseen())
        copier.add(Feed.clone(schema.table, target), schema)
        copier.start()
        try:
            while not joined.wait(0.05):
                if copier.failure is not None:
                    raise copier.failure
                if copier.errored:
                    raise SystemExit(f"the copy failed: {state.table_status('lake')}")
        finally:
            copier.stop()
            state.close()

    def by_jdbc(self, subject: Subject) -> float:
        target = "lake.public.by_jdbc"
        self.spark.sql(f"DROP TABLE IF EXISTS {target} PURGE")
        # Its parallel writers would quarrel over who makes the folder.
        (self._folder / "warehouse" / "public" / "by_jdbc" / "data").mkdir(parents=True, exist_ok=True)
        began = time.perf_counter()
        read = self.spark.read.jdbc(
            f"jdbc:postgresql://127.0.0.1:{self.server.port}/postgres",
            str(subject.table),
            column=subject.key,
            lowerBound=1,
            upperBound=subject.rows,
            numPartitions=PARTITIONS,
            properties={"user": "postgres", "driver": "org.postgresql.Driver", "fetchsize": str(FETCHED_ROWS)},
        )
        read.writeTo(target).using("iceberg").create()
        took = time.perf_counter() - began
        self._require_rows(target, subject.rows)
        return took

    def _require_rows(self, target: str, rows: int) -> None:
        """By the metadata: a count in this Java process would be in its memory."""
        found = self.spark.sql(f"SELECT sum(record_count) FROM {target}.files").collect()[0][0]
        if found != rows:
            raise SystemExit(f"{target} has {found} rows of {rows}")


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--rows", type=int, default=2_000_000, help="of the table of 8 columns")
    arguments.add_argument("--scale", type=int, default=10, help="of pgbench_accounts: 100,000 rows each")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--without-debezium", action="store_true")
    arguments.add_argument("--debezium-seconds", type=float, default=300, help="after which Debezium's part is enough")
    options = arguments.parse_args()
    orders = Subject(TableId("public", "orders"), "id", options.rows)
    accounts = Subject(TableId("public", "pgbench_accounts"), "aid", 100_000 * options.scale)
    counted = None
    with ExitStack() as cleanup:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        server = cleanup.enter_context(PostgresServer())
        say(f"filling {orders.table} and {accounts.table}")
        fill(server.url(), orders.rows)
        pgbench_tables(server, options.scale)
        warm = min(WARM_UP_ROWS, orders.rows)
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute(f"CREATE TABLE small AS SELECT * FROM orders WHERE id <= {warm}".encode())
            connection.execute("ALTER TABLE small ADD PRIMARY KEY (id)")
        bench = Bench(folder, server, cleanup)
        say("warming up")
        for _ in range(2):
            small = Subject(TableId("public", "small"), "id", warm)
            bench.by_copier(small)
            bench.by_jdbc(small)
        for _ in range(options.rounds):
            for subject in (orders, accounts):
                subject.seconds["copy"].append(bench.by_copier(subject))
                subject.seconds["jdbc"].append(bench.by_jdbc(subject))
                subject.seconds["psql"].append(by_psql(server, str(subject.table)))
                took = ", ".join(f"{way} {seconds[-1]:.2f} s" for way, seconds in subject.seconds.items())
                say(f"{subject.table}: {took}")
        if not options.without_debezium:
            counted = debezium.snapshot(server, str(accounts.table), accounts.rows, options.debezium_seconds)
    _report(options, (orders, accounts), counted)


def _report(options: argparse.Namespace, subjects: tuple[Subject, ...], counted: debezium.Counted | None) -> None:
    rows, results = [], []
    for subject in subjects:
        best, what = subject.best, f"copy of {subject.rows:,} rows of {subject.table.name}"
        for way, seconds in best.items():
            rows.append((f"{subject.table}: {WORDS[way]}", seconds, round(subject.rows / seconds)))
        ours = f"{best['copy']:.2f} s, {subject.rows / best['copy']:,.0f} rows/s"
        jdbc, psql = best["jdbc"] / best["copy"], best["psql"] / best["copy"]
        results += [
            Result(what, ours, f"Spark JDBC, warm, {best['jdbc']:.2f} s", jdbc, "× its speed", COPY_AGAINST_JDBC),
            Result(what, ours, f"psql to nowhere {best['psql']:.2f} s", psql, "of the limit"),
        ]
        if counted is not None and subject is subjects[-1]:
            rate = subject.rows / best["copy"]
            rows.append((f"{subject.table}: {counted}", counted.seconds, round(counted.rate)))
            against = f"{counted}, snapshot"
            results.append(Result(what, ours, against, rate / counted.rate, "× its speed", COPY_AGAINST_DEBEZIUM))
    report(
        "copy_table",
        f"copy of a table, best of {options.rounds}",
        ("what", "seconds", "rows/s"),
        rows,
        options=options,
        results=results,
        processes={str(subject.table): subject.roles for subject in subjects},
        seconds={str(subject.table): subject.seconds for subject in subjects},
    )


if __name__ == "__main__":
    main()
