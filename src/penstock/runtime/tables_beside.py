"""Open a destination of tables in this process, with a Spark of its own, beside a run of the same pipeline or without.

For commands that write tables which the run does not follow (`control/replay_tables.py`). Spark runs on this machine,
because on a cluster it might wait for cores that the run holds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.config.any_destination import AnyDestination
from penstock.config.model import Pipeline
from penstock.destinations.contract import JobRunner, TableDestination
from penstock.destinations.factory import make_tables
from penstock.destinations.registry import spark_settings
from penstock.runtime.spark import java_process
from penstock.runtime.spark.lazy_session import LazySession
from penstock.runtime.spark.runner import SparkRunner
from penstock.runtime.spark.session import on_this_machine, start_context


@contextmanager
def tables_beside(pipeline: Pipeline, section: AnyDestination) -> Iterator[tuple[TableDestination, JobRunner]]:
    """Give the open destination and what runs its tasks, until the block ends."""
    settings = spark_settings([section], compiled=True) | on_this_machine(pipeline.spark)
    with tempfile.TemporaryDirectory(prefix="penstock-tables-") as folder:
        spark = LazySession(start_context(f"replay {pipeline.name}", settings, Path(folder) / "spark.log"))
        try:
            with java_process.needing(spark.sparkContext):
                destination = make_tables(section, spark, index=Path(folder) / "index")
                destination.open()
                try:
                    yield destination, SparkRunner(spark)
                finally:
                    destination.close()
        finally:
            spark.stop()
