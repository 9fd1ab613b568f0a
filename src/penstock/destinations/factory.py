"""Make a destination by the `type` that the pipeline file gives it. No other module outside knows their classes.

Each room says in its `declaration` what makes its destinations, and `registry` lists the rooms. What makes them is
imported when the first one is made: some need a library that is an extra.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from penstock.destinations.contract import TableDestination
from penstock.destinations.destination_type import DestinationSettings
from penstock.destinations.reading import ReadableTables
from penstock.destinations.registry import type_of
from penstock.destinations.spark_session import Session
from penstock.destinations.stream_contract import StreamDestination
from penstock.errors import EnvironmentMissing


def make_tables(settings: DestinationSettings, spark: Session, *, index: Path) -> TableDestination:
    """Make a destination of tables; the caller opens and closes it. `index` is a folder for its caches."""
    make = _named(settings, type_of(settings).tables, "does not hold tables")
    made: TableDestination = make(settings, spark, index)
    return made


def make_readable(settings: DestinationSettings) -> ReadableTables:
    """Make what reads a destination's tables back. Nothing is opened or connected to."""
    make = _named(settings, type_of(settings).readable, "does not hold tables")
    made: ReadableTables = make(settings)
    return made


def make_stream(settings: DestinationSettings, *, places: str) -> StreamDestination:
    """Make a stream destination. It needs neither Spark nor opening.

    `places` is a folder that all executors can read and write, for destinations that cannot keep places themselves."""
    make = _named(settings, type_of(settings).stream, "is not a stream")
    made: StreamDestination = make(settings, places)
    return made


def close_stream(stream: StreamDestination) -> None:
    """Let go of what a stream destination holds in the driver, if it holds anything."""
    close: Callable[[], None] | None = getattr(stream, "close", None)
    if close is not None:
        close()


def _named(settings: DestinationSettings, name: str, problem: str) -> Callable[..., Any]:
    """Import what a type names as `module:name`. EnvironmentMissing if that needs a library which is not installed."""
    if not name:
        raise TypeError(f"destination {settings.name}: type {settings.type} {problem}")
    module, _, attribute = name.partition(":")
    try:
        made: Callable[..., Any] = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name != type_of(settings).library:
            raise
        raise EnvironmentMissing(
            f"`type: {settings.type}` needs the library {error.name}, which is not installed",
            f"Install it on every host that runs penstock: pip install 'penstock[{settings.type}]'",
        ) from error
    return made
