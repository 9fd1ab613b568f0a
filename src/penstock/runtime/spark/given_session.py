"""A Spark session that the user's program has started: used as it is, where that can work, and never stopped.

penstock starts Spark with settings and jars of its own. A session that somebody else started has neither, and most of
them cannot be added later: what a pipeline needs of it is looked for, and what is missing is named.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from penstock.config.model import Pipeline
from penstock.destinations.registry import spark_settings
from penstock.errors import EnvironmentMissing
from penstock.runtime.spark import jars
from penstock.runtime.spark.lazy_session import LazySession
from penstock.runtime.spark.session import is_local


class GivenSession(LazySession):
    """A session that exists already. Stopping it is its owner's to do."""

    def __init__(self, whole: SparkSession) -> None:
        super().__init__(whole.sparkContext)
        self._made = whole

    def stop(self) -> None:
        """Leave it running."""


def given_session(pipeline: Pipeline, given: Any) -> LazySession:
    """Return the session as a pipeline uses it. EnvironmentMissing when the pipeline cannot work in it."""
    if not isinstance(given, SparkSession):
        raise EnvironmentMissing(
            f"`spark=` is a {type(given).__module__}.{type(given).__name__}: penstock needs a session with a Spark "
            "driver in this process",
            "Leave `spark=` out: penstock then starts a Spark of its own",
        )
    wanted = spark_settings(pipeline.destinations, compiled=jars.installed() is not None)
    there = dict(given.sparkContext.getConf().getAll())
    missing = [f"{name}={value}" for name, value in sorted(wanted.items()) if there.get(name) != value]
    if missing:
        raise EnvironmentMissing(
            f"the Spark session lacks settings that the destinations need: {', '.join(missing)}",
            "Start it with them and with penstock's jars (`penstock jars`), or leave `spark=` out",
        )
    if not is_local(there) and "spark.pyspark.python" not in there and not pipeline.spark:
        raise EnvironmentMissing(
            "the Spark session is on a cluster, and nobody says which Python its executors run penstock with",
            "Start it with spark.pyspark.python, or leave `spark=` out and name the cluster in the file",
        )
    return GivenSession(given)
