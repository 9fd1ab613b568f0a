"""A producer that writes one shard: records and their place, in one transaction.

Opening one shuts out every older writer of the shard (Kafka raises the epoch of the transactional id) and aborts what
that had begun. Writers outlive tasks: `borrow` gives one that an earlier task in this process left behind, if nobody
has written to the shard since. They are made in the processes that use them, never before a fork.

Order is kept because the producer is idempotent and its queue never refuses a record in the middle of others: how much
is under way is bounded here. With `transactional` off, records are written first and their place afterwards: at least
once, and nobody is shut out.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from penstock.destinations.kafka.cluster import FENCED, NO_TOPIC, TOO_LARGE, Cluster, Noted, kafka_error
from penstock.destinations.kafka.layout import topic_name
from penstock.destinations.kafka.positions import PLACE, PositionReader
from penstock.destinations.stream_contract import Records, ShardPlace
from penstock.errors import CommitUnknown, DestinationError, Overtaken, StreamBroken, UnknownTopics

AT_ONCE = 4_000  # records handed over by one call
BYTES_AT_ONCE = 4 << 20
BYTES_UNDER_WAY = 48 << 20  # beyond which a writer waits for the brokers
LARGEST_BATCH = 1_000_000
FRAMING = 512  # bytes that a batch of records may have beside them
ABORT_SECONDS = 5.0
TRANSACTION_TIMEOUT = 600_000  # ms; a huge transaction of the source is one of Kafka's


@dataclass(frozen=True)
class WriterId:
    """What a writer is made for. `largest` is the most that any topic takes in a batch, `smallest` the least."""

    cluster: Cluster
    positions: str
    shard: int
    transactional: bool
    smallest: int
    largest: int

    @property
    def transactional_id(self) -> str:
        return f"{self.positions}.{self.shard}"


class Writer:
    """`at` is how far the shard is published. A writer that has failed is never used again (`failed`)."""

    def __init__(self, made_for: WriterId, reader: PositionReader, start: ShardPlace) -> None:
        self.made_for, self._reader = made_for, reader
        self._noted = Noted()
        self._refused: list[tuple[str, KafkaError]] = []  # deliveries that failed, with their topics
        self._rendered: dict[str, str] = {}  # the topics of this publication as they were rendered, by Kafka's names
        self._sizes: deque[tuple[int, int]] = deque()  # records handed over so far, and their bytes, per call
        self._handed_over = self._under_way = 0
        self.failed = self._unfinished = False
        self.owner: weakref.ref[object] | None = None
        self._producer = self._make()
        found, self._end = reader.place(made_for.positions, made_for.shard)
        self.at = found or start

    def begin(self) -> None:
        self._unfinished = True
        self._rendered.clear()
        if self.made_for.transactional:
            with self._guarded("beginning a transaction"):
                self._producer.begin_transaction()

    def send(self, records: Records) -> None:
        """Hand records over to the producer, each topic and partition in order."""
        with self._guarded("sending records"):
            if records.headers:
                self._send_singly(records)
            else:
                self._send_grouped(records)

    def commit(self, at: ShardPlace) -> None:
        """Publish what was sent, and move the place."""
        if not self.made_for.transactional:
            self._flush()
        with self._guarded("sending a place"):
            self._producer.produce(self.made_for.positions, at.to_text().encode(), PLACE, 1 + self.made_for.shard)
        if self.made_for.transactional:
            self._commit_transaction()
        else:
            self._flush()
        self._handed_over, self._under_way = 0, 0
        self._sizes.clear()
        self.at, self._unfinished = at, False
        self._end += 2 if self.made_for.transactional else 1  # the place, and the marker of its transaction

    def abort(self) -> None:
        """Forget what was sent. When that fails, the next writer of the shard does it."""
        self.failed = True
        try:
            if self.made_for.transactional:
                self._producer.abort_transaction(ABORT_SECONDS)
            else:
                self._producer.purge()
        except KafkaException:
            self._producer.purge()

    def is_free_for(self, owner: object) -> bool:
        """Return whether whoever had the writer is gone, or asks for it again."""
        held_by = self.owner() if self.owner is not None else None
        return held_by is None or held_by is owner

    def is_newest(self) -> bool:
        """Return whether nobody has written to the shard since this writer did. Its last marker may be yet to come."""
        if self._unfinished or self.failed:
            return False
        return self._reader.end(self.made_for.positions, self.made_for.shard) <= self._end

    def _make(self) -> Producer:
        ours = {"transactional.id": self.made_for.transactional_id} if self.made_for.transactional else {}
        settings = self.made_for.cluster.settings(
            self._noted,
            enable_idempotence=True,
            compression_type="lz4",
            linger_ms=5,  # a commit does not wait for it
            retry_backoff_ms=10,  # a transaction that follows at once waits for the markers of the one before
            batch_num_messages=50_000,
            queue_buffering_max_messages=10_000_000,
            queue_buffering_max_kbytes=2_000_000,
            delivery_report_only_error=True,
            transaction_timeout_ms=TRANSACTION_TIMEOUT,
            topic_metadata_propagation_max_ms=2_000,  # all topics are there before
        )
        bounds = {
            "batch.size": max(1, min(LARGEST_BATCH, self.made_for.smallest - FRAMING)),
            "message.max.bytes": max(1000, self.made_for.largest),
        }
        try:
            producer = Producer({**bounds, **settings, **ours, "on_delivery": self._delivered})
        except KafkaException as error:
            raise self.made_for.cluster.misconfigured(error) from error
        try:
            # Without a connection that is up, looking for the coordinator waits for half a second.
            producer.list_topics(self.made_for.positions, timeout=self.made_for.cluster.timeout)
            if self.made_for.transactional:
                producer.init_transactions(self.made_for.cluster.timeout)
        except KafkaException as error:
            producer.poll(0)
            raise self.made_for.cluster.failure("opening a transaction", kafka_error(error), self._noted) from error
        return producer

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._refused.append((message.topic() or "", error))

    def _send_grouped(self, records: Records) -> None:
        """`produce_batch` takes one topic and one partition per call, and ignores a record's own."""
        names = self._names(records)
        for code, partition, rows in groups(records):
            keys, values = records.keys.take(rows), records.values.take(rows)
            size = octets(keys) + octets(values)
            self._wait_for_room(size)
            messages: list[dict[str, object]] = [
                {"key": key, "value": value} for key, value in zip(_objects(keys), _objects(values), strict=True)
            ]
            self._hand_over(names[code], partition, messages)
            self._count(len(messages), size)

    def _hand_over(self, topic: str, partition: int, messages: list[dict[str, object]]) -> None:
        while True:
            queued = self._producer.produce_batch(topic, messages, partition=partition)
            self._producer.poll(0)
            if queued == len(messages):
                return
            if any("_error" in message for message in messages[:queued]):
                raise KafkaException(next(one["_error"] for one in messages if "_error" in one))
            messages = messages[queued:]
            for message in messages:
                error = message.pop("_error", None)
                if not isinstance(error, KafkaError) or error.code() != KafkaError._QUEUE_FULL:
                    raise KafkaException(error)
            self._wait()

    def _send_singly(self, records: Records) -> None:
        names = self._names(records)
        columns = [_objects(values) for _, values in records.headers]
        titles = [title for title, _ in records.headers]
        topics, partitions = records.topics.indices.to_pylist(), records.partitions.to_pylist()
        for row, (key, value) in enumerate(zip(_objects(records.keys), _objects(records.values), strict=True)):
            headers: list[tuple[str, str | bytes | None]] = []
            size = len(key or b"") + len(value or b"")
            for title, column in zip(titles, columns, strict=True):
                content = column[row]
                if content is not None:
                    headers.append((title, content))
                    size += len(content)
            if row % 1000 == 0:
                self._producer.poll(0)
                self._wait_for_room(0)
            while True:
                try:
                    self._producer.produce(names[topics[row]], value, key, partitions[row], headers=headers)
                    break
                except BufferError:
                    self._wait()
            self._count(1, size)

    def _names(self, records: Records) -> list[str]:
        """Return the topics of a dictionary under Kafka's names."""
        rendered = records.topics.dictionary.to_pylist()
        names = [topic_name(name) for name in rendered]
        self._rendered |= zip(names, rendered, strict=True)
        return names

    def _count(self, records: int, size: int) -> None:
        self._handed_over += records
        self._under_way += size
        self._sizes.append((self._handed_over, size))

    def _wait_for_room(self, size: int) -> None:
        """Wait until the brokers have taken enough of what was handed over; approximately, by count."""
        since, waiting = time.monotonic(), len(self._producer)
        while True:
            delivered = self._handed_over - len(self._producer)
            while self._sizes and self._sizes[0][0] <= delivered:
                self._under_way -= self._sizes.popleft()[1]
            if not self._under_way or self._under_way + size <= BYTES_UNDER_WAY:
                return
            if len(self._producer) != waiting:
                since, waiting = time.monotonic(), len(self._producer)
            if time.monotonic() - since > self.made_for.cluster.timeout:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no broker takes records"))
            self._wait()

    def _wait(self) -> None:
        self._producer.poll(0.005)
        if self._refused:
            raise KafkaException(self._refused[0][1])

    def _flush(self) -> None:
        with self._guarded("sending records"):
            if self._producer.flush(self.made_for.cluster.timeout):
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no broker takes records"))
            if self._refused:
                raise KafkaException(self._refused[0][1])

    def _commit_transaction(self) -> None:
        deadline = time.monotonic() + self.made_for.cluster.timeout
        while True:
            try:
                self._producer.commit_transaction(max(0.1, deadline - time.monotonic()))
            except KafkaException as error:
                what = kafka_error(error)
                if what.retriable() and time.monotonic() < deadline:
                    continue
                raise self._commit_failed(what) from error
            return

    def _commit_failed(self, error: KafkaError) -> DestinationError:
        self._producer.poll(0)
        if error.txn_requires_abort():
            self.abort()
            return self._explained("committing", error)
        self.failed = True
        self._producer.purge()
        if error.code() in FENCED:
            return self._overtaken(error)
        missing = self._missing()
        if missing:
            return UnknownTopics(missing)
        said = self._noted.reason or error
        return CommitUnknown(f"Kafka at {self.made_for.cluster.brokers} did not answer a commit: {said.str()}", "")

    def _missing(self) -> set[str]:
        """Return the topics that records were sent to and that are not there, as they were rendered."""
        try:
            there = self._producer.list_topics(timeout=ABORT_SECONDS).topics
        except KafkaException:
            return set()
        return {rendered for name, rendered in self._rendered.items() if name not in there}

    def _guarded(self, doing: str) -> _Guard:
        return _Guard(self, doing)

    def _explained(self, doing: str, error: KafkaError) -> DestinationError:
        """Return what a failure means, by the deliveries that failed if there are any."""
        if error.code() in FENCED or any(one.code() in FENCED for _, one in self._refused):
            return self._overtaken(error)
        blamed = NO_TOPIC | TOO_LARGE
        stale = {self._rendered.get(topic, topic) for topic, one in self._refused if one.code() in blamed}
        if self.made_for.positions in stale:
            return StreamBroken(
                f"topic {self.made_for.positions}, which holds the places of the stream, is gone",
                "Restore it, or start a new stream with another `positions_topic`: readers then get events again",
            )
        if not stale and error.code() in NO_TOPIC and self._has_positions():
            stale = set(self._rendered.values())  # a commit that fails for a topic does not say for which
        if stale:
            return UnknownTopics(stale)
        cause = next((one for _, one in self._refused if one.code() != KafkaError._PURGE_QUEUE), error)
        return self.made_for.cluster.failure(doing, cause, self._noted)

    def _has_positions(self) -> bool:
        """Return whether the topic that keeps the places is there."""
        try:
            found = self._producer.list_topics(self.made_for.positions, timeout=self.made_for.cluster.timeout)
        except KafkaException:
            return False
        return found.topics[self.made_for.positions].error is None

    def _overtaken(self, error: KafkaError) -> Overtaken:
        return Overtaken(
            f"shard {self.made_for.shard} of {self.made_for.positions} has another writer: {error.str()}", ""
        )


