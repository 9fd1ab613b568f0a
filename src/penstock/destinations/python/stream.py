"""`type: python` as a stream: a user's destination behind the contract of streams.

{folder}/{source}/stream.json        which stream this is (see `places/description.py`)
{folder}/{source}/{shard}/…          how far a shard is (see `publisher.py`)
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import structlog

from penstock.destinations.key_layout import Ordering
from penstock.destinations.places.description import Description, described, required, shard_name
from penstock.destinations.places.folder import Folder, folder_at
from penstock.destinations.places.keyed_stream import KeyedStream
from penstock.destinations.python.caller import Caller, Raised
from penstock.destinations.python.destination import Destination
from penstock.destinations.python.host import ClassHost, Host, ObjectHost
from penstock.destinations.python.publisher import PythonPublisher
from penstock.destinations.python.settings import PythonSettings
from penstock.destinations.python.tables import TableDestination
from penstock.destinations.stream_contract import ShardPlace
from penstock.errors import ConfigError, PenstockError

LOG = structlog.get_logger("destination")


@dataclass(frozen=True)
class PythonStream:
    """How a user's destination is used: what the pipeline file says of it. `made` is an object instead of a class."""

    name: str
    found_at: str
    config: str
    folder: str
    seconds: float
    most: int
    shards: int = 1
    ordering: Ordering = "key"
    on_driver: bool = True
    made: Destination | None = None

    @staticmethod
    def of(settings: PythonSettings) -> PythonStream:
        """Return the stream that a section of the pipeline file describes."""
        return PythonStream(
            name=settings.name,
            found_at=settings.found_at or "",
            config=json.dumps(dict(settings.config)),
            folder=settings.module_folder,
            seconds=settings.timeout,
            most=settings.most_events,
            shards=settings.shards,
            ordering=settings.ordering,
            on_driver=settings.on_driver,
            made=settings.made,
        )


class PythonDestination(KeyedStream):
    def __init__(self, stream: PythonStream, folder: Folder) -> None:
        """`folder` is for places."""
        super().__init__(stream.name, folder, stream.shards, stream.ordering)
        self._stream = stream
        of_class = ClassHost(stream.name, stream.found_at, stream.config, stream.folder, stream.seconds)
        made = stream.made
        self._driver = Caller(stream.name, of_class.make if made is None else lambda: made, stream.seconds)
        self._host: Host = ObjectHost(self._driver) if stream.on_driver else of_class

    @property
    def holds_rows(self) -> bool:
        return self._driver.call(lambda destination: isinstance(destination, TableDestination))

    def places(self, source: str) -> list[ShardPlace]:
        known = described(self._folder.under(source))
        if known is None:
            return []
        driver = ObjectHost(self._driver)
        return [self._publisher(source, shard, known, driver).open() for shard in range(known.shards)]

    def publisher(self, source: str, shard: int) -> PythonPublisher:
        return self._publisher(source, shard, required(self._folder.under(source)), self._host)

    def close(self) -> None:
        """Shut the user's object in the driver down. What it raises is logged: everything is published by now."""
        try:
            self._driver.close()
        except (Raised, PenstockError) as error:
            LOG.warning("destination not shut down", destination=self.name, what=str(error))

    def _publisher(self, source: str, shard: int, known: Description, host: Host) -> PythonPublisher:
        return PythonPublisher(
            host,
            self._folder.under(source).under(shard_name(shard)),
            f"{self.name}/{source}/{shard}",
            known.history,
            known.start,
            self._stream.most,
        )


def make_stream(settings: PythonSettings, places: str) -> PythonDestination:
    """Make the destination that a section of the pipeline file describes. `places` is a folder for where it is."""
    if settings.found_at is None and settings.made is None:
        raise ConfigError(
            f"destination {settings.name} names no `class`",
            "Name it in the file, or run the file from a program: penstock.Pipeline(file, destination=…)",
        )
    return PythonDestination(PythonStream.of(settings), folder_at(places).under(settings.name))
