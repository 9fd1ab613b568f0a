"""`type: redis`: streams of a Redis server, exactly once by transactions.

    penstock:NAME:SOURCE             which stream this is: source, shards, history of the change log, start
    penstock:NAME:SOURCE:SHARD       the shard's place (see `publisher.py`)
    as `stream` says                 the streams that consumers read, each in one shard

In a cluster a transaction must stay on one node. So when `stream` has a hash tag (`{shop}.…`), our own keys have it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

from penstock.destinations.redis.client import RedisConnection, Server
from penstock.destinations.redis.layout import StreamLayout
from penstock.destinations.redis.protocol import RedisError, command
from penstock.destinations.redis.publisher import FieldNames, PlaceRecord, RedisPublisher, other_type, read_place
from penstock.destinations.spool import Progress
from penstock.destinations.stream_contract import Layout, ShardPlace, StreamId
from penstock.errors import Overtaken, StreamBroken, TopicsRefused
from penstock.model.place import Place

FORMAT = 1
_HASH_TAG = re.compile(r"(?<!\$)\{([^{}]+)\}")


@dataclass(frozen=True)
class Description:
    """What the key of a stream holds: written once, before anything else."""

    format: int
    source: str
    history: str
    shards: int
    start: Place


class RedisSettings(Protocol):
    """What the pipeline file says of a Redis destination; `config.destinations.RedisDestination` has this shape."""

    @property
    def name(self) -> str: ...

    @property
    def url(self) -> str: ...

    @property
    def ca_file(self) -> str | None: ...

    @property
    def stream(self) -> str: ...

    @property
    def maxlen(self) -> int | None: ...

    @property
    def fields(self) -> FieldNames: ...

    @property
    def shards(self) -> int: ...

    @property
    def timeout(self) -> float: ...


class RedisDestination:
    tombstones = False
    holds_rows = False

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._server = Server(settings.url, settings.timeout, settings.ca_file or "")
        tag = _HASH_TAG.search(settings.stream)
        self._prefix = f"penstock:{{{tag[1]}}}:{settings.name}" if tag else f"penstock:{settings.name}"
        self._layout = StreamLayout(settings.shards)

    @property
    def name(self) -> str:
        return self._settings.name

    def ensure(self, stream: StreamId) -> Layout:
        wanted = Description(FORMAT, stream.source, stream.history, self._settings.shards, stream.start)
        key = self._key(stream.source)
        with self._server.connected() as connection:
            self._require_kept(connection)
            _, found = connection.ask(command("WATCH", key), command("GET", key))
            if found is None:
                found = self._create(connection, key, wanted)
            else:
                connection.ask(command("UNWATCH"))
        self._require_same(key, _described(key, found), wanted)
        self.places(stream.source)
        return self._layout

    def topics(self, source: str, names: Sequence[str]) -> Layout:
        with self._server.connected() as connection:
            kinds = connection.ask(*(command("TYPE", name) for name in names))
        found = dict(zip(names, (kind.decode() for kind in kinds), strict=True))
        wrong = {name: other_type(name, kind) for name, kind in found.items() if kind not in ("none", "stream")}
        self._layout = self._layout.with_streams(name for name in names if name not in wrong)
        if wrong:
            raise TopicsRefused(wrong, "Rename or remove that key, or change `stream`; then: penstock retry FILE TABLE")
        return self._layout

    def places(self, source: str) -> list[ShardPlace]:
        key = self._key(source)
        with self._server.connected() as connection:
            (found,) = connection.ask(command("GET", key))
            if found is None:
                return []
            keys = [self._key(source, shard) for shard in range(_described(key, found).shards)]
            (places,) = connection.ask(command("MGET", *keys))
        return [read_place(one, place).progress.at for one, place in zip(keys, places, strict=True)]

    def publisher(self, source: str, shard: int) -> RedisPublisher:
        return RedisPublisher(self._server, self._key(source, shard), self._settings.fields, self._settings.maxlen)

    def _key(self, source: str, shard: int | None = None) -> str:
        return f"{self._prefix}:{source}" if shard is None else f"{self._prefix}:{source}:{shard}"

    def _create(self, connection: RedisConnection, key: str, wanted: Description) -> bytes:
        """Write the description and all places in one step; return the description that counts."""
        text = json.dumps(asdict(wanted)).encode()
        place = PlaceRecord(0, Progress(ShardPlace(wanted.start))).to_bytes()
        shards = [command("SET", self._key(wanted.source, shard), place) for shard in range(wanted.shards)]
        *_, done = connection.ask(command("MULTI"), command("SET", key, text), *shards, command("EXEC"))
        if done is None:  # somebody else was first
            raise Overtaken(f"{key} was created by another writer", "Nothing: it is tried again")
        connection.require(done)
        return text

    def _require_kept(self, connection: RedisConnection) -> None:
        """Refuse a server that removes keys as it likes when its memory is full."""
        (answer,) = connection.send(command("INFO", "memory"), 1)
        if isinstance(answer, RedisError):  # the user may not ask; nothing depends on it
            return
        lines = (line.partition(":") for line in answer.decode().splitlines())
        facts = {name: value for name, _, value in lines}
        policy = facts.get("maxmemory_policy", "noeviction")
        if facts.get("maxmemory", "0") != "0" and policy.startswith("allkeys"):
            raise StreamBroken(
                f"{connection.address.text}: its maxmemory-policy is {policy}: it may remove streams and their place",
                "Set maxmemory-policy to noeviction, or to one of volatile-*",
            )

    def _require_same(self, key: str, known: Description, wanted: Description) -> None:
        elsewhere = "give the destination another `name`"
        where = f"stream {self.name} ({self._server.address.text}, key {key})"
        if known.format != FORMAT:
            raise StreamBroken(
                f"{where} has format {known.format}, and this penstock writes format {FORMAT}",
                f"Use the penstock that wrote it, or {elsewhere}",
            )
        if known.shards != wanted.shards:
            raise StreamBroken(
                f"{where} has {known.shards} shards, and the file says `shards: {wanted.shards}`: streams would move "
                "between shards, and their places would not fit",
                f"Set `shards` to {known.shards}, or {elsewhere}",
            )
        if known.history != wanted.history:
            raise StreamBroken(
                f"{where} was published from another change log than the present one: where it ended means nothing "
                "here",
                f"To start a new stream, {elsewhere} or remove {key} and {key}:*",
            )


def _described(key: str, found: bytes) -> Description:
    try:
        return Description(**json.loads(found))
    except (ValueError, TypeError) as error:
        raise StreamBroken(f"the key {key} cannot be read: {error}", "Restore it from a backup") from error


def make_stream(settings: RedisSettings, places: str) -> RedisDestination:
    """Make the destination that a section of the pipeline file describes; it keeps its places itself."""
    return RedisDestination(settings)
