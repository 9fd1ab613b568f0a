"""10,000 changes into Delta tables of 1 and 10 million rows: our write and commit beside a tuned MERGE, in one run.

    python benchmarks/delta.py [--rows 1000000 10000000] [--changes 10000] [--batches 5]

For each size there are two equal tables, one for us and one for Spark with Delta's own library; the two take turns,
batch by batch, so that a busy machine slows both. A batch is rows with keys from all over the table, and a few new
ones. MERGE is tuned: deletion vectors on, so it rewrites no file of the table; no checksum file at each commit; two
partitions for the state of the log, and four for the shuffle. Medians, without the first batch of each; in the end
both tables must have the same rows.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from harness import Result, parser, report, say
from penstock.config.delta_destination import DeltaDestination as DeltaConfig
from penstock.destinations.delta.destination import DeltaDestination
from penstock.destinations.lake.warehouse import table_folder
from penstock.destinations.registry import spark_settings
from penstock.model.table import TableId
from penstock.runtime.spark import jars
from penstock.runtime.spark.session import start_session
from targets import BATCH_BY_ROWS, DELTA_AGAINST_MERGE
from upsert import Upserts, rows, timed

FILLED_AT_ONCE = 1_000_000
OURS, MERGE = "upsert", "MERGE"
TUNED = {
    "spark.driver.memory": "4g",
    "spark.sql.shuffle.partitions": "4",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.databricks.delta.writeChecksumFile.enabled": "false",
}


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000], help="of the tables")
    arguments.add_argument("--changes", type=int, default=10_000, help="of a batch")
    arguments.add_argument("--batches", type=int, default=5)
    options = arguments.parse_args()
    times: dict[int, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as text:
        folder = Path(text)
        config = DeltaConfig(type="delta", warehouse=str(folder / "delta"))
        destination = DeltaDestination(config, index=folder / "index")
        destination.open()
        spark = _session(config, folder)
        try:
            for total in options.rows:
                times[total] = _measure(spark, config, destination, total, options)
        finally:
            destination.close()
            spark.stop()
    _report(options, times)


def _session(config: DeltaConfig, folder: Path) -> SparkSession:
    jars.fetch()
    libraries = os.pathsep.join(map(str, [*jars.for_writing(), *jars.for_reading([config])]))
    settings = spark_settings([config], compiled=False, reading=True) | TUNED
    return start_session("bench", settings | {"spark.driver.extraClassPath": libraries}, folder / "spark.log")


def _measure(
    spark: SparkSession, config: DeltaConfig, destination: DeltaDestination, total: int, options: argparse.Namespace
) -> dict[str, list[float]]:
    target = TableId("public", f"ours_{total}")
    ours, theirs = table_folder(config, target), str(Path(config.warehouse) / f"theirs_{total}")
    upserts = Upserts(destination)
    upserts.create(target)
    for first in range(0, total, FILLED_AT_ONCE):
        upserts.apply(target, rows(np.arange(first, min(first + FILLED_AT_ONCE, total)), 0))
    spark.sql(
        f"CREATE TABLE delta.`{theirs}` USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true') "
        f"AS SELECT id, a, b, note FROM delta.`{ours}`"
    )
    say(f"the tables of {total:,} rows are filled")
    chooser, times = np.random.default_rng(1), dict[str, list[float]]({OURS: [], MERGE: []})
    for batch in range(options.batches + 1):
        keys = np.sort(chooser.choice(total + options.changes, options.changes, replace=False))
        changed = rows(keys, batch + 1)
        took = {OURS: timed(upserts.apply, target, changed)}
        pq.write_table(changed, Path(config.warehouse) / "changes.parquet")
        took[MERGE] = timed(_merge, spark, theirs, str(Path(config.warehouse) / "changes.parquet"))
        say(", ".join(f"{name} {seconds:.3f} s" for name, seconds in took.items()))
        if batch:  # the first is Java's warm-up
            for name, seconds in took.items():
                times[name].append(seconds)
    query = "SELECT count(*), sum(hash(id, a, b, note)) FROM delta.`{}`"
    found = [tuple(spark.sql(query.format(one)).collect()[0]) for one in (ours, theirs)]
    if found[0] != found[1]:
        raise SystemExit(f"upsert and MERGE made different tables: {found}")
    return times


def _merge(spark: SparkSession, table: str, changes: str) -> None:
    spark.read.parquet(changes).createOrReplaceTempView("changes")
    spark.sql(
        f"MERGE INTO delta.`{table}` t USING changes s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    ).collect()


def _report(options: argparse.Namespace, times: dict[int, dict[str, list[float]]]) -> None:
    medians = {total: {name: statistics.median(some) for name, some in took.items()} for total, took in times.items()}
    least, most = min(medians), max(medians)
    batch = f"batch of {options.changes:,} changes into Delta"
    results = [
        Result(
            f"{batch}, {total:,} rows",
            f"{took[OURS]:.3f} s",
            f"tuned MERGE {took[MERGE]:.3f} s",
            took[MERGE] / took[OURS],
            "× its speed",
            DELTA_AGAINST_MERGE,
        )
        for total, took in medians.items()
    ]
    if most > least:
        compared = Result(
            f"{batch}, {most:,} rows against {least:,}",
            f"{medians[most][OURS]:.3f} s",
            f"{medians[least][OURS]:.3f} s",
            medians[most][OURS] / medians[least][OURS],
            "× the smaller's time",
            BATCH_BY_ROWS,
        )
        results.append(compared)
    report(
        "delta",
        f"{options.changes:,} changes into Delta tables, medians of {options.batches}",
        ("rows", "upsert, s", "MERGE, s"),
        [(total, took[OURS], took[MERGE]) for total, took in medians.items()],
        options=options,
        results=results,
        seconds=times,
    )


if __name__ == "__main__":
    main()
