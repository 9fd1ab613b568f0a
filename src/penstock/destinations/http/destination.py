"""`type: http`: every event to a webhook, at least once.

    {folder}/{source}/stream.json        which stream this is (see `places/description.py`)
    {folder}/{source}/{shard}/…          how far a shard is, and what is being sent (see `shard.py`)

The folder is beside the change log: the one place that the driver and all executors can read and write anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.destinations.http.endpoint import Endpoint
from penstock.destinations.http.shard import PLACES, HttpPublisher, Pace
from penstock.destinations.http.state import State
from penstock.destinations.key_layout import KeyLayout, Ordering
from penstock.destinations.places.chain import chain_in
from penstock.destinations.places.description import Description, describe, described, required, shard_name
from penstock.destinations.places.folder import Folder
from penstock.destinations.stream_contract import Layout, ShardPlace, StreamId


@dataclass(frozen=True)
class HttpStream:
    """How a webhook is used: what the pipeline file says of it."""

    name: str
    endpoint: Endpoint
    batch: int
    pace: Pace
    shards: int = 1
    ordering: Ordering = "key"


class HttpDestination:
    tombstones = False

    def __init__(self, stream: HttpStream, folder: Folder) -> None:
        """`folder` is for places and for what is being sent."""
        self._stream, self._folder = stream, folder

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
        """A webhook has no topics, and its layout asks for none."""
        return KeyLayout(self._stream.shards, self._stream.ordering)

    def places(self, source: str) -> list[ShardPlace]:
        folder = self._folder.under(source)
        known = described(folder)
        if known is None:
            return []
        return [_place(folder.under(shard_name(shard)), known) for shard in range(known.shards)]

    def publisher(self, source: str, shard: int) -> HttpPublisher:
        folder = self._folder.under(source)
        known = required(folder)
        return HttpPublisher(
            folder.under(shard_name(shard)),
            f"{known.id}-{shard}",
            known.start,
            self._stream.endpoint,
            self._stream.batch,
            self._stream.pace,
        )


def _place(shard: Folder, known: Description) -> ShardPlace:
    record = chain_in(shard.under(PLACES)).newest()
    return ShardPlace(known.start) if record is None else State.from_record(record).at
