"""The topics of a stream: looked up, created where the pipeline file allows it, and watched for what changed.

| found                                          | what happens                                                      |
|------------------------------------------------|-------------------------------------------------------------------|
| a topic is missing                             | it is created; if that is refused, its tables are Errored         |
| a topic that the stream has records in is gone | its tables are Errored; whoever deleted it creates it again       |
| it was created again                           | the partitions that it has now count; the loss is logged          |
| it has more partitions than it had             | the known number counts on; the others get no records; logged     |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from penstock.destinations.kafka.cluster import AWAY, FORBIDDEN, NO_TOPIC, Cluster, Noted, kafka_error
from penstock.destinations.kafka.positions import KnownTopic
from penstock.errors import DestinationUnreachable, StreamBroken, TopicsRefused

LOG = structlog.get_logger("kafka")
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", "segment.ms": "600000"}
VISIBLE_SECONDS = 15.0


@dataclass(frozen=True)
class NewTopics:
    """How topics are created; None leaves a number to the brokers."""

    create: bool
    partitions: int | None
    replication: int | None


class _MayNotCreate(Exception):
    def __init__(self, reason: str, solution: str) -> None:
        super().__init__(reason)
        self.reason, self.solution = reason, solution


class Topics:
    """The driver's view of a cluster's topics."""

    def __init__(self, cluster: Cluster, new: NewTopics) -> None:
        self._cluster, self._new, self._noted = cluster, new, Noted()
        try:
            self._admin = AdminClient(cluster.settings(self._noted))
        except KafkaException as error:
            raise cluster.misconfigured(error) from error

    def ensure_positions(self, name: str, partitions: int) -> None:
        """Create the topic of places, or check that the one that is there can keep them."""
        found = self._described([name])[name]
        if found is None:
            try:
                self._create(name, partitions, COMPACTED)
            except _MayNotCreate as error:
                raise DestinationUnreachable(f"topic {name}: {error.reason}", error.solution) from error
            found = self._created(name)
        if found.partitions < partitions:
            raise StreamBroken(
                f"topic {name} has {found.partitions} partitions, and {partitions} are needed: one for each shard and "
                "one more",
                "Delete it if it is empty, or give the destination another `positions_topic`",
            )

    def require_compacted(self, name: str) -> None:
        policy = self._settings([name])[name]["cleanup.policy"]
        if policy != "compact":
            raise StreamBroken(
                f"topic {name} has cleanup.policy={policy}: the places in it would be deleted in time",
                f"Set it: kafka-configs --alter --topic {name} --add-config cleanup.policy=compact",
            )

    def exists(self, name: str) -> bool:
        return self._described([name])[name] is not None

    def known(self, known: Mapping[str, KnownTopic]) -> dict[str, KnownTopic]:
        """Return the known topics as they count from now on, without those that are gone."""
        described = self._described(list(known))
        return {name: _counting(name, known[name], found) for name, found in described.items() if found is not None}

    def wanted(self, names: Iterable[str], known: Mapping[str, KnownTopic]) -> dict[str, KnownTopic]:
        """Return topics as they count from now on, creating those that are missing.

        TopicsRefused, after the others were created.
        """
        counting, refused, solution = {}, dict[str, str](), ""
        described = self._described(sorted(set(names)), refused)
        if refused:
            solution = "Grant the user of `client` Describe, DescribeConfigs, Create and Write on the topic"
        for name, found in described.items():
            before = known.get(name)
            if found is None and before is not None:
                refused[name] = "it is gone, and the records in it with it"
                solution = "Create it again, and the stream goes on in it from here"
                continue
            if found is None:
                try:
                    self._create(name, self._new.partitions, {})
                except _MayNotCreate as error:
                    refused[name], solution = error.reason, error.solution
                    continue
                found = self._created(name)
                LOG.info("topic created", topic=name, partitions=found.partitions)
            counting[name] = _counting(name, before, found)
        if refused:
            raise TopicsRefused(refused, solution)
        return counting

    def largest(self, names: Sequence[str]) -> dict[str, int]:
        """Return how many bytes each topic that is there takes in one batch of records."""
        return {name: int(found["max.message.bytes"] or 0) for name, found in self._settings(names).items()}

    def ends(self, topic: str, partitions: int) -> list[int]:
        """Return where each of the first partitions of a topic ends, with what is not committed yet."""
        newest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = {TopicPartition(topic, number): newest for number in range(partitions)}
        found = self._admin.list_offsets(asked, request_timeout=self._cluster.timeout)
        try:
            by_number = {one.partition: future.result().offset for one, future in found.items()}
        except KafkaException as error:
            raise self._failure(f"looking at topic {topic}", error) from error
        return [by_number[number] for number in range(partitions)]

    def _described(self, names: Sequence[str], refused: dict[str, str] | None = None) -> dict[str, KnownTopic | None]:
        """Return topics as they are, None for those that are missing.

        Those that the user may not see go to `refused` if it is given.
        """
        found: dict[str, KnownTopic | None] = {}
        if not names:
            return found
        asked = self._admin.describe_topics(TopicCollection(list(names)), request_timeout=self._cluster.timeout)
        for name, future in asked.items():
            try:
                described = future.result()
            except KafkaException as error:
                if kafka_error(error).code() in NO_TOPIC:
                    found[name] = None
                elif kafka_error(error).code() in FORBIDDEN and refused is not None:
                    refused[name] = kafka_error(error).str()
                else:
                    raise self._failure(f"looking up topic {name}", error) from error
            else:
                found[name] = KnownTopic(len(described.partitions), str(described.topic_id))
        return found

    def _settings(self, names: Sequence[str]) -> dict[str, dict[str, str | None]]:
        """Return the settings of the topics that are there. TopicsRefused for those that may not be looked at."""
        if not names:
            return {}
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        found, refused = {}, {}
        for resource, future in self._admin.describe_configs(resources, request_timeout=self._cluster.timeout).items():
            try:
                entries = future.result()
            except KafkaException as error:
                if kafka_error(error).code() in FORBIDDEN:
                    refused[resource.name] = "its settings may not be read"
                elif kafka_error(error).code() not in NO_TOPIC:
                    raise self._failure(f"looking up the settings of topic {resource.name}", error) from error
            else:
                found[resource.name] = {name: entry.value for name, entry in entries.items()}
        if refused:
            raise TopicsRefused(refused, "Grant the user of `client` DescribeConfigs on the topic")
        return found

    def _create(self, name: str, partitions: int | None, settings: Mapping[str, str]) -> None:
        command = f"kafka-topics --create --topic {name}" + (f" --partitions {partitions}" if partitions else "")
        policy = settings.get("cleanup.policy")
        by_hand = command + (f" --config cleanup.policy={policy}" if policy else "")
        if not self._new.create:
            raise _MayNotCreate("it is not there, and `create` is false", f"Create it: {by_hand}")
        topic = NewTopic(name, partitions or -1, self._new.replication or -1, config=dict(settings))
        (future,) = self._admin.create_topics([topic], request_timeout=self._cluster.timeout).values()
        try:
            future.result()
        except KafkaException as error:
            what = kafka_error(error)
            if what.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            if what.code() in AWAY:
                raise self._failure(f"creating topic {name}", error) from error
            raise _MayNotCreate(f"it cannot be created: {what.str()}", f"Allow it, or: {by_hand}") from error

    def _created(self, name: str) -> KnownTopic:
        """Wait until every broker knows a topic that was just created."""
        for _ in range(int(VISIBLE_SECONDS / 0.1)):
            found = self._described([name])[name]
            if found is not None:
                return found
            self._admin.poll(0.1)
        raise DestinationUnreachable(f"topic {name} was created, and cannot be seen yet", "It is tried again")

    def _failure(self, doing: str, error: KafkaException) -> DestinationUnreachable:
        self._admin.poll(0)
        failure = self._cluster.failure(doing, kafka_error(error), self._noted)
        self._noted.forget()
        assert isinstance(failure, DestinationUnreachable), failure
        return failure


def _counting(name: str, before: KnownTopic | None, found: KnownTopic) -> KnownTopic:
    if before is None:
        return found
    if before.id != found.id:
        LOG.warning("topic was deleted and created again: records published before are gone", topic=name)
        return found
    if before.partitions != found.partitions:
        LOG.warning(
            "partitions were added to a topic and stay empty: keys would move",
            topic=name,
            used=before.partitions,
            there=found.partitions,
        )
    return before
