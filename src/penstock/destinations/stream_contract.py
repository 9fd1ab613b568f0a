"""The contract of a stream destination: every event once, in order, with its place kept in the stream itself.

A table destination (`contract.py`) holds the net effect of changes; a stream holds the changes themselves, as records
that somebody else reads. `tests/behaviour/test_stream_contract.py` holds every stream destination to what follows.

**Shards.** The events of one source are divided into a fixed number of shards. A shard is a sequence of records with
one writer at a time. All records of a key are in one shard; a record that concerns every key (a truncate) is in all of
them; a table without a key is in one. How many shards there are is fixed when the stream is created: with another
number, keys would move between shards and lose their order, so `ensure` refuses it.

**Topics.** Every record names its topic: a Kafka topic, a Redis stream, a NATS subject. A destination that has no such
thing ignores it. A topic has one or more partitions, each of which belongs to one shard. Which shard and partition a
record goes to is the layout's to say, on the executor that renders the record. A layout knows the topics that it was
made for: when it meets another, it raises UnknownTopics, and the driver asks the destination for a layout that has them
(`topics`). That may create them. A topic that the destination refuses is TopicsRefused, and concerns only the tables
that need it.

**Order.** Records of a shard are in stream order: by commit position, then by ordinal within the transaction, over all
tables. A table that stands behind (see below) is brought on by itself: its own records stay in stream order.

**Prefix.** What a shard has published is a prefix of its sequence, and its place says how long that prefix is: every
event before the place is published, and none at or behind it. Records and place move in one step. Whatever happened, a
writer opens the shard, skips what lies before the place, and goes on.

**Tables that stand behind.** A table that cannot be published (it is Errored, or held, or its rows are being copied)
must not hold up the others. A shard's place therefore lists such tables with a place of their own
(`ShardPlace.behind`), which moves in the same step.

**Copied rows.** The rows that a table had before its first change are published as `read` events, in pieces that are
numbered from 0 (`ShardPlace.copies`). The place says which copy it is, by the id of its snapshot, and how many pieces
the shard has of it; that number moves in the same step as the records of the pieces. Meanwhile the table stands behind,
at the position of the snapshot: its changes follow when all shards have all of its rows. A copy that is begun again
has another id, and all of its rows are published again.

A destination keeps a ShardPlace as the text of `to_text`, and need not look into it.

**Duplicates and fencing.** `Publisher.open` reads the shard's place. `publish` and `advance` succeed only if nobody has
moved the place since; otherwise they raise Overtaken, nothing was published, and the writer opens the shard again. Of
two writers of one shard (a task that Spark runs twice, a driver that was thought dead) each record comes from one.

**Durability.** A returned `publish` or `advance` survives the death of every process of ours. Until then no reader sees
any of the records. A publication that was interrupted is either whole or absent; the next `open` completes or forgets
it. A destination whose largest step is smaller than a publication takes it in pieces (`spool.py`): readers may then see
a beginning of it, and what was interrupted stays a prefix, of which the place says how long it is.

**Unknown outcomes.** CommitUnknown means that nobody can say whether the publication took place. The writer opens the
shard again: the place says.

**Retries.** DestinationUnreachable is retried with backoff, Overtaken and CommitUnknown at once, by opening the shard
again. StreamBroken (a hole, another number of shards, another source) is for the operator. Errors of rendering are not
the destination's: they make a table Errored, and it stands behind.

**Refused records.** When the destination blames single records (too large, rejected), `publish` raises RecordRefused
with their places and the reasons. Nothing was published, and the shard's place is where it was. The task takes these
records out, keeps them as dead letters, and publishes the others. A destination that finds several at once reports them
together.

**Refused tables.** When the destination cannot take a table's records at all, `publish` raises TablesRefused with each
table's error. What was published before them stays, and the place says so. The task opens the shard again and publishes
the others; the refused tables are Errored, and stand behind.

**Tombstones.** A null value says that the key is gone. Only a destination with `tombstones` is given any.

**History.** A place means something only in the history of the change log that it was taken from. `ensure` is given the
log's id, and refuses a stream that was published from another log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.model.place import Place
from penstock.model.table import TableSchema

TOPIC_TYPE = pa.dictionary(pa.int32(), pa.string())
Indexes = npt.NDArray[np.int64]
Partitions = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class CopyPlace:
    """How much a shard has of a table's copied rows: `pieces` of the copy `snapshot`, or all of them."""

    snapshot: str
    pieces: int
    complete: bool = False


