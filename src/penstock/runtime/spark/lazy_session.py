"""A Spark session whose SQL side is made when somebody first asks for it.

It takes Java more than a second of its time to make, and a run mostly needs none of it: jobs are plain tasks, and
tables are committed through Iceberg's own library.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from penstock.runtime.spark import java_process


@dataclass(frozen=True)
class ContextSettings:
    context: SparkContext

    @property
    def getAll(self) -> dict[str, str]:
        return dict(self.context.getConf().getAll())


class LazySession:
    """Has what destinations need of a session. May be asked from any thread."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._made: SparkSession | None = None
        self._making = threading.Lock()

    @property
    def sparkContext(self) -> SparkContext:
        return self._context

    @property
    def conf(self) -> ContextSettings:
        return ContextSettings(self._context)

    @property
    def whole(self) -> SparkSession:
        """With SQL."""
        with self._making:
            if self._made is None:
                self._made = SparkSession(self._context)
            return self._made

    def sql(self, query: str) -> DataFrame:
        return self.whole.sql(query)

    def stop(self) -> None:
        with self._making:
            java_process.stop(self._made or self._context)
