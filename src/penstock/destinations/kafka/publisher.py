"""The publisher of one shard: sifts out what its topic does not take, and has a `Writer` do the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.destinations.kafka.cluster import Cluster
from penstock.destinations.kafka.layout import topic_name
from penstock.destinations.kafka.writer import FRAMING, Writer, WriterId, borrow, limits, octets
from penstock.destinations.stream_contract import Published, Records, ShardPlace
from penstock.errors import Overtaken, RecordRefused, UnknownTopics
from penstock.failpoints import reach
from penstock.model.place import Place

PER_HEADER = 16  # bytes that a header may have beside its name and value


@dataclass
class KafkaPublisher:
    """`largest` is what each topic takes in one record, in bytes; `start` the place of a shard that has none yet."""

    cluster: Cluster
    positions: str
    shard: int
    start: Place
    transactional: bool
    largest: Mapping[str, int]
    _writer: Writer | None = field(default=None, repr=False)

    def open(self) -> ShardPlace:
        smallest, largest = limits(self.largest)
        made_for = WriterId(self.cluster, self.positions, self.shard, self.transactional, smallest, largest)
        self._writer = borrow(made_for, self, ShardPlace(self.start))
        return self._writer.at

    def publish(self, records: Iterable[Records], upto: Callable[[], ShardPlace]) -> Published:
        writer = self._opened
        count = size = 0
        refused: dict[Place, str] = {}
        writer.begin()
        try:
            for some in records:
                refused |= self._too_large(some)
                if refused:
                    continue  # nothing is published: the rest is only looked at
                writer.send(some)
                count += len(some)
                size += octets(some.keys) + octets(some.values)
            if refused:
                raise RecordRefused(refused, "too-large")
            at = upto()
        except BaseException:
            if not writer.failed:
                writer.abort()
            raise
        reach("publish.file_written")
        writer.commit(at)
        reach("publish.committed")
        return Published(count, size)

    def advance(self, upto: ShardPlace) -> None:
        writer = self._opened
        writer.begin()
        writer.commit(upto)

    @property
    def _opened(self) -> Writer:
        if self._writer is None or self._writer.failed:
            raise Overtaken(f"shard {self.shard} of {self.positions} must be opened", "")
        return self._writer

    def _too_large(self, records: Records) -> dict[Place, str]:
        """Return the places of records that their topic does not take, and why."""
        rendered = records.topics.dictionary.to_pylist()
        names = [topic_name(name) for name in rendered]
        codes = np.asarray(records.topics.indices)
        unknown = {rendered[code] for code in np.unique(codes).tolist() if names[code] not in self.largest}
        if unknown:
            raise UnknownTopics(unknown)
        takes = np.array([self.largest.get(name, 0) - FRAMING for name in names], np.int64)
        sizes = _lengths(records.keys) + _lengths(records.values)
        for title, values in records.headers:
            sizes += _lengths(values) + len(title.encode()) + PER_HEADER
        rows = np.flatnonzero(sizes > takes[codes])
        places = records.places.take(pa.array(rows)).to_pylist()
        return {
            place: f"it has {sizes[row]:,} bytes, and topic {names[codes[row]]} takes {takes[codes[row]]:,} "
            "(max.message.bytes)"
            for place, row in zip(places, rows.tolist(), strict=True)
        }


def _lengths(array: pa.Array) -> npt.NDArray[np.int64]:
    return np.asarray(pc.fill_null(pc.binary_length(array), 0)).astype(np.int64)
