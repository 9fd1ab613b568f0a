"""How records are divided over the partitions of their topics, and partitions over shards: shard = partition modulo P.

A partition has one writer, so all its records are in commit order, whatever their keys. The number of partitions that
a topic had when the stream first met it counts for good: partitions that are added later get no records, because the
keys in the others would move. A record without a key goes to a partition that its topic's name chooses.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.destinations.kafka.murmur2 import positive_hashes
from penstock.destinations.key_layout import Ordering
from penstock.destinations.stream_contract import Indexes, Mask, Partitions
from penstock.errors import UnknownTopics

LONGEST_NAME = 249
_ILLEGAL = re.compile(r"[^a-zA-Z0-9._-]")


def topic_name(rendered: str) -> str:
    """Return the name that Kafka allows for a rendered one: other characters become `_`, as Debezium does it."""
    name = _ILLEGAL.sub("_", rendered)
    if name in ("", ".", ".."):
        return "_" * max(1, len(name))
    if len(name) > LONGEST_NAME:
        return f"{name[: LONGEST_NAME - 9]}_{zlib.crc32(rendered.encode()):08x}"
    return name


@dataclass(frozen=True)
class KafkaLayout:
    """`partitions` is by topic, under Kafka's names.

    `ordering` says what is kept in one partition, and so in commit order: a key, a topic, or (partition 0 of each
    topic) everything.
    """

    shards: int
    partitions: Mapping[str, int] = field(default_factory=dict)
    ordering: Ordering = "key"

    def select(
        self, shard: int, topics: pa.DictionaryArray, keys: pa.Array, everywhere: Mask
    ) -> tuple[Indexes, Partitions]:
        codes = np.asarray(topics.indices)
        rendered = topics.dictionary.to_pylist()
        names = [topic_name(name) for name in rendered]
        unknown = {rendered[code] for code in np.unique(codes).tolist() if names[code] not in self.partitions}
        if unknown:
            raise UnknownTopics(unknown)
        counts = np.array([self.partitions.get(name, 1) for name in names], np.uint32)
        chosen = self._partitions_of(codes, names, counts, keys)
        own = chosen % self.shards == shard
        index = np.arange(len(codes), dtype=np.int64)
        if self.ordering != "key" or not everywhere.any():
            return (index, chosen) if own.all() else (index[own], chosen[own])
        shares = np.array([len(range(shard, int(count), self.shards)) for count in counts], np.int64)
        repeats = np.where(everywhere, shares[codes], own)
        index, chosen = np.repeat(index, repeats), np.repeat(chosen, repeats)
        nth = np.arange(len(index)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        return index, np.where(everywhere[index], shard + nth * self.shards, chosen).astype(np.int32)

    def _partitions_of(
        self, codes: npt.NDArray[np.int32], names: list[str], counts: npt.NDArray[np.uint32], keys: pa.Array
    ) -> Partitions:
        if self.ordering == "source":
            return np.zeros(len(codes), np.int32)
        homes = positive_hashes(pa.array([name.encode() for name in names], pa.binary())) % counts
        of_topic: Partitions = homes.astype(np.int32)[codes]
        if self.ordering == "table":
            return of_topic
        chosen: Partitions = (positive_hashes(keys) % counts[codes]).astype(np.int32)
        return np.where(np.asarray(keys.is_valid()), chosen, of_topic) if keys.null_count else chosen
