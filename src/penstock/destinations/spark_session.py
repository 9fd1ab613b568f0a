"""What destinations and jobs need of a Spark session, whoever makes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from pyspark import SparkContext


class Settings(Protocol):
    @property
    def getAll(self) -> Mapping[str, str]: ...


class Session(Protocol):
    """A Spark session, or something that makes its SQL side when it is first asked for."""

    @property
    def conf(self) -> Settings: ...

    @property
    def sparkContext(self) -> SparkContext: ...

    def sql(self, query: str, /) -> Any: ...
