"""The contract of a stream destination: every event once, in order, with its place kept in the stream itself.

A table destination (`contract.py`) holds the net effect of changes; a stream holds the changes themselves, as records
that somebody else reads. `tests/behaviour/test_stream_contract.py` holds every stream destination to what follows.

**Shards.** The events of one source are divided into a fixed number of shards. A shard is a sequence of records with
one writer at a time. All records of a key are in one shard; a record that concerns every key (a truncate) is in all of
them; a table without a key is in one. How many shards there are is fixed when the stream is created: with another
number, keys would move between shards and lose their order, so `ensure` refuses it.

**Order.** Records of a shard are in stream order: by commit position, then by ordinal within the transaction, over all
tables. A table that stands behind (see below) is brought on by itself: its own records stay in stream order.

**Prefix.** What a shard has published is a prefix of its sequence, and its place says how long that prefix is: every
event before the place is published, and none at or behind it. Records and place move in one step. Whatever happened, a
writer opens the shard, skips what lies before the place, and goes on.

**Tables that stand behind.** A table that cannot be published (it is Errored, or held) must not hold up the others. A
shard's place therefore lists such tables with a place of their own (`ShardPlace.behind`), which moves in the same step.

**Duplicates and fencing.** `Publisher.open` reads the shard's place. `publish` and `advance` succeed only if nobody has
moved the place since; otherwise they raise Overtaken, nothing was published, and the writer opens the shard again. Of
two writers of one shard (a task that Spark runs twice, a driver that was thought dead) each record comes from one.

**Durability.** A returned `publish` or `advance` survives the death of every process of ours. Until then no reader sees
any of the records. A publication that was interrupted is either whole or absent; the next `open` completes or forgets
it.

**Unknown outcomes.** CommitUnknown means that nobody can say whether the publication took place. The writer opens the
shard again: the place says.

**Retries.** DestinationUnreachable is retried with backoff, Overtaken and CommitUnknown at once, by opening the shard
again. StreamBroken (a hole, another number of shards, another source) is for the operator. Errors of rendering are not
the destination's: they make a table Errored, and it stands behind.

**History.** A place means something only in the history of the change log that it was taken from. `ensure` is given the
log's id, and refuses a stream that was published from another log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from penstock.model.place import Place


@dataclass(frozen=True)
class ShardPlace:
    """How far a shard is published. `behind` has the tables, by name, that are not as far as the others."""

    place: Place
    behind: Mapping[str, Place] = field(default_factory=dict)

    def of(self, table: str) -> Place:
        """Return how far one table is published."""
        return self.behind.get(table, self.place)


@dataclass(frozen=True)
class Layout:
    """How a stream is divided. Picklable: executors route records by it."""

    shards: int


@dataclass(frozen=True)
class StreamId:
    """Which events a stream has: those of one source, from `start` on, in the history of one change log."""

    source: str
    history: str
    start: Place


@dataclass(frozen=True)
class Records:
    """Rendered records, in stream order and in parallel."""

    places: pa.Array  # text
    keys: pa.Array  # binary; null where an event has no key
    values: pa.Array  # binary

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class Published:
    """What one publication has added to its shard."""

    records: int
    bytes: int


class Publisher(Protocol):
    """The writer of one shard, on an executor. Picklable until it is opened; for one thread."""

    def open(self) -> ShardPlace:
        """Complete or forget an interrupted publication, and return how far the shard is."""

    def publish(self, records: Iterable[Records], upto: Callable[[], ShardPlace]) -> Published:
        """Publish the records and move the place, in one step. `upto` is called once, behind the last record.

        Without records this is `advance`. What `records` raises is raised, and nothing was published."""

    def advance(self, upto: ShardPlace) -> None:
        """Move the place alone."""


class StreamDestination(Protocol):
    """The driver's side of a stream."""

    @property
    def name(self) -> str: ...

    def ensure(self, stream: StreamId) -> Layout:
        """Create the stream, or check the one that is there: its shards, its history, that nothing is missing.

        A stream that is there keeps the start that it was created with."""

    def places(self, source: str) -> list[ShardPlace]:
        """Return how far each shard is, without touching anything: for `status`. Empty before `ensure`."""

    def publisher(self, source: str, shard: int) -> Publisher: ...
