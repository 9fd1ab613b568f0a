"""`type: http`: every event to a webhook, at least once.

    {folder}/{source}/stream.json        which stream this is (see `places/description.py`)
    {folder}/{source}/{shard}/…          how far a shard is, and what is being sent (see `shard.py`)

The folder is beside the change log: the one place that the driver and all executors can read and write anyway.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.destinations.http.endpoint import Endpoint, secret_bytes
from penstock.destinations.http.settings import HttpSettings
from penstock.destinations.http.shard import PLACES, HttpPublisher, Pace
from penstock.destinations.http.state import State
from penstock.destinations.key_layout import Ordering
from penstock.destinations.places.chain import chain_in
from penstock.destinations.places.description import Description, described, required, shard_name
from penstock.destinations.places.folder import Folder, folder_at
from penstock.destinations.places.keyed_stream import KeyedStream
from penstock.destinations.stream_contract import ShardPlace


@dataclass(frozen=True)
class HttpStream:
    """How a webhook is used: what the pipeline file says of it."""

    name: str
    endpoint: Endpoint
    batch: int
    pace: Pace
    shards: int = 1
    ordering: Ordering = "key"

    @staticmethod
    def of(settings: HttpSettings) -> HttpStream:
        """Return the stream that a section of the pipeline file describes."""
        signed = settings.signature
        endpoint = Endpoint(
            settings.url,
            settings.method,
            tuple(settings.headers.items()),
            timeout=settings.timeout,
            ca_file=settings.ca_file or "",
            content_type=_content_type(settings.envelope.type, settings.batch),
        )
        if signed is not None:
            secret = secret_bytes(signed.secret.get_secret_value())
            endpoint = replace(endpoint, secret=secret, signature_header=signed.header)
        pace = Pace(settings.retry.first, settings.retry.longest)
        return HttpStream(settings.name, endpoint, settings.batch, pace, settings.shards, settings.ordering)


def _content_type(envelope: str, batch: int) -> str:
    if envelope != "cloudevents":
        return "application/json"
    return "application/cloudevents+json" if batch == 1 else "application/cloudevents-batch+json"


class HttpDestination(KeyedStream):
    def __init__(self, stream: HttpStream, folder: Folder) -> None:
        """`folder` is for places and for what is being sent."""
        super().__init__(stream.name, folder, stream.shards, stream.ordering)
        self._stream = stream

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


def make_stream(settings: HttpSettings, places: str) -> HttpDestination:
    """Make the destination that a section of the pipeline file describes. `places` is a folder for where it is."""
    return HttpDestination(HttpStream.of(settings), folder_at(places).under(settings.name))
