"""20,000 changes into a table of 1,000,000 rows: our write and commit against Spark's MERGE, in one run.

`python benchmarks/upsert.py [ROWS] [CHANGES] [BATCHES]`. The two take turns, batch by batch, on two equal tables, so
that a busy machine slows both. Prints medians and their ratio, the time of a small commit, and how the tables read
afterwards.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from penstock.config.model import IcebergDestination as IcebergConfig
from penstock.decode.schema import arrow_schema
from penstock.destinations.contract import InProcessRunner
from penstock.destinations.iceberg.catalog import spark_settings
from penstock.destinations.iceberg.destination import IcebergDestination
from penstock.fold.keys import encode_keys
from penstock.fold.net_effect import NetEffect
from penstock.model.table import Column, ColumnType, TableId, TableSchema
from penstock.runtime import jars, local_file_io
from penstock.runtime.spark import start_session

OURS, THEIRS, TINY = TableId("public", "ours"), TableId("public", "theirs"), TableId("public", "tiny")
COLUMNS = (
    Column("id", ColumnType(20, "int8")),
    Column("a", ColumnType(23, "int4")),
    Column("b", ColumnType(701, "float8")),
    Column("note", ColumnType(25, "text")),
)
SMALL_COMMITS = 40
READS = 6


def schema(target: TableId) -> TableSchema:
    return TableSchema(target, 1, COLUMNS, ("id",))


def rows(keys: npt.NDArray[np.int64], value: int) -> pa.Table:
    notes = pa.array([f"text-{key}" for key in keys.tolist()], pa.string())
    columns = [
        pa.array(keys),
        pa.array(np.full(len(keys), value, np.int32)),
        pa.array(np.random.rand(len(keys))),
        notes,
    ]
    return pa.table(columns, schema=arrow_schema(schema(OURS)))


def net(upserts: pa.Table) -> NetEffect:
    keys = encode_keys([upserts["id"].combine_chunks()])
    return NetEffect(False, upserts, keys, keys, (), upserts.num_rows, 0)


class Upserts:
    """Our own write and commit, in this process."""

    def __init__(self, destination: IcebergDestination) -> None:
        self.destination = destination
        self.positions: dict[TableId, int] = {}

    def create(self, target: TableId) -> None:
        self.destination.ensure_table(target, schema(target), "bench", 1)
        self.positions[target] = 1

    def apply(self, target: TableId, upserts: pa.Table) -> None:
        plan = self.destination.plan(target, "bench")
        self.positions[target] += 1
        parts = [plan.write(net(upserts))]
        self.destination.commit(plan, parts, truncated=False, position=self.positions[target])


def merge(spark: SparkSession, folder: Path, upserts: pa.Table) -> None:
    """The same rows through MERGE; they come as Parquet, which is its quickest way in."""
    file = folder / "changes.parquet"
    pq.write_table(upserts, file)
    spark.read.parquet(str(file)).createOrReplaceTempView("changes")
    spark.sql(
        "MERGE INTO lake.public.theirs t USING changes s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )


def read(spark: SparkSession, query: str) -> None:
    spark.sql(query).collect()


def timed(work: Callable[..., object], *arguments: object) -> float:
    began = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - began


def main(total: int, changes: int, batches: int) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as text:
        folder = Path(text)
        jars.fetch()
        config = IcebergConfig(type="iceberg", warehouse=str(folder / "warehouse"))
        spark = start_session(
            "bench",
            spark_settings(config, local_file_io=local_file_io.CLASS) | {"spark.driver.memory": "2g"},
            folder / "spark.log",
        )
        destination = IcebergDestination(config, spark, index=folder / "index")
        destination.open()
        ours = Upserts(destination)
        for target in (OURS, THEIRS, TINY):
            ours.create(target)
        for target in (OURS, THEIRS):
            ours.apply(target, rows(np.arange(total), 0))
        spark.sql("ALTER TABLE lake.public.theirs SET TBLPROPERTIES ('write.merge.mode' = 'merge-on-read')")
        chooser = np.random.default_rng(1)
        upsert_times, merge_times = [], []
        for batch in range(batches + 1):
            upserts = rows(np.sort(chooser.choice(total + changes, changes, replace=False)), batch + 1)
            took = timed(ours.apply, OURS, upserts), timed(merge, spark, folder, upserts)
            if batch:  # the first is the JVM's warm-up
                upsert_times.append(took[0])
                merge_times.append(took[1])
        small, maintenance = [], []
        for number in range(SMALL_COMMITS):
            small.append(timed(ours.apply, TINY, rows(np.arange(number, number + 10), number)))
            maintenance.append(timed(destination.maintain, TINY, InProcessRunner()))
        upsert, merged = statistics.median(upsert_times), statistics.median(merge_times)
        print(f"{changes} changes into {total} rows, median of {batches}: upsert {upsert:.3f} s, MERGE {merged:.3f} s")
        print(f"MERGE takes {merged / upsert:.1f} times as long")
        print(f"commit of 10 changes into a small table, median of the last half: {_ms(small)} ms")
        done = [took for took in maintenance if took > 0.005]
        print(f"compaction of that table: {len(done)} times in {SMALL_COMMITS} commits, median {_ms(done)} ms")
        queries = {target: f"SELECT count(*), sum(a) FROM lake.public.{target.name}" for target in (OURS, THEIRS)}
        reads: dict[TableId, list[float]] = {target: [] for target in queries}
        for _ in range(READS):
            for target, query in queries.items():
                reads[target].append(timed(read, spark, query))
        for target, query in queries.items():
            print(f"read of {target.name}: {_ms(reads[target])} ms {tuple(spark.sql(query).collect()[0])}")
        spark.stop()


def _ms(times: list[float]) -> float:
    return round(1000 * statistics.median(times[len(times) // 2 :]), 1)


if __name__ == "__main__":
    given = [int(argument) for argument in sys.argv[1:]]
    main(*(given + [1_000_000, 20_000, 5][len(given) :]))