@dataclass(frozen=True)
class ShardPlace:
    """How far a shard is published.

    `behind` has the tables, by name, that are not as far as the others; `copies` has those whose rows are being
    published. `retried` says which dead letters were sent again (runtime/publish/dead_letters.py).
    """

    place: Place
    behind: Mapping[str, Place] = field(default_factory=dict)
    copies: Mapping[str, CopyPlace] = field(default_factory=dict)
    retried: str = ""

    def of(self, table: str) -> Place:
        """Return how far one table is published."""
        return self.behind.get(table, self.place)

    def to_text(self) -> str:
        """Return the place as destinations keep it."""
        content: dict[str, object] = {"place": self.place, "behind": dict(self.behind)}
        if self.copies:
            content["copies"] = {table: asdict(copy) for table, copy in self.copies.items()}
        if self.retried:
            content["retried"] = self.retried
        return json.dumps(content, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str | bytes) -> ShardPlace:
        """Return what `to_text` has written. ValueError for any other text."""
        try:
            content = json.loads(text)
            copies = {table: CopyPlace(**copy) for table, copy in content.get("copies", {}).items()}
            return cls(content["place"], content["behind"], copies, content.get("retried", ""))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not the place of a shard: {error}") from error


class Layout(Protocol):
    """How a stream is divided. Picklable: executors route records by it. `KeyLayout` is the plainest."""

    @property
    def shards(self) -> int: ...

    def select(
        self, shard: int, topics: pa.DictionaryArray, keys: pa.Array, everywhere: Mask
    ) -> tuple[Indexes, Partitions]:
        """Return which of the records belong to the shard, in order, and the partition of each within its topic.

        A record that is `everywhere` goes to every partition: it is named once for each that the shard has.
        Raises UnknownTopics for topics that the layout was not made for."""


@dataclass(frozen=True)
class StreamId:
    """Which events a stream has: those of one source, from `start` on, in the history of one change log."""

    source: str
    history: str
    start: Place


@dataclass(frozen=True)
class Records:
    """Rendered records of one shard, in stream order and in parallel."""

    places: pa.Array  # text
    keys: pa.Array  # binary; null where an event has no key
    values: pa.Array  # binary; null: a tombstone
    topics: pa.DictionaryArray  # TOPIC_TYPE
    partitions: pa.Array  # int32: within the topic; 0 where the destination has none
    headers: tuple[tuple[str, pa.Array], ...] = ()  # name, and binary values; null: the record has no such header
    schemas: Mapping[str, TableSchema] = field(default_factory=dict)  # structures of these events, by fingerprint

    def __len__(self) -> int:
        return len(self.values)

    def take(self, index: pa.Array) -> Records:
        """Return the records at these indexes."""
        return Records(
            self.places.take(index),
            self.keys.take(index),
            self.values.take(index),
            self.topics.take(index),
            self.partitions.take(index),
            tuple((name, values.take(index)) for name, values in self.headers),
            self.schemas,
        )


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

        Without records this is `advance`. What `records` raises is raised, and nothing was published. Raises
        RecordRefused when the destination blames single records; nothing was published then either."""

    def advance(self, upto: ShardPlace) -> None:
        """Move the place alone."""


class StreamDestination(Protocol):
    """The driver's side of a stream."""

    @property
    def name(self) -> str: ...

    @property
    def tombstones(self) -> bool:
        """Whether a record may have no value."""

    @property
    def holds_rows(self) -> bool:
        """Whether it makes events into the rows of tables.

        Rows from before a change of structure or rule may be wrong after it, so their table is copied again."""

    def ensure(self, stream: StreamId) -> Layout:
        """Create the stream, or check the one that is there: its shards, its history, that nothing is missing.

        A stream that is there keeps the start that it was created with."""

    def topics(self, source: str, names: Sequence[str]) -> Layout:
        """Look topics up, creating those that are missing, and return a layout that knows them and all it knew before.

        Called after UnknownTopics. Raises TopicsRefused for those that cannot be had; the others are made."""

    def places(self, source: str) -> list[ShardPlace]:
        """Return how far each shard is, without touching anything: for `status`. Empty before `ensure`."""

    def publisher(self, source: str, shard: int) -> Publisher: ...
