"""Redis and NATS for the behaviour suite: destinations, and what an independent client reads of them."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import nats
import pyarrow as pa
import redis
from nats.js.errors import NotFoundError

from penstock.config.destinations import NatsDestination as NatsSection
from penstock.config.destinations import RedisDestination as RedisSection
from penstock.destinations.nats.destination import NatsDestination
from penstock.destinations.redis.destination import RedisDestination
from penstock.destinations.stream_contract import (
    Layout,
    Published,
    Publisher,
    Records,
    ShardPlace,
    StreamDestination,
    StreamId,
)
from stream_servers import Server

MOVES = "._penstock"  # how subjects of messages end that move the place alone


@dataclass
class Streams:
    """Destinations by number of shards, and the values that a reader sees of a shard."""

    opened: Callable[[int], StreamDestination]
    seen: Callable[[int], list[str]]


def redis_streams(server: Server, **settings: Any) -> Streams:
    """Streams under a name of their own. The suite has one topic: here every shard has another stream."""
    name = f"b{uuid.uuid4().hex[:8]}"

    def opened(shards: int) -> StreamDestination:
        section = RedisSection(
            name=name, type="redis", url=f"redis://127.0.0.1:{server.port}", shards=shards, timeout=5, **settings
        )
        return _ByShard(RedisDestination(section), name)

    def seen(shard: int) -> list[str]:
        with redis.Redis(port=server.port) as client:
            return [fields[b"value"].decode() for _, fields in client.xrange(f"{name}.{shard}")]

    return Streams(opened, seen)


@dataclass(frozen=True)
class _ByShard:
    """A Redis destination whose publishers put the suite's records into a stream of the shard."""

    inner: RedisDestination
    prefix: str
    tombstones: bool = False
    holds_rows: bool = False

    @property
    def name(self) -> str:
        return self.inner.name

    def ensure(self, stream: StreamId) -> Layout:
        return self.inner.ensure(stream)

    def topics(self, source: str, names: Iterable[str]) -> Layout:
        return self.inner.topics(source, list(names))

    def places(self, source: str) -> list[ShardPlace]:
        return self.inner.places(source)

    def publisher(self, source: str, shard: int) -> Publisher:
        return _Renaming(self.inner.publisher(source, shard), f"{self.prefix}.{shard}")


@dataclass
class _Renaming:
    inner: Publisher
    stream: str

    def open(self) -> ShardPlace:
        return self.inner.open()

    def publish(self, records: Iterable[Records], upto: Callable[[], ShardPlace]) -> Published:
        return self.inner.publish((self._renamed(some) for some in records), upto)

    def advance(self, upto: ShardPlace) -> None:
        self.inner.advance(upto)

    def _renamed(self, records: Records) -> Records:
        names = pa.array([self.stream] * len(records.topics.dictionary), pa.string())
        return replace(records, topics=pa.DictionaryArray.from_arrays(records.topics.indices, names))


def nats_streams(server: Server, **settings: Any) -> Streams:
    """Streams under a name of their own."""
    name, used = f"B{uuid.uuid4().hex[:8]}", []

    def opened(shards: int) -> StreamDestination:
        used.append(shards)
        url = [f"nats://127.0.0.1:{server.port}"]
        return NatsDestination(
            NatsSection(name="stream", type="nats", url=url, stream=name, shards=shards, timeout=5, **settings)
        )

    def seen(shard: int) -> list[str]:
        stream = name if used[0] == 1 else f"{name}_{shard}"
        return [message["data"].decode() for message in read_nats(server, stream)]

    return Streams(opened, seen)


def read_nats(server: Server, stream: str, **login: Any) -> list[dict[str, Any]]:
    """Read a whole stream with NATS' own client, in order; messages that move the place alone are left out."""

    async def read() -> list[dict[str, Any]]:
        client = await nats.connect(f"nats://127.0.0.1:{server.port}", **login)
        try:
            context = client.jetstream()
            state = (await context.stream_info(stream)).state
            found = []
            for sequence in range(max(state.first_seq, 1), state.last_seq + 1):
                try:
                    message = await context.get_msg(stream, sequence)
                except NotFoundError:
                    continue
                if not (message.subject or "").endswith(MOVES):
                    headers = dict(message.headers or {})
                    found.append({"subject": message.subject, "data": message.data or b"", "headers": headers})
            return found
        finally:
            await client.close()

    return asyncio.run(read())


def read_nats_events(server: Server, stream: str) -> list[dict[str, Any]]:
    return [json.loads(message["data"]) for message in read_nats(server, stream)]
