"""The plainest layout of a stream: by a hash of each record's key, over topics that need no partitions.

A record without a key goes by its topic, so a table without a key is in one shard. The hashes must never change: keys
would move between the shards of streams that exist, and lose their order.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.destinations.stream_contract import Indexes, Mask, Partitions
from penstock.fold.keys import bucket_of

Ordering = Literal["key", "table", "source"]


@dataclass(frozen=True)
class KeyLayout:
    """`ordering` says what is kept in one shard, and so in commit order: a key, a topic, or everything (shard 0)."""

    shards: int = 1
    ordering: Ordering = "key"

    def select(
        self, shard: int, topics: pa.DictionaryArray, keys: pa.Array, everywhere: Mask
    ) -> tuple[Indexes, Partitions]:
        own = self._shards_of(topics, keys) == shard
        if self.ordering == "key":  # otherwise no other shard has anything that the record concerns
            own |= everywhere
        index = np.flatnonzero(own).astype(np.int64)
        return index, np.zeros(len(index), np.int32)

    def _shards_of(self, topics: pa.DictionaryArray, keys: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        if self.shards == 1 or self.ordering == "source":
            return np.zeros(len(keys), np.int64)
        by_topic = np.array(
            [zlib.crc32(name.encode()) % self.shards for name in topics.dictionary.to_pylist()], np.int64
        )
        of_topic: np.ndarray[tuple[int], np.dtype[np.int64]] = by_topic[np.asarray(topics.indices)]
        if self.ordering == "table":
            return of_topic
        of_key = bucket_of(pc.fill_null(keys, b""), self.shards)
        return np.where(np.asarray(keys.is_valid()), of_key, of_topic)
