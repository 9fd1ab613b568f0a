"""Make a destination by the `type` that the pipeline file gives it. No other module outside knows their classes.

`registry` says what Spark needs for each type. To add one: implement a contract (`contract` and `reading` for tables,
`stream_contract` for streams), declare the type in `registry`, and make it here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from penstock.destinations.contract import TableDestination
from penstock.destinations.delta.destination import DeltaDestination
from penstock.destinations.delta.reading import DeltaTables
from penstock.destinations.destination_type import DestinationSettings
from penstock.destinations.files.destination import FilesDestination
from penstock.destinations.files.growing import GrowingFile, is_growing
from penstock.destinations.files.settings import FilesSettings
from penstock.destinations.http.destination import HttpDestination, HttpStream
from penstock.destinations.http.settings import HttpSettings
from penstock.destinations.iceberg.catalog import IcebergSettings
from penstock.destinations.iceberg.destination import IcebergDestination
from penstock.destinations.iceberg.reading import IcebergTables
from penstock.destinations.lake.settings import LakeSettings
from penstock.destinations.nats.destination import NatsDestination, NatsSettings
from penstock.destinations.places.folder import Folder, folder_at
from penstock.destinations.postgres.destination import PostgresDestination, PostgresSettings
from penstock.destinations.postgres.reading import PostgresTables
from penstock.destinations.python.settings import PythonSettings
from penstock.destinations.python.stream import PythonDestination, PythonStream
from penstock.destinations.reading import ReadableTables
from penstock.destinations.redis.destination import RedisDestination, RedisSettings
from penstock.destinations.spark_session import Session
from penstock.destinations.stdout.destination import StdoutDestination, StdoutSettings
from penstock.destinations.stream_contract import StreamDestination
from penstock.errors import ConfigError, EnvironmentMissing


def make_tables(settings: DestinationSettings, spark: Session, *, index: Path) -> TableDestination:
    """Make a destination of tables; the caller opens and closes it. `index` is a folder for its caches."""
    make = _TABLES.get(settings.type)
    if make is None:
        raise TypeError(f"destination {settings.name}: type {settings.type} does not hold tables")
    return make(settings, spark, index)


def make_readable(settings: DestinationSettings) -> ReadableTables:
    """Make what reads a destination's tables back. Nothing is opened or connected to."""
    make = _READABLE.get(settings.type)
    if make is None:
        raise TypeError(f"destination {settings.name}: type {settings.type} does not hold tables")
    return make(settings)


def make_stream(settings: DestinationSettings, *, places: str) -> StreamDestination:
    """Make a stream destination. It needs neither Spark nor opening.

    `places` is a folder that all executors can read and write, for destinations that cannot keep places themselves."""
    beside = _WITH_PLACES.get(settings.type)
    if beside is not None:
        return beside(settings, folder_at(places).under(settings.name))
    make = _STREAMS.get(settings.type)
    if make is None:
        raise TypeError(f"destination {settings.name}: type {settings.type} is not a stream")
    return make(settings)


def close_stream(stream: StreamDestination) -> None:
    """Let go of what a stream destination holds in the driver, if it holds anything."""
    close: Callable[[], None] | None = getattr(stream, "close", None)
    if close is not None:
        close()


def _iceberg(settings: IcebergSettings, spark: Session, index: Path) -> TableDestination:
    return IcebergDestination(settings, spark, index=index)


def _delta(settings: LakeSettings, spark: Session, index: Path) -> TableDestination:
    return DeltaDestination(settings, index=index)


def _postgres(settings: PostgresSettings, spark: Session, index: Path) -> TableDestination:
    return PostgresDestination(settings)


def _files(settings: FilesSettings) -> StreamDestination:
    if is_growing(settings.path):
        return GrowingFile(settings.name, settings.path)
    return FilesDestination.of(settings)


def _http(settings: HttpSettings, folder: Folder) -> StreamDestination:
    return HttpDestination(HttpStream.of(settings), folder)


def _kafka(settings: DestinationSettings) -> StreamDestination:
    room = _optional("penstock.destinations.kafka.destination", "confluent_kafka", extra="kafka")
    made: StreamDestination = room.KafkaDestination(settings)
    return made


def _optional(module: str, library: str, *, extra: str) -> Any:
    """Import a module that needs a library which not everybody has installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != library:
            raise
        raise EnvironmentMissing(
            f"`type: {extra}` needs the library {library}, which is not installed",
            f"Install it on every host that runs penstock: pip install 'penstock[{extra}]'",
        ) from error


def _python(settings: PythonSettings, folder: Folder) -> StreamDestination:
    if settings.found_at is None and settings.made is None:
        raise ConfigError(
            f"destination {settings.name} names no `class`",
            "Name it in the file, or run the file from a program: penstock.Pipeline(file, destination=…)",
        )
    return PythonDestination(PythonStream.of(settings), folder)


def _stdout(settings: StdoutSettings, folder: Folder) -> StreamDestination:
    return StdoutDestination(settings.name, folder, settings.shards, settings.ordering)


def _nats(settings: NatsSettings) -> StreamDestination:
    return NatsDestination(settings)


def _redis(settings: RedisSettings) -> StreamDestination:
    return RedisDestination(settings)


_TABLES: Mapping[str, Callable[..., TableDestination]] = {
    "delta": _delta,
    "iceberg": _iceberg,
    "postgres": _postgres,
}
_READABLE: Mapping[str, Callable[..., ReadableTables]] = {
    "delta": DeltaTables,
    "iceberg": IcebergTables,
    "postgres": PostgresTables,
}
_STREAMS: Mapping[str, Callable[..., StreamDestination]] = {
    "files": _files,
    "kafka": _kafka,
    "nats": _nats,
    "redis": _redis,
}
_WITH_PLACES: Mapping[str, Callable[..., StreamDestination]] = {
    "http": _http,
    "python": _python,
    "stdout": _stdout,
}
