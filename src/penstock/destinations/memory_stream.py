"""The in-memory twin of a stream destination: the contract in its plainest form. For tests, in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from penstock.destinations.key_layout import KeyLayout
from penstock.destinations.stream_contract import (
    Indexes,
    Layout,
    Mask,
    Partitions,
    Published,
    Records,
    ShardPlace,
    StreamId,
)
from penstock.errors import Overtaken, RecordRefused, StreamBroken, TopicsRefused, UnknownTopics
from penstock.failpoints import reach
from penstock.model.place import Place


@dataclass(frozen=True)
class MemoryRecord:
    place: Place
    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass
class MemoryShard:
    at: ShardPlace
    turns: int = 0  # publications and advances so far
    records: list[MemoryRecord] = field(default_factory=list)


@dataclass(frozen=True)
class TopicLayout:
    """A layout that knows topics, as brokers have them: each of one partition, in one shard like any other record."""

    by_key: KeyLayout
    topics: frozenset[str] = frozenset()

    @property
    def shards(self) -> int:
        return self.by_key.shards

    def select(
        self, shard: int, topics: pa.DictionaryArray, keys: pa.Array, everywhere: Mask
    ) -> tuple[Indexes, Partitions]:
        used = np.unique(np.asarray(topics.indices)).tolist()
        unknown = {topics.dictionary[number].as_py() for number in used} - self.topics
        if unknown:
            raise UnknownTopics(unknown)
        return self.by_key.select(shard, topics, keys, everywhere)


@dataclass
class MemoryStreamStore:
    """What outlives a destination: streams by source, their shards, and topics (None: it has no such thing).

    `forbidden` topics cannot be made. A record that is longer than `longest` is refused."""

    streams: dict[str, StreamId] = field(default_factory=dict)
    shards: dict[str, list[MemoryShard]] = field(default_factory=dict)
    topics: set[str] | None = None
    forbidden: set[str] = field(default_factory=set)
    longest: int = 2**31

    def values(self, source: str) -> list[list[bytes | None]]:
        """Return what a reader sees of each shard."""
        return [[record.value for record in shard.records] for shard in self.shards.get(source, [])]


@dataclass(frozen=True)
class MemoryStreamDestination:
    name: str
    store: MemoryStreamStore
    shards: int = 1
    tombstones: bool = True
    holds_rows: bool = False

    def ensure(self, stream: StreamId) -> Layout:
        known = self.store.streams.get(stream.source)
        if known is None:
            self.store.streams[stream.source] = stream
            self.store.shards[stream.source] = [MemoryShard(ShardPlace(stream.start)) for _ in range(self.shards)]
            return self._layout()
        if known.history != stream.history:
            raise StreamBroken(f"stream {self.name} was published from another change log", "Give it another name")
        if len(self.store.shards[stream.source]) != self.shards:
            raise StreamBroken(f"stream {self.name} has another number of shards", "Set `shards` back")
        return self._layout()

    def topics(self, source: str, names: Sequence[str]) -> Layout:
        refused = sorted(set(names) & self.store.forbidden)
        if self.store.topics is not None:
            self.store.topics |= set(names) - self.store.forbidden
        if refused:
            raise TopicsRefused(dict.fromkeys(refused, "it may not be made"), "Choose another name")
        return self._layout()

    def places(self, source: str) -> list[ShardPlace]:
        return [shard.at for shard in self.store.shards.get(source, [])]

    def publisher(self, source: str, shard: int) -> MemoryPublisher:
        return MemoryPublisher(self.store, source, shard)

    def _layout(self) -> Layout:
        by_key = KeyLayout(self.shards)
        return by_key if self.store.topics is None else TopicLayout(by_key, frozenset(self.store.topics))


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
        added = [record for some in records for record in _read(some)]
        long = [record.place for record in added if len(record.value or b"") > self.store.longest]
        if long:
            raise RecordRefused(dict.fromkeys(long, f"longer than {self.store.longest} bytes"), "too-large")
        reach("publish.file_written")
        self._move(upto(), added)
        reach("publish.committed")
        return Published(len(added), sum(len(record.value or b"") for record in added))

    def advance(self, upto: ShardPlace) -> None:
        self._move(upto, [])

    @property
    def _shard(self) -> MemoryShard:
        return self.store.shards[self.source][self.shard]

    def _move(self, upto: ShardPlace, added: list[MemoryRecord]) -> None:
        shard = self._shard
        if shard.turns != self._turn:
            raise Overtaken(f"shard {self.shard} of {self.source} was moved on by another writer", "")
        shard.records += added
        shard.at, shard.turns = upto, shard.turns + 1
        self._turn = shard.turns


def _read(records: Records) -> Iterator[MemoryRecord]:
    headers = [(name, values.to_pylist()) for name, values in records.headers]
    columns = (records.places, records.keys, records.values, records.topics, records.partitions)
    for row, (place, key, value, topic, partition) in enumerate(
        zip(*(one.to_pylist() for one in columns), strict=True)
    ):
        own = tuple((name, values[row]) for name, values in headers if values[row] is not None)
        yield MemoryRecord(place, key, value, topic, partition, own)