class _Guard:
    """Turns errors of the library into penstock's; the writer has then failed, and its transaction is aborted."""

    def __init__(self, writer: Writer, doing: str) -> None:
        self._writer, self._doing = writer, doing

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, KafkaException):
            writer = self._writer
            writer.abort()
            writer._producer.poll(0)
            raise writer._explained(self._doing, kafka_error(error)) from error


def groups(records: Records) -> Iterator[tuple[int, int, pa.Array]]:
    """Yield the records of each topic and partition: topic's code, partition, and some of its rows, in order."""
    codes = np.asarray(records.topics.indices).astype(np.int64)
    partitions = np.asarray(records.partitions)
    together = (codes << 32) | partitions
    order = np.argsort(together, kind="stable")
    sorted_groups = together[order]
    sizes = _lengths(records.keys)[order] + _lengths(records.values)[order]
    start = 0
    for end in [*(np.flatnonzero(np.diff(sorted_groups)) + 1).tolist(), len(order)]:
        while start < end:
            upto = min(start + AT_ONCE, end)
            fits = int(np.searchsorted(np.cumsum(sizes[start:upto]), BYTES_AT_ONCE, side="right"))
            upto = start + max(1, min(fits, upto - start))
            group = int(sorted_groups[start])
            yield group >> 32, group & 0xFFFFFFFF, pa.array(order[start:upto])
            start = upto


