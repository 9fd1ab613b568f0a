"""A lake in this very process, for benchmarks of the destination alone: a Spark session and what writes into it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.config.destinations import IcebergDestination as IcebergConfig
from penstock.destinations.iceberg import local_file_io
from penstock.destinations.iceberg.catalog import spark_settings
from penstock.destinations.iceberg.destination import IcebergDestination
from penstock.runtime.spark import jars
from penstock.runtime.spark.session import start_session


@contextmanager
def local_lake() -> Iterator[tuple[SparkSession, IcebergDestination]]:
    """The catalog is `lake`. Nothing is left behind."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as text:
        folder = Path(text)
        jars.fetch()
        config = IcebergConfig(type="iceberg", warehouse=str(folder / "warehouse"))
        settings = spark_settings(config, local_file_io=local_file_io.CLASS) | {"spark.driver.memory": "2g"}
        spark = start_session("bench", settings, folder / "spark.log")
        destination = IcebergDestination(config, spark, index=folder / "index")
        destination.open()
        try:
            yield spark, destination
        finally:
            destination.close()
            spark.stop()
