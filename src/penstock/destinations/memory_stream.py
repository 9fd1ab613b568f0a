"""The in-memory twin of a stream destination: the contract in its plainest form. For tests, in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from penstock.destinations.stream_contract import Layout, Published, Records, ShardPlace, StreamId
from penstock.errors import Overtaken, StreamBroken
from penstock.failpoints import reach
from penstock.model.place import Place


@dataclass
class MemoryShard:
    at: ShardPlace
    turns: int = 0  # publications and advances so far
    records: list[tuple[Place, bytes | None, bytes]] = field(default_factory=list)


@dataclass
class MemoryStreamStore:
    """What outlives a destination: streams by source, and their shards."""

    streams: dict[str, StreamId] = field(default_factory=dict)
    shards: dict[str, list[MemoryShard]] = field(default_factory=dict)

    def values(self, source: str) -> list[list[bytes]]:
        """Return what a reader sees of each shard."""
        return [[value for _, _, value in shard.records] for shard in self.shards.get(source, [])]


@dataclass(frozen=True)
class MemoryStreamDestination:
    name: str
    store: MemoryStreamStore
    shards: int = 1

    def ensure(self, stream: StreamId) -> Layout:
        known = self.store.streams.get(stream.source)
        if known is None:
            self.store.streams[stream.source] = stream
            self.store.shards[stream.source] = [MemoryShard(ShardPlace(stream.start)) for _ in range(self.shards)]
            return Layout(self.shards)
        if known.history != stream.history:
            raise StreamBroken(f"stream {self.name} was published from another change log", "Give it another name")
        if len(self.store.shards[stream.source]) != self.shards:
            raise StreamBroken(f"stream {self.name} has another number of shards", "Set `shards` back")
        return Layout(self.shards)

    def places(self, source: str) -> list[ShardPlace]:
        return [shard.at for shard in self.store.shards.get(source, [])]

    def publisher(self, source: str, shard: int) -> MemoryPublisher:
        return MemoryPublisher(self.store, source, shard)


@dataclass
class MemoryPublisher:
    store: MemoryStreamStore
    source: str
    shard: int
    _turn: int = 0

    def open(self) -> ShardPlace:
        self._turn = self._shard.turns
        return self._shard.at

    def publish(self, records: Iterable[Records], upto: Callable[[], ShardPlace]) -> Published:
        added: list[tuple[Place, bytes | None, bytes]] = []
        for some in records:
            columns = (some.places.to_pylist(), some.keys.to_pylist(), some.values.to_pylist())
            added += zip(*columns, strict=True)
        reach("publish.file_written")
        self._move(upto(), added)
        reach("publish.committed")
        return Published(len(added), sum(len(value) for _, _, value in added))

    def advance(self, upto: ShardPlace) -> None:
        self._move(upto, [])

    @property
    def _shard(self) -> MemoryShard:
        return self.store.shards[self.source][self.shard]

    def _move(self, upto: ShardPlace, added: list[tuple[Place, bytes | None, bytes]]) -> None:
        shard = self._shard
        if shard.turns != self._turn:
            raise Overtaken(f"shard {self.shard} of {self.source} was moved on by another writer", "")
        shard.records += added
        shard.at, shard.turns = upto, shard.turns + 1
        self._turn = shard.turns