def octets(array: pa.Array) -> int:
    return int(pc.sum(pc.binary_length(array)).as_py() or 0)


def _lengths(array: pa.Array) -> npt.NDArray[np.int64]:
    return np.asarray(pc.fill_null(pc.binary_length(array), 0)).astype(np.int64)


def _objects(array: pa.Array) -> list[bytes | None]:
    found: list[bytes | None] = array.to_numpy(zero_copy_only=False).tolist()
    return found


class _Kept(threading.local):
    """What this thread keeps between tasks; a writer and its reader are for one thread."""

    def __init__(self) -> None:
        self.writers: dict[tuple[Cluster, str, int], Writer] = {}
        self.readers: dict[Cluster, PositionReader] = {}


_kept = _Kept()


def borrow(made_for: WriterId, owner: object, start: ShardPlace) -> Writer:
    """Return a writer for the shard that nobody else in this thread has: one that was left behind, or a new one."""
    key = (made_for.cluster, made_for.positions, made_for.shard)
    left = _kept.writers.pop(key, None)
    if left is None or not left.is_free_for(owner) or left.made_for != made_for or not left.is_newest():
        left = Writer(made_for, reader_of(made_for.cluster), start)
    left.owner = weakref.ref(owner)
    _kept.writers[key] = left
    return left


def reader_of(cluster: Cluster) -> PositionReader:
    """Return this thread's reader of places in the cluster."""
    if cluster not in _kept.readers:
        _kept.readers[cluster] = PositionReader(cluster)
    return _kept.readers[cluster]


def limits(sizes: Mapping[str, int]) -> tuple[int, int]:
    """Return the least and the most bytes that any of the topics takes."""
    return min(sizes.values(), default=LARGEST_BATCH), max(sizes.values(), default=LARGEST_BATCH)
