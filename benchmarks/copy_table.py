"""Copy of one table into Iceberg by the pipeline's own copier, against Spark's JDBC reader and psql, in one run.

    .venv/bin/python benchmarks/copy_table.py [--rows 2000000] [--rounds 3] [--json build/copy_table.json] [--only copy]

The three take turns, in one warm Spark session, on the table of the design (bigint key, int, text, numeric(12,2),
timestamptz, jsonb, text, bool); the best round of each counts. JDBC reads 4 partitions and writes the same Iceberg
table; its driver is fetched by Spark for this benchmark alone. psql throws `COPY … TO STDOUT` away: the limit of one
connection. Peak memory is that of each process since it began. With --only copy the others are left out: to see that
memory is the same for 2 and for 20 million rows.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import psycopg
import yaml
from pyspark.sql import SparkSession

from copy_read import by_psql, fill, peak_memory
from penstock.changelog.log import ChangeLog
from penstock.config.load import load
from penstock.config.model import Pipeline
from penstock.demo.server import PostgresServer
from penstock.destinations.iceberg.destination import IcebergDestination
from penstock.model.feed import Feed
from penstock.model.position import Position
from penstock.model.table import TableId, TableSchema
from penstock.runtime.copier import Copier
from penstock.runtime.copying_table import CopyingTable
from penstock.runtime.spark import SparkRunner, session
from penstock.source.postgres.connect import connect
from penstock.source.postgres.discover import discover
from penstock.state.sql import open_store

DRIVER = "org.postgresql:postgresql:42.7.7"
PARTITIONS = 4
FETCHED_ROWS = 10_000
WARM_UP_ROWS = 50_000
SAMPLE_SECONDS = 0.1
ORDERS, SMALL = TableId("public", "orders"), TableId("public", "small")


class Peaks:
    """Peak memory, in MiB, of this process, of Java and of the largest Python worker, as far as they live."""

    def __init__(self) -> None:
        self.found = {"driver": 0, "java": 0, "worker": 0}

    def look(self) -> None:
        self.found["driver"] = peak_memory()
        for process in psutil.Process().children(recursive=True):
            try:
                role = self._role(process)
                if role is not None:
                    self.found[role] = max(self.found[role], peak_memory(process.pid))
            except (psutil.Error, OSError, StopIteration):
                continue  # it has ended in this moment

    @staticmethod
    def _role(process: psutil.Process) -> str | None:
        if process.name() == "java":
            return "java"
        return "worker" if "spark_daemon" in " ".join(process.cmdline()) else None

    @contextmanager
    def watched(self) -> Iterator[None]:
        done = threading.Event()

        def watch() -> None:
            while not done.wait(SAMPLE_SECONDS):
                self.look()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        yield
        done.set()
        thread.join()
        self.look()


class NoView:
    """Nobody looks at the progress."""

    def update(self, table: TableId, rows: int, total: int | None, done: int, in_all: int) -> None: ...

    def finish(self, table: TableId) -> None: ...

    def drop(self, table: TableId) -> None: ...


class Bench:
    def __init__(self, folder: Path, server: PostgresServer, cleanup: ExitStack, *, with_jdbc: bool) -> None:
        self.server, self._folder = server, folder
        self._pipeline = _pipeline(folder, server, with_jdbc=with_jdbc)
        self.spark: SparkSession = session(self._pipeline)
        cleanup.callback(self.spark.stop)
        self._destination = IcebergDestination(self._pipeline.destinations[0], self.spark, index=folder / "index")
        self._destination.open()
        cleanup.callback(self._destination.close)
        self._runner, self._rounds = SparkRunner(self.spark), 0

    def by_copier(self, table: TableId, rows: int, peaks: Peaks) -> float:
        """Seconds from the wish to have the table to its commit; memory is looked at until then."""
        self._rounds += 1
        target = TableId("public", f"copied_{self._rounds}")
        with connect(self.server.url()) as connection:
            (schema,) = discover(connection, lambda found: found == table, self._pipeline.source.publication)
        self._destination.ensure_table(target, schema, self._pipeline.name, None)
        began = time.perf_counter()
        with peaks.watched():
            self._copy(schema, target)
        took = time.perf_counter() - began
        self._require_rows(f"lake.{target}", rows)
        return took

    def _copy(self, schema: TableSchema, target: TableId) -> None:
        joined = threading.Event()
        state = open_store(self._folder / f"state-{self._rounds}.db")

        def noted(copied: CopyingTable, position: Position) -> None:
            joined.set()

        log = ChangeLog(self._pipeline.log_uri)
        copier = Copier(self._pipeline, self._destination, self._runner, log, state, noted, NoView())
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

    def by_jdbc(self, table: TableId, rows: int) -> float:
        target = "lake.public.by_jdbc"
        self.spark.sql(f"DROP TABLE IF EXISTS {target} PURGE")
        # Its parallel writers would quarrel over who makes the folder.
        (self._folder / "warehouse" / "public" / "by_jdbc" / "data").mkdir(parents=True, exist_ok=True)
        began = time.perf_counter()
        read = self.spark.read.jdbc(
            f"jdbc:postgresql://127.0.0.1:{self.server.port}/postgres",
            str(table),
            column="id",
            lowerBound=1,
            upperBound=rows,
            numPartitions=PARTITIONS,
            properties={"user": "postgres", "driver": "org.postgresql.Driver", "fetchsize": str(FETCHED_ROWS)},
        )
        read.writeTo(target).using("iceberg").create()
        took = time.perf_counter() - began
        self._require_rows(target, rows)
        return took

    def _require_rows(self, target: str, rows: int) -> None:
        found = self.spark.sql(f"SELECT count(*), count(DISTINCT id) FROM {target}").collect()[0]
        if tuple(found) != (rows, rows):
            raise SystemExit(f"{target} has {found[0]} rows of {rows}")


def _pipeline(folder: Path, server: PostgresServer, *, with_jdbc: bool) -> Pipeline:
    file = folder / "pipeline.yaml"
    settings = {"spark.driver.memory": "2g"} | ({"spark.jars.packages": DRIVER} if with_jdbc else {})
    file.write_text(
        yaml.safe_dump(
            {
                "version": 1,
                "name": "bench",
                "source": {"type": "postgres", "url": server.url()},
                "tables": [{"match": "public.*"}],
                "destinations": [{"name": "lake", "type": "iceberg", "warehouse": "./warehouse"}],
                "spark": settings,
            }
        )
    )
    return load(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=Path("build/copy_table.json"), help="where the figures go too")
    parser.add_argument("--only", choices=["copy"])
    arguments = parser.parse_args()
    rows, alone = arguments.rows, arguments.only == "copy"
    times: dict[str, list[float]] = {"copy": [], "jdbc": [], "psql": []}
    peaks = Peaks()
    with ExitStack() as cleanup:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        server = cleanup.enter_context(PostgresServer())
        fill(server.url(), rows)
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute(f"CREATE TABLE small AS SELECT * FROM orders WHERE id <= {WARM_UP_ROWS}".encode())
            connection.execute("ALTER TABLE small ADD PRIMARY KEY (id)")
        bench = Bench(folder, server, cleanup, with_jdbc=not alone)
        for _ in range(2):
            bench.by_copier(SMALL, WARM_UP_ROWS, Peaks())
            if not alone:
                bench.by_jdbc(SMALL, WARM_UP_ROWS)
        for _ in range(arguments.rounds):
            times["copy"].append(bench.by_copier(ORDERS, rows, peaks))
            if not alone:
                times["jdbc"].append(bench.by_jdbc(ORDERS, rows))
                times["psql"].append(by_psql(server))
    best = {name: min(took) for name, took in times.items() if took}
    figures = {
        "rows": rows,
        "load_average": round(os.getloadavg()[0], 1),
        "cores": os.cpu_count(),
        "seconds": {name: [round(one, 2) for one in took] for name, took in times.items() if took},
        "rows_per_second": {name: round(rows / took) for name, took in best.items()},
        "peak_mebibytes": peaks.found,
    }
    words = {
        "copy": "penstock, the copier",
        "jdbc": f"Spark, JDBC, {PARTITIONS} parts",
        "psql": "psql, COPY to nowhere",
    }
    print(f"{rows:,} rows; load average at the end {figures['load_average']} on {os.cpu_count()} cores")
    for name, took in best.items():
        print(f"{words[name]:28}{took:8.2f} s{rows / took:12,.0f} rows/s")
    if not alone:
        figures["times_jdbc"] = round(best["jdbc"] / best["copy"], 2)
        figures["of_the_limit"] = round(best["psql"] / best["copy"], 2)
        print(f"{figures['times_jdbc']} times JDBC, {figures['of_the_limit']} of the limit")
    print("peak memory: " + ", ".join(f"{role} {size} MiB" for role, size in peaks.found.items()))
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
