"""`type: kafka`: topics of a Kafka cluster, exactly once by transactions.

Records and the place of their shard are one transaction, so a reader with `isolation.level=read_committed` sees both or
neither. Where a stream is stands in a topic of ours (`positions.py`), one for each source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from confluent_kafka import KafkaException, Producer

from penstock.destinations.kafka.cluster import Cluster, Noted, kafka_error
from penstock.destinations.kafka.layout import KafkaLayout, topic_name
from penstock.destinations.kafka.positions import FORMAT, Description, KnownTopic
from penstock.destinations.kafka.publisher import KafkaPublisher
from penstock.destinations.kafka.topics import NewTopics, Topics
from penstock.destinations.kafka.writer import reader_of
from penstock.destinations.key_layout import Ordering
from penstock.destinations.stream_contract import ShardPlace, StreamId
from penstock.errors import StreamBroken, TopicsRefused


class KafkaSettings(Protocol):
    """What the pipeline file says of a Kafka destination; `config.destinations.KafkaDestination` has this shape."""

    @property
    def name(self) -> str: ...

    @property
    def brokers(self) -> str: ...

    @property
    def partitions(self) -> int | None: ...

    @property
    def replication(self) -> int | None: ...

    @property
    def create(self) -> bool: ...

    @property
    def exactly_once(self) -> bool: ...

    @property
    def positions_topic(self) -> str | None: ...

    @property
    def client(self) -> Mapping[str, str]: ...

    @property
    def shards(self) -> int: ...

    @property
    def ordering(self) -> Ordering: ...

    @property
    def timeout(self) -> float: ...


class KafkaDestination:
    """Connects when it is first asked for something."""

    tombstones = True
    holds_rows = False

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._cluster = Cluster(settings.brokers, tuple(sorted(settings.client.items())), settings.timeout)
        self._topics: Topics | None = None
        self._described: dict[str, Description] = {}
        self._largest: dict[str, dict[str, int]] = {}  # by source and topic: bytes that it takes

    @property
    def name(self) -> str:
        return self._settings.name

    def ensure(self, stream: StreamId) -> KafkaLayout:
        positions = self._positions(stream.source)
        wanted = Description(FORMAT, stream.source, stream.history, self._settings.shards, stream.start)
        known = self._read_description(positions)
        if known is None:
            self._admin.ensure_positions(positions, 1 + self._settings.shards)
            known = self._describe(positions, wanted)
        self._require_same(positions, known, wanted)
        self._admin.require_compacted(positions)
        return self._counting(positions, known, self._admin.known(known.topics))

    def topics(self, source: str, names: Sequence[str]) -> KafkaLayout:
        positions, known = self._positions(source), self._known(source)
        rendered = {topic_name(name): name for name in names}
        try:
            counting = self._admin.wanted(rendered, known.topics)
        except TopicsRefused as refused:
            for name in refused.reasons:
                self._largest[source].pop(name, None)
            reasons = {rendered.get(name, name): reason for name, reason in refused.reasons.items()}
            raise TopicsRefused(reasons, refused.solution) from refused
        return self._counting(positions, known, {**self._alive(source), **counting})

    def places(self, source: str) -> list[ShardPlace]:
        positions, reader = self._positions(source), reader_of(self._cluster)
        known = self._read_description(positions)
        if known is None:
            return []
        reader.await_ends(positions, self._admin.ends(positions, 1 + known.shards))
        found = [reader.place(positions, shard)[0] for shard in range(known.shards)]
        return [at or ShardPlace(known.start) for at in found]

    def publisher(self, source: str, shard: int) -> KafkaPublisher:
        known = self._known(source)
        return KafkaPublisher(
            self._cluster,
            self._positions(source),
            shard,
            known.start,
            self._settings.exactly_once,
            self._largest[source],
        )

    @property
    def _admin(self) -> Topics:
        if self._topics is None:
            settings = self._settings
            new = NewTopics(settings.create, settings.partitions, settings.replication)
            self._topics = Topics(self._cluster, new)
        return self._topics

    def _positions(self, source: str) -> str:
        return f"{self._settings.positions_topic or f'penstock.{self.name}'}.{source}"

    def _read_description(self, positions: str) -> Description | None:
        if not self._admin.exists(positions):
            return None
        reader = reader_of(self._cluster)
        reader.await_ends(positions, self._admin.ends(positions, 1))
        return reader.description(positions)

    def _known(self, source: str) -> Description:
        if source not in self._described:
            raise StreamBroken(f"stream {self.name} of {source} was not opened", "Start penstock again")
        return self._described[source]

    def _counting(self, positions: str, known: Description, topics: Mapping[str, KnownTopic]) -> KafkaLayout:
        """Take topics as they count from now on, and record what is new about them."""
        changed = {name: topic for name, topic in topics.items() if known.topics.get(name) != topic}
        if changed:
            known = self._describe(positions, replace(known, topics=changed))
        self._described[known.source] = known
        self._largest[known.source] = self._admin.largest(sorted(topics))
        partitions = {name: topic.partitions for name, topic in topics.items()}
        return KafkaLayout(known.shards, partitions, self._settings.ordering)

    def _alive(self, source: str) -> dict[str, KnownTopic]:
        """Return the topics that were there when they were last looked at."""
        known = self._known(source).topics
        return {name: known[name] for name in self._largest[source]}

    def _describe(self, positions: str, wanted: Description) -> Description:
        """Describe the stream, or add topics to what describes it; return what counts then."""
        noted = Noted()
        producer = Producer(self._cluster.settings(noted, transactional_id=f"{positions}.description"))
        try:
            producer.list_topics(positions, timeout=self._cluster.timeout)
            producer.init_transactions(self._cluster.timeout)
            known = reader_of(self._cluster).description(positions)  # nobody else adds to it from here on
            added = wanted if known is None else replace(known, topics={**known.topics, **wanted.topics})
            producer.begin_transaction()
            for key, value in added.records(since=known):
                producer.produce(positions, value, key, 0)
            producer.commit_transaction(self._cluster.timeout)
        except KafkaException as error:
            producer.poll(0)
            raise self._cluster.failure(f"writing to {positions}", kafka_error(error), noted) from error
        return added

    def _require_same(self, positions: str, known: Description, wanted: Description) -> None:
        elsewhere = "give the destination another `positions_topic`"
        if known.source != wanted.source:
            raise StreamBroken(f"topic {positions} is of source {known.source}", elsewhere.capitalize())
        if known.shards != wanted.shards:
            raise StreamBroken(
                f"the stream of topic {positions} has {known.shards} shards, and the file says "
                f"`shards: {wanted.shards}`: partitions would change their writers in the middle",
                f"Set `shards` to {known.shards}, or {elsewhere}",
            )
        if known.history != wanted.history:
            raise StreamBroken(
                f"the stream of topic {positions} was published from another change log than the present one: where "
                "it ended means nothing here",
                f"To start a new stream, {elsewhere}",
            )


def make_stream(settings: KafkaSettings, places: str) -> KafkaDestination:
    """Make the destination that a section of the pipeline file describes; it keeps its places itself."""
    return KafkaDestination(settings)
