"""`type: python` as a stream: a user's destination behind the contract of streams.

{folder}/{source}/stream.json        which stream this is (see `places/description.py`)
{folder}/{source}/{shard}/…          how far a shard is (see `publisher.py`)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from penstock.destinations.key_layout import KeyLayout, Ordering
from penstock.destinations.places.description import Description, describe, described, required, shard_name
from penstock.destinations.places.folder import Folder
from penstock.destinations.python.caller import Caller, Raised
from penstock.destinations.python.destination import Destination
from penstock.destinations.python.host import ClassHost, Host, ObjectHost
from penstock.destinations.python.publisher import PythonPublisher
from penstock.destinations.stream_contract import Layout, ShardPlace, StreamId
from penstock.errors import PenstockError

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


class PythonDestination:
    tombstones = False

    def __init__(self, stream: PythonStream, folder: Folder) -> None:
        """`folder` is for places."""
        self._stream, self._folder = stream, folder
        of_class = ClassHost(stream.name, stream.found_at, stream.config, stream.folder, stream.seconds)
        made = stream.made
        self._driver = Caller(stream.name, of_class.make if made is None else lambda: made, stream.seconds)
        self._host: Host = ObjectHost(self._driver) if stream.on_driver else of_class

    @property
    def name(self) -> str:
        return self._stream.name

    def ensure(self, stream: StreamId) -> Layout:
        known = describe(
            self._folder.under(stream.source),
            stream,
            self._stream.shards,
            self._stream.ordering,
            elsewhere="give the destination another `name`",
        )
        return KeyLayout(known.shards, known.ordering)

    def topics(self, source: str, names: Sequence[str]) -> Layout:
        """A user's destination has no topics, and its layout asks for none."""
        return KeyLayout(self._stream.shards, self._stream.ordering)

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
