"""How records are divided over shards: by stream. All entries of a Redis stream have one writer."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.destinations.stream_contract import Indexes, Mask, Partitions
from penstock.errors import UnknownTopics


@dataclass(frozen=True)
class StreamLayout:
    """`streams` are those that have been looked up. The hash must never change: streams would move between shards."""

    shards: int = 1
    streams: frozenset[str] = frozenset()

    def with_streams(self, names: Iterable[str]) -> StreamLayout:
        return StreamLayout(self.shards, self.streams | frozenset(names))

    def shard_of(self, stream: str) -> int:
        return zlib.crc32(stream.encode()) % self.shards

    def select(
        self, shard: int, topics: pa.DictionaryArray, keys: pa.Array, everywhere: Mask
    ) -> tuple[Indexes, Partitions]:
        names = topics.dictionary.to_pylist()
        numbers = np.asarray(topics.indices)
        unknown = {names[number] for number in np.unique(numbers).tolist()} - self.streams
        if unknown:
            raise UnknownTopics(unknown)
        own = np.array([self.shard_of(name) == shard for name in names], np.bool_)
        index = np.flatnonzero(own[numbers]).astype(np.int64) if len(names) else np.zeros(0, np.int64)
        return index, np.zeros(len(index), np.int32)
