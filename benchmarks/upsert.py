"""20,000 changes into a table of 1,000,000 rows: our write and commit against Spark's MERGE, in one run.

    python benchmarks/upsert.py [--rows 1000000] [--changes 20000] [--batches 5]

The two take turns, batch by batch, on two equal tables, so that a busy machine slows both. Medians and their ratio, the
time of a small commit, and how the tables read afterwards.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from harness import Result, parser, report, say
from local_lake import local_lake
from penstock.decode.schema import arrow_schema
from penstock.destinations.contract import InProcessRunner, TableDestination
from penstock.fold.keys import encode_keys
from penstock.fold.net_effect import NetEffect
from penstock.model.table import Column, ColumnType, TableId, TableSchema
from watch import Watch

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

    def __init__(self, destination: TableDestination) -> None:
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


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--rows", type=int, default=1_000_000, help="of the table")
    arguments.add_argument("--changes", type=int, default=20_000, help="of a batch")
    arguments.add_argument("--batches", type=int, default=5)
    options = arguments.parse_args()
    total, changes, batches = options.rows, options.changes, options.batches
    times: dict[str, list[float]] = {"upsert": [], "MERGE": [], "small": [], "maintenance": []}
    with local_lake() as (spark, destination), tempfile.TemporaryDirectory(prefix="penstock-bench-") as text:
        ours = Upserts(destination)
        for target in (OURS, THEIRS, TINY):
            ours.create(target)
        for target in (OURS, THEIRS):
            ours.apply(target, rows(np.arange(total), 0))
        spark.sql("ALTER TABLE lake.public.theirs SET TBLPROPERTIES ('write.merge.mode' = 'merge-on-read')")
        say("the tables are filled")
        chooser = np.random.default_rng(1)
        with Watch(os.getpid()) as watch:
            for batch in range(batches + 1):
                upserts = rows(np.sort(chooser.choice(total + changes, changes, replace=False)), batch + 1)
                took = timed(ours.apply, OURS, upserts), timed(merge, spark, Path(text), upserts)
                say(f"upsert {took[0]:.3f} s, MERGE {took[1]:.3f} s")
                if batch:  # the first is Java's warm-up
                    times["upsert"].append(took[0])
                    times["MERGE"].append(took[1])
        for number in range(SMALL_COMMITS):
            times["small"].append(timed(ours.apply, TINY, rows(np.arange(number, number + 10), number)))
            times["maintenance"].append(timed(destination.maintain, TINY, "bench", InProcessRunner()))
        reads = _reads(spark)
    compactions = [took for took in times["maintenance"] if took > 0.005]
    medians = {name: statistics.median(times[name]) for name in ("upsert", "MERGE")}
    report(
        "upsert",
        f"{changes:,} changes into {total:,} rows, median of {batches}",
        ("what", "seconds"),
        [
            ("upsert", medians["upsert"]),
            ("MERGE", medians["MERGE"]),
            ("commit of 10 changes into a small table", _later_median(times["small"])),
            (f"its compaction, {len(compactions)} times in {SMALL_COMMITS} commits", _later_median(compactions)),
            *((f"read of {name} afterwards", seconds) for name, seconds in reads.items()),
        ],
        options=options,
        results=[
            Result(
                f"{changes:,} changes into {total:,} rows",
                f"{medians['upsert']:.3f} s",
                f"Spark's MERGE {medians['MERGE']:.3f} s",
                medians["MERGE"] / medians["upsert"],
                "× its speed",
            )
        ],
        processes={"this process": watch.roles},
        seconds=times,
    )


def _reads(spark: SparkSession) -> dict[str, float]:
    queries = {target.name: f"SELECT count(*), sum(a) FROM lake.public.{target.name}" for target in (OURS, THEIRS)}
    reads: dict[str, list[float]] = {name: [] for name in queries}
    for _ in range(READS):
        for name, query in queries.items():
            reads[name].append(timed(read, spark, query))
    if len({tuple(spark.sql(query).collect()[0]) for query in queries.values()}) != 1:
        raise SystemExit("upsert and MERGE made different tables")
    return {name: _later_median(took) for name, took in reads.items()}


def _later_median(times: list[float]) -> float:
    return statistics.median(times[len(times) // 2 :]) if times else 0.0


if __name__ == "__main__":
    main()
