"""Make a destination by the `type` that the pipeline file gives it. No other module outside knows their classes.

`registry` says what Spark needs for each type. To add one: implement a contract (`contract` for tables,
`stream_contract` for streams), declare the type in `registry`, and make it here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from penstock.destinations.contract import TableDestination
from penstock.destinations.destination_type import DestinationSettings
from penstock.destinations.iceberg.catalog import IcebergSettings
from penstock.destinations.iceberg.destination import IcebergDestination
from penstock.destinations.spark_session import Session


def make_tables(settings: DestinationSettings, spark: Session, *, index: Path) -> TableDestination:
    """Make a destination of tables; the caller opens and closes it. `index` is a folder for its caches."""
    make = _TABLES.get(settings.type)
    if make is None:
        raise TypeError(f"destination {settings.name}: type {settings.type} does not hold tables")
    return make(settings, spark, index)


def _iceberg(settings: IcebergSettings, spark: Session, index: Path) -> TableDestination:
    return IcebergDestination(settings, spark, index=index)


_TABLES: Mapping[str, Callable[..., TableDestination]] = {"iceberg": _iceberg}
