"""The publish loop into a real Kafka, without Spark: topics, tombstones, and trouble that is one table's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from kafka_bench import KafkaBench, joined, read_committed
from kafka_server import KafkaServer
from loop_bench import AT_ONCE, ORDERS, PEOPLE
from penstock.model.table_state import State
from penstock.runtime.publish.loop import PublishLoop
from pgoutput_messages import delete, insert, truncate, update
from publish_bench import PublishBench, stream_feed


class Looped:
    """A log that a test fills, and a loop that publishes it to Kafka."""

    def __init__(self, folder: Path, kafka: KafkaBench) -> None:
        self.kafka, self.bench = kafka, PublishBench(folder, stream_feed(ORDERS), stream_feed(PEOPLE))
        self.loop = self.restart()

    def topic(self, table: str) -> str:
        return f"{self.kafka.topic}.{table}"

    def restart(self) -> PublishLoop:
        """A new process."""
        section = self.kafka.section(
            topic=f"{self.kafka.topic}.${{source.table}}", shards=2, deletes="both", headers={"op": "${op}"}
        )
        destination = self.kafka.plain(shards=2, timeout="5s")
        bench = self.bench
        self.loop = PublishLoop(
            "shop", destination, bench.runner, bench.log, AT_ONCE, bench.state, format=section.record_format
        )
        for feed in bench.feeds:
            self.loop.follow(feed)
        return self.loop

    def drain(self) -> None:
        while self.loop.step(now=True):
            pass
        self.kafka.settle()

    def read(self, table: str) -> list[tuple[int | None, str | None]]:
        """Key and operation of what a reader sees of a table, by partition; a tombstone has none."""
        found = joined(read_committed(self.kafka.server.brokers, self.topic(table)))
        return [
            (json.loads(one.key() or b'{"id":null}')["id"], json.loads(value)["op"] if (value := one.value()) else None)
            for one in found
        ]


@pytest.fixture
def looped(tmp_path: Path, kafka_server: KafkaServer) -> Looped:
    return Looped(tmp_path, KafkaBench(kafka_server))


def test_events_tombstones_and_truncates_arrive_once(looped: Looped) -> None:
    looped.bench.seal(
        200, (ORDERS, 110, insert("1", "a")), (ORDERS, 120, update("1", "b")), (PEOPLE, 130, insert("7", "Ann", "x"))
    )
    looped.drain()
    looped.bench.runner.fail_after = 1  # the second shard is not published, and the driver hears of neither
    looped.bench.seal(
        300, (ORDERS, 210, delete("1", None)), (ORDERS, 220, insert("2", "c")), (PEOPLE, 230, truncate(2))
    )
    with pytest.raises(ConnectionError):
        looped.drain()
    looped.restart()
    looped.drain()
    read = looped.read("orders")
    assert [op for key, op in read if key == 1] == ["insert", "update", "delete", None]
    assert [op for key, op in read if key == 2] == ["insert"]
    assert sorted(looped.read("people"), key=str) == [(7, "insert"), *[(None, "truncate")] * 3]
    headers = [one.headers() for one in joined(read_committed(looped.kafka.server.brokers, looped.topic("orders")))]
    assert all(headers)


def test_a_deleted_topic_makes_its_tables_errored_until_it_is_there_again(looped: Looped) -> None:
    looped.bench.seal(200, (ORDERS, 110, insert("1", "a")), (PEOPLE, 120, insert("7", "Ann", "x")))
    looped.drain()
    looped.kafka.delete(looped.topic("people"))
    looped.bench.seal(300, (ORDERS, 210, insert("2", "b")), (PEOPLE, 220, insert("8", "Bob", "y")))
    looped.drain()
    status = looped.bench.state.table_status("kafka")
    assert status[ORDERS.table].state is State.READY
    assert f"topic {looped.topic('people')}: it is gone" in status[PEOPLE.table].reason
    assert sorted(looped.read("orders")) == [(1, "insert"), (2, "insert")]
    (made,) = looped.kafka.admin.create_topics([NewTopic(looped.topic("people"), 2, 1)]).values()
    made.result()
    looped.loop.retry(looped.loop.tables[PEOPLE.table])
    looped.drain()
    assert looped.bench.state.table_status("kafka")[PEOPLE.table].state is State.READY
    assert looped.read("people") == [(8, "insert")], "nothing is lost that was not in the topic"


def test_a_record_that_is_too_large_is_a_dead_letter(looped: Looped) -> None:
    small = NewTopic(looped.topic("orders"), 3, 1, config={"max.message.bytes": "5000"})
    (made,) = looped.kafka.admin.create_topics([small]).values()
    made.result()
    changes = [(ORDERS, 110, insert("1", "a")), (ORDERS, 120, insert("2", "b" * 9000)), (ORDERS, 130, insert("3", "c"))]
    looped.bench.seal(200, *changes)
    looped.drain()
    assert sorted(looped.read("orders")) == [(1, "insert"), (3, "insert")]
    assert looped.bench.state.table_status("kafka")[ORDERS.table].state is State.READY
    (letter,) = looped.bench.state.letters("kafka")
    assert (letter.letter.code, "max.message.bytes" in letter.letter.reason) == ("too-large", True)
