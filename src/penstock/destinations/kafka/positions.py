"""The topic in which a stream keeps where it is: compacted, one for each source, and never read by others.

    partition 0        key `stream`: which stream this is; keys `topic:NAME`: partitions and id of each topic
    partition 1 + n    key `place`: the place of shard n; the newest record counts

The newest record of a partition is found from its end, however long ago compaction ran.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from penstock.destinations.kafka.cluster import SETTLING, Cluster, Noted, kafka_error
from penstock.destinations.stream_contract import ShardPlace
from penstock.errors import StreamBroken
from penstock.model.place import Place

FORMAT = 1
STREAM, TOPIC, PLACE = b"stream", b"topic:", b"place"
LOOK_BACK = 16  # offsets from a partition's end at which the newest record is looked for first
POLL_SECONDS = 0.1
MARKER_SECONDS = 1.0


@dataclass(frozen=True)
class KnownTopic:
    """A topic that the stream has records in: how many partitions it had then, and Kafka's id of it."""

    partitions: int
    id: str


@dataclass(frozen=True)
class Description:
    """Which stream this is. Written once; topics are added as they are met."""

    format: int
    source: str
    history: str
    shards: int
    start: Place
    topics: Mapping[str, KnownTopic] = field(default_factory=dict)

    def records(self, since: Description | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield key and value of the records that say this, as far as `since` does not."""
        if since is None:
            content = {name: value for name, value in asdict(self).items() if name != "topics"}
            yield STREAM, json.dumps(content).encode()
        known = since.topics if since is not None else {}
        for name, topic in self.topics.items():
            if known.get(name) != topic:
                yield TOPIC + name.encode(), json.dumps(asdict(topic)).encode()


class PositionReader:
    """Reads a positions topic; moves and fences nothing. For one thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._noted = cluster, Noted()
        try:
            self._consumer = Consumer(
                cluster.settings(
                    self._noted,
                    group_id="penstock",  # the library wants one; none is joined
                    isolation_level="read_committed",
                    enable_auto_commit=False,
                    enable_partition_eof=True,
                    auto_offset_reset="error",
                    fetch_wait_max_ms=10,
                )
            )
        except KafkaException as error:
            raise cluster.misconfigured(error) from error

    def close(self) -> None:
        self._consumer.close()

    def end(self, topic: str, shard: int) -> int:
        """Return where the committed records of a shard end."""
        return self._bounds(topic, 1 + shard)[1]

    def await_ends(self, topic: str, ends: Sequence[int]) -> None:
        """Wait a short time until what was written before the ends of the first partitions is committed or aborted.

        A transaction may stay open. A commit is answered before its markers are written.
        """
        deadline = time.monotonic() + MARKER_SECONDS
        for partition, end in enumerate(ends):
            while self._bounds(topic, partition)[1] < end and time.monotonic() < deadline:
                time.sleep(0.005)

    def place(self, topic: str, shard: int) -> tuple[ShardPlace | None, int]:
        """Return the newest place of a shard, None before the first, and where the shard's records end."""
        low, high = self._bounds(topic, 1 + shard)
        back = LOOK_BACK
        while high > low:
            start, found = max(low, high - back), None
            for message in self._read(topic, 1 + shard, start):
                if message.key() == PLACE:
                    found = message.value()
            if found is not None:
                return ShardPlace.from_text(found), high
            if start == low:
                break
            back *= 8
        return None, high

    def description(self, topic: str) -> Description | None:
        """Return what describes the stream; None before it was created."""
        low, high = self._bounds(topic, 0)
        found: Description | None = None
        topics: dict[str, KnownTopic] = {}
        for message in self._read(topic, 0, low) if high > low else ():
            key, value = message.key() or b"", message.value()
            if value is None:
                continue
            if key == STREAM:
                found = _described(topic, value)
            elif key.startswith(TOPIC):
                topics[key.removeprefix(TOPIC).decode()] = KnownTopic(**json.loads(value))
        return None if found is None else replace(found, topics=topics)

    def _bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return where a partition begins, and where what is committed in it ends."""
        self._noted.forget()
        at = TopicPartition(topic, partition)
        deadline = time.monotonic() + self._cluster.timeout
        while True:
            try:
                found = self._consumer.get_watermark_offsets(at, timeout=self._cluster.timeout, cached=False)
            except KafkaException as error:
                if kafka_error(error).code() not in SETTLING or time.monotonic() > deadline:
                    raise self._failure(topic, kafka_error(error)) from error
                time.sleep(0.02)
                continue
            if found is None:
                raise self._failure(topic, KafkaError(KafkaError._TIMED_OUT))
            low, high = found
            return low, high

    def _read(self, topic: str, partition: int, start: int) -> Iterator[Message]:
        """Yield the committed records from an offset to the end."""
        self._consumer.assign([TopicPartition(topic, partition, start)])
        heard = time.monotonic()
        try:
            while True:
                message = self._consumer.poll(POLL_SECONDS)
                if message is None:
                    if time.monotonic() - heard > self._cluster.timeout:
                        raise self._failure(topic, KafkaError(KafkaError._TIMED_OUT))
                    continue
                heard, error = time.monotonic(), message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    return
                elif error.code() not in SETTLING:
                    raise self._failure(topic, error)
        finally:
            self._consumer.unassign()

    def _failure(self, topic: str, error: KafkaError) -> Exception:
        self._consumer.poll(0)  # hears what the library has noted
        return self._cluster.failure(f"reading {topic}", error, self._noted)


def _described(topic: str, value: bytes) -> Description:
    content = json.loads(value)
    if content["format"] != FORMAT:
        raise StreamBroken(
            f"topic {topic} has format {content['format']}, and this penstock writes format {FORMAT}",
            "Use the penstock that wrote it, or give the destination another `positions_topic`",
        )
    return Description(**content)
