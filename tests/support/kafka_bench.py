"""A Kafka destination on a real server, under names of its own, and what an independent consumer reads from it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from kafka_server import KafkaServer
from penstock.config.destinations import KafkaDestination as KafkaSection
from penstock.destinations.kafka.destination import KafkaDestination
from penstock.destinations.kafka.layout import KafkaLayout
from penstock.destinations.kafka.publisher import KafkaPublisher
from penstock.destinations.stream_contract import (
    TOPIC_TYPE,
    Published,
    Publisher,
    Records,
    ShardPlace,
    StreamDestination,
    StreamId,
)

READ_SECONDS = 30.0


def read_committed(brokers: str, topic: str, isolation: str = "read_committed") -> list[list[Message]]:
    """Return what a reader sees of each partition of a topic, from its beginning to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": uuid.uuid4().hex,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,
            "log_level": 0,
        }
    )
    try:
        count = len(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in range(count)])
        found: list[list[Message]] = [[] for _ in range(count)]
        ended: set[int] = set()
        deadline = time.monotonic() + READ_SECONDS
        while len(ended) < count:
            assert time.monotonic() < deadline, f"{topic} could not be read to its end"
            for message in consumer.consume(10_000, 0.2):
                error = message.error()
                partition = message.partition()
                assert partition is not None
                if error is None:
                    found[partition].append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(partition)
                else:
                    raise AssertionError(str(error))
        return found
    finally:
        consumer.close()


class KafkaBench:
    """The stream of source `shop`, in one topic with as many partitions as there are shards, at most 3."""

    def __init__(self, server: KafkaServer) -> None:
        self.server = server
        mark = uuid.uuid4().hex[:10]
        self.topic, self.positions = f"orders-{mark}", f"positions-{mark}"
        self.admin = AdminClient({"bootstrap.servers": server.brokers, "log_level": 0})

    def section(self, **settings: Any) -> KafkaSection:
        """What a pipeline file would say."""
        own = {"type": "kafka", "brokers": self.server.brokers, "positions_topic": self.positions, "timeout": "20s"}
        return KafkaSection.model_validate({**own, "partitions": 3, **settings})

    def plain(self, **settings: Any) -> KafkaDestination:
        return KafkaDestination(self.section(**settings))

    def destination(self, shards: int) -> StreamDestination:
        """As the behaviour suite wants it: whatever the records say, they go to this bench's topic, and the records of
        a shard to the partition of its number."""
        return _OnBench(self, shards)

    def values(self, partition: int) -> list[str]:
        """Return what a reader sees of a partition; what was committed before this call is visible, in time."""
        self.settle()
        return [
            (message.value() or b"").decode() for message in read_committed(self.server.brokers, self.topic)[partition]
        ]

    def configure(self, topic: str, name: str, value: str) -> None:
        """Change a setting of a topic, and wait until it counts."""
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        (done,) = self.admin.incremental_alter_configs([resource]).values()
        done.result()
        wanted = ConfigResource(ResourceType.TOPIC, topic)
        while next(iter(self.admin.describe_configs([wanted]).values())).result()[name].value != value:
            time.sleep(0.02)

    def delete(self, topic: str) -> None:
        (done,) = self.admin.delete_topics([topic]).values()
        done.result()
        while topic in self.admin.list_topics(timeout=10).topics:
            time.sleep(0.02)

    def settle(self) -> None:
        """Wait for the markers of transactions that were committed: `places` does."""
        self.plain().places("shop")


class _OnBench(KafkaDestination):
    def __init__(self, bench: KafkaBench, shards: int) -> None:
        super().__init__(bench.section(shards=shards))
        self._bench = bench

    def ensure(self, stream: StreamId) -> KafkaLayout:
        super().ensure(stream)
        return self.topics(stream.source, [self._bench.topic])

    def publisher(self, source: str, shard: int) -> Publisher:  # type: ignore[override]
        return _Redirected(super().publisher(source, shard), self._bench.topic, shard)


@dataclass
class _Redirected:
    publisher: KafkaPublisher
    topic: str
    partition: int

    def open(self) -> ShardPlace:
        return self.publisher.open()

    def publish(self, records: Iterable[Records], upto: Callable[[], ShardPlace]) -> Published:
        return self.publisher.publish((placed(some, self.topic, self.partition) for some in records), upto)

    def advance(self, upto: ShardPlace) -> None:
        self.publisher.advance(upto)


def placed(records: Records, topic: str, partition: int) -> Records:
    """Return the records, all in one partition of a topic."""
    return replace(
        records,
        topics=pa.array([topic] * len(records), TOPIC_TYPE),
        partitions=pa.array([partition] * len(records), pa.int32()),
    )


def joined(parts: Sequence[list[Message]]) -> list[Message]:
    return [message for part in parts for message in part]
