"""An archive of the classes that Spark's Java process loads, so that a start maps them instead of loading them again.

Loading and verifying some ten thousand classes is a third of the time until the first batch. Java keeps them in an
archive (AppCDS) when asked to at its exit; `penstock jars fetch` has it do so after a little of everything that a
pipeline does, and `make install` calls that. Java itself checks that archive, jars and its own
version suit each other, and starts without the archive when they do not.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.config.destinations import IcebergDestination as IcebergConfig
from penstock.destinations.factory import make_tables
from penstock.destinations.registry import spark_settings
from penstock.fold.keys import encode_keys
from penstock.fold.net_effect import NetEffect
from penstock.model.table import Column, ColumnType, TableId, TableSchema
from penstock.runtime.spark import jars
from penstock.runtime.spark.runner import SparkRunner
from penstock.runtime.spark.session import start_session

SOURCE = "archive"
BATCHES = 3
EXIT_SECONDS = 120


def is_current() -> bool:
    """Return whether there is an archive, and no jar is newer than it."""
    place, present = jars.class_archive(), jars.installed()
    return present is not None and place.is_file() and all(_changed_at(jar) <= _changed_at(place) for jar in present)


def _changed_at(file: Path) -> int:
    return file.stat().st_mtime_ns


def build() -> None:
    """Put the archive in its place, whole or not at all."""
    place = jars.class_archive()
    partial = place.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="penstock-archive-") as scratch:
        folder = Path(scratch)
        config = IcebergConfig(type="iceberg", warehouse=str(folder / "warehouse"))
        settings = spark_settings([config], compiled=True)
        settings["spark.driver.extraJavaOptions"] = f"-XX:ArchiveClassesAtExit={partial}"
        spark = start_session(SOURCE, settings, folder / "spark.log")
        _live_a_little(spark, config, folder)
        _end(spark)
    if partial.exists():
        partial.replace(place)


def _live_a_little(spark: SparkSession, config: IcebergConfig, folder: Path) -> None:
    destination = make_tables(config, spark, index=folder / "index")
    destination.open()
    table = TableId("public", "archive")
    columns = (Column("id", ColumnType(20, "int8")), Column("note", ColumnType(25, "text")))
    destination.ensure_table(table, TableSchema(table, 1, columns, ("id",)), SOURCE, 0)
    runner = SparkRunner(spark)
    for number in range(1, BATCHES + 1):
        runner.run(len, ["a task"] * 4)
        plan = destination.plan(table, SOURCE)
        destination.commit(plan, [plan.write(_batch(number))], truncated=False, position=number)
    destination.maintain(table, SOURCE, runner)
    spark.sql(f"SELECT note, count(*), sum(id) FROM {config.name}.public.archive GROUP BY note ORDER BY 2").collect()


def _batch(number: int) -> NetEffect:
    ids = pa.array([1, number], pa.int64()) if number > 1 else pa.array([1], pa.int64())
    rows = pa.table({"id": ids, "note": pa.array(["seen"] * len(ids))})
    keys = encode_keys([ids])
    return NetEffect(False, rows, keys, keys, (), len(ids), 0)


def _end(spark: SparkSession) -> None:
    """Java writes the archive while it exits."""
    gateway = spark.sparkContext._gateway
    spark.stop()
    if gateway is None:
        return
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(EXIT_SECONDS)
