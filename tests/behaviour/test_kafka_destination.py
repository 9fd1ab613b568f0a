"""What is special about Kafka, against a real server: topics and what happens to them, limits, logins, zombies."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from kafka_bench import KafkaBench, joined, placed, read_committed
from kafka_server import PASSWORD, USER, KafkaServer
from penstock.destinations.kafka.destination import KafkaDestination
from penstock.destinations.stream_contract import TOPIC_TYPE, Records, ShardPlace, StreamId
from penstock.errors import (
    DestinationUnreachable,
    Overtaken,
    RecordRefused,
    StreamBroken,
    TopicsRefused,
    UnknownTopics,
)
from penstock.model.place import place_at
from running import await_condition

START = place_at(100)
SHOP = StreamId("shop", "history 1", START)


@pytest.fixture
def bench(kafka_server: KafkaServer) -> KafkaBench:
    return KafkaBench(kafka_server)


def records(topic: str, *values: bytes | None, partition: int = 0) -> Records:
    count = len(values)
    made = Records(
        pa.array([place_at(100 + number) for number in range(count)]),
        pa.array([f"key {number}".encode() for number in range(count)], pa.binary()),
        pa.array(values, pa.binary()),
        pa.array([""] * count, TOPIC_TYPE),
        pa.array([0] * count, pa.int32()),
    )
    return placed(made, topic, partition)


def opened(bench: KafkaBench, **settings: Any) -> KafkaDestination:
    """A destination whose stream and topic are there."""
    destination = bench.plain(**settings)
    destination.ensure(SHOP)
    destination.topics("shop", [bench.topic])
    return destination


def publish(destination: KafkaDestination, given: Records, end: int) -> None:
    """As a task does, in which nothing of the driver is left."""
    publisher = pickle.loads(pickle.dumps(destination.publisher("shop", 0)))
    publisher.open()
    publisher.publish([given], lambda: ShardPlace(place_at(end)))


def read(bench: KafkaBench, topic: str | None = None) -> list[bytes | None]:
    bench.settle()
    return [message.value() for message in joined(read_committed(bench.server.brokers, topic or bench.topic))]


def test_headers_tombstones_and_partitions_arrive(bench: KafkaBench) -> None:
    destination = opened(bench)
    given = replace(
        records(bench.topic, b"a", None, b"", partition=2),
        headers=(("kind", pa.array([b"new", b"gone", None], pa.binary())), ("x", pa.nulls(3, pa.binary()))),
        keys=pa.array([b"1", b"2", None], pa.binary()),
    )
    publish(destination, given, 200)
    publish(destination, records(bench.topic, b"b", None, partition=2), 300)
    bench.settle()
    parts = read_committed(bench.server.brokers, bench.topic)
    assert [len(part) for part in parts] == [0, 0, 5]
    assert [(one.key(), one.value()) for one in parts[2]] == [
        (b"1", b"a"), (b"2", None), (None, b""), (b"key 0", b"b"), (b"key 1", None),
    ]  # fmt: skip
    assert [one.headers() for one in parts[2]] == [[("kind", b"new")], [("kind", b"gone")], None, None, None]


def test_many_records_of_many_partitions_are_each_in_order(bench: KafkaBench) -> None:
    destination = opened(bench)
    layout, count = destination.topics("shop", [bench.topic]), 30_000
    keys = pa.array([b"%d" % (number % 97) for number in range(count)], pa.binary())
    topics = pa.array([bench.topic] * count, TOPIC_TYPE)
    index, partitions = layout.select(0, topics, keys, np.zeros(count, np.bool_))
    places = pa.array([place_at(100, number) for number in range(count)])
    values = pa.array([b"%d" % number for number in range(count)], pa.binary())
    assert index.tolist() == list(range(count))
    publish(destination, Records(places, keys, values, topics, pa.array(partitions)), 200)
    bench.settle()
    parts = read_committed(bench.server.brokers, bench.topic)
    assert all(parts)
    assert sum(map(len, parts)) == count
    for number, part in enumerate(parts):
        read = [int(one.value() or b"") for one in part]
        assert read == sorted(read)
        assert {partitions[row] for row in read} == {number}


def test_records_that_a_topic_does_not_take_are_named_and_the_rest_is_published(bench: KafkaBench) -> None:
    (made,) = bench.admin.create_topics([NewTopic(bench.topic, 3, 1, config={"max.message.bytes": "20000"})]).values()
    made.result()
    destination = opened(bench)
    given = records(bench.topic, b"a", b"x" * 20_000, b"y" * 19_000, b"x" * 900_000)
    with pytest.raises(RecordRefused) as refused:
        publish(destination, given, 200)
    assert sorted(refused.value.reasons) == [place_at(101), place_at(103)]
    assert refused.value.reason_code == "too-large"
    assert "20,005 bytes" in refused.value.reasons[place_at(101)]
    assert read(bench) == []
    many = records(bench.topic, b"a", b"y" * 19_000, *[b"z" * 5_000] * 40)
    publish(destination, many, 200)
    assert read(bench) == many.values.to_pylist(), "batches stay below what the topic takes"


def test_a_limit_that_was_lowered_is_looked_up_again(bench: KafkaBench) -> None:
    destination = opened(bench)
    publish(destination, records(bench.topic, b"a"), 200)
    bench.configure(bench.topic, "max.message.bytes", "5000")
    large = records(bench.topic, b"b", bytes(np.random.default_rng(1).bytes(30_000)))
    with pytest.raises(UnknownTopics) as changed:
        publish(destination, large, 300)
    destination.topics("shop", sorted(changed.value.names))
    with pytest.raises(RecordRefused):
        publish(destination, large, 300)
    publish(destination, records(bench.topic, b"b"), 300)
    assert read(bench) == [b"a", b"b"]


def test_added_partitions_stay_empty(bench: KafkaBench) -> None:
    destination = opened(bench)
    keys = pa.array([b"%d" % number for number in range(200)], pa.binary())
    given = pa.array([bench.topic] * 200, TOPIC_TYPE), keys, np.zeros(200, np.bool_)
    before = destination.ensure(SHOP).select(0, *given)[1].tolist()
    (added,) = bench.admin.create_partitions([NewPartitions(bench.topic, 7)]).values()
    added.result()
    again = bench.plain()
    assert again.ensure(SHOP).select(0, *given)[1].tolist() == before
    assert again.topics("shop", [bench.topic]).select(0, *given)[1].tolist() == before
    assert max(before) == 2


def test_a_deleted_topic_is_for_the_operator_who_creates_it_again(bench: KafkaBench) -> None:
    destination = opened(bench)
    publish(destination, records(bench.topic, b"a"), 200)
    bench.delete(bench.topic)
    with pytest.raises((UnknownTopics, DestinationUnreachable)):
        publish(destination, records(bench.topic, b"b"), 300)
    with pytest.raises(TopicsRefused, match="it is gone") as gone:
        destination.topics("shop", [bench.topic])
    assert "Create it again" in gone.value.solution
    assert destination.places("shop") == [ShardPlace(place_at(200))], "nothing is taken for published"
    assert bench.topic not in bench.plain().ensure(SHOP).partitions
    with pytest.raises(UnknownTopics):
        publish(destination, records(bench.topic, b"b"), 300)
    (made,) = bench.admin.create_topics([NewTopic(bench.topic, 2, 1)]).values()
    made.result()
    found = []

    def found_again() -> bool:
        """A broker may answer before it has heard of the new topic."""
        with suppress(TopicsRefused):
            found.append(destination.topics("shop", [bench.topic]).partitions[bench.topic])
        return bool(found)

    await_condition(found_again, "the topic to be found", 30)
    assert found == [2], "it has no keys that could move"
    publish(destination, records(bench.topic, b"b"), 300)
    assert read(bench) == [b"b"]


def test_topics_that_may_not_be_created(bench: KafkaBench) -> None:
    destination = opened(bench)
    careful, demanding = bench.plain(create=False, partitions=5), bench.plain(replication=3)
    careful.ensure(SHOP)
    demanding.ensure(SHOP)
    with pytest.raises(TopicsRefused) as refused:
        careful.topics("shop", [bench.topic, f"{bench.topic} 2"])
    assert list(refused.value.reasons) == [f"{bench.topic} 2"], "under the name that it was rendered to"
    assert f"kafka-topics --create --topic {bench.topic}_2 --partitions 5" in refused.value.solution
    with pytest.raises(TopicsRefused, match=r"cannot be created: .*replication"):
        demanding.topics("shop", [f"{bench.topic}-3"])
    with pytest.raises(DestinationUnreachable, match="is not there, and `create` is false"):
        bench.plain(create=False, positions_topic=f"{bench.positions}-2").ensure(SHOP)
    publish(destination, records(bench.topic, b"a"), 200)


def test_places_are_never_kept_where_they_would_expire(bench: KafkaBench) -> None:
    opened(bench)
    bench.configure(f"{bench.positions}.shop", "cleanup.policy", "delete")
    with pytest.raises(StreamBroken, match=r"cleanup.policy=delete"):
        bench.plain().ensure(SHOP)


def test_looking_at_places_fences_nobody(bench: KafkaBench) -> None:
    destination = opened(bench)
    publisher = destination.publisher("shop", 0)
    publisher.open()
    assert bench.plain().places("shop") == [ShardPlace(START)]
    publisher.publish([records(bench.topic, b"a")], lambda: ShardPlace(place_at(200)))
    assert bench.plain().places("shop") == [ShardPlace(place_at(200))]


def test_a_zombie_in_the_middle_of_its_transaction_publishes_nothing(bench: KafkaBench) -> None:
    destination = opened(bench)
    zombie = destination.publisher("shop", 0)
    zombie.open()

    def interrupted() -> Iterator[Records]:
        yield records(bench.topic, b"zombie 1")
        time.sleep(0.1)  # what it has sent is at the broker by now
        publish(destination, records(bench.topic, b"a"), 200)
        yield records(bench.topic, b"zombie 2")

    with pytest.raises(Overtaken):
        zombie.publish(interrupted(), lambda: ShardPlace(place_at(999)))
    assert read(bench) == [b"a"]
    assert zombie.open() == ShardPlace(place_at(200))


SLEEPER = """
import os, pickle, signal, sys
from pathlib import Path
from penstock.errors import Overtaken

publisher, first, second, upto = pickle.loads(Path(sys.argv[1]).read_bytes())
publisher.open()

def interrupted():
    yield first
    publisher._writer._producer.flush()  # it is at the broker
    os.kill(os.getpid(), signal.SIGSTOP)
    yield second

try:
    publisher.publish(interrupted(), lambda: upto)
except Overtaken:
    sys.exit(7)
"""


def test_a_process_that_slept_in_its_transaction_publishes_nothing(bench: KafkaBench, tmp_path: Path) -> None:
    destination = opened(bench)
    given = [records(bench.topic, b"zombie 1"), records(bench.topic, b"zombie 2")]
    work = (destination.publisher("shop", 0), *given, ShardPlace(place_at(999)))
    (tmp_path / "work").write_bytes(pickle.dumps(work))
    sleeper = subprocess.Popen([sys.executable, "-c", SLEEPER, str(tmp_path / "work")])
    try:
        while psutil.Process(sleeper.pid).status() != psutil.STATUS_STOPPED:
            assert sleeper.poll() is None
            time.sleep(0.02)
        publish(destination, records(bench.topic, b"a"), 200)
        sleeper.send_signal(signal.SIGCONT)
        assert sleeper.wait(60) == 7, "it was fenced"
    finally:
        sleeper.kill()
        sleeper.wait()
    publish(destination, records(bench.topic, b"b"), 300)
    assert read(bench) == [b"a", b"b"]


def test_the_newest_place_is_found_behind_many_others(bench: KafkaBench) -> None:
    destination = opened(bench)
    producer = Producer({"bootstrap.servers": bench.server.brokers})
    publish(destination, records(bench.topic, b"a"), 200)
    for number in range(300):  # something that is not a place
        producer.produce(f"{bench.positions}.shop", str(number).encode(), b"noise", 1)
    producer.flush()
    assert bench.plain().places("shop") == [ShardPlace(place_at(200))]


def test_without_transactions_what_is_published_again_is_there_twice(bench: KafkaBench) -> None:
    destination = opened(bench, exactly_once=False)
    publish(destination, records(bench.topic, b"a", b"b"), 200)
    publish(destination, records(bench.topic, b"c"), 300)
    assert read(bench) == [b"a", b"b", b"c"]
    assert destination.places("shop") == [ShardPlace(place_at(300))]
    assert opened(bench).publisher("shop", 0).open() == ShardPlace(place_at(300)), "it can be turned on later"


def test_tls_and_logins(bench: KafkaBench) -> None:
    server = bench.server
    tls = {"security.protocol": "SSL", "ssl.ca.location": str(server.authority)}
    login = {"sasl.mechanism": "PLAIN", "sasl.username": USER, "sasl.password": PASSWORD}
    sasl = {**tls, **login, "security.protocol": "SASL_SSL"}
    publish(opened(bench, brokers=server.tls_brokers, client=tls), records(bench.topic, b"a"), 200)
    publish(opened(bench, brokers=server.sasl_brokers, client=sasl), records(bench.topic, b"b"), 300)
    assert read(bench) == [b"a", b"b"]
    known = opened(bench).publisher("shop", 0)
    for brokers, client, said in (
        (server.sasl_brokers, {**sasl, "sasl.password": "wrong one"}, "refuses the login"),
        (server.tls_brokers, {"security.protocol": "SSL"}, "TLS failed"),
        ("127.0.0.1:9", {}, "Connection refused"),
    ):
        away = bench.plain(brokers=brokers, client=client, timeout="2s")
        publisher = replace(known, cluster=away._cluster)
        for act in (lambda away=away: away.ensure(SHOP), publisher.open)[: 1 + (said == "refuses the login")]:
            with pytest.raises(DestinationUnreachable, match=said) as failed:
                act()
            assert "\n" not in str(failed.value)
            assert PASSWORD not in f"{failed.value}{away}{away._cluster}{bench.section(client=client)!r}"
            assert "wrong one" not in f"{failed.value}{away._cluster}{bench.section(client=client)!r}"


def test_a_user_without_rights(bench: KafkaBench) -> None:
    denied = AclBinding(
        ResourceType.TOPIC, f"{bench.topic}-secret", ResourcePatternType.LITERAL, f"User:{USER}", "*",
        AclOperation.CREATE, AclPermissionType.DENY,
    )  # fmt: skip
    (done,) = bench.admin.create_acls([denied]).values()
    done.result()
    client = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(bench.server.authority),
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }
    destination = opened(bench, brokers=bench.server.sasl_brokers, client=client)
    with pytest.raises(TopicsRefused, match=r"-secret: .*[Aa]uthoriz"):
        destination.topics("shop", [f"{bench.topic}-secret"])
    publish(destination, records(bench.topic, b"a"), 200)


def test_settings_that_the_library_does_not_know(bench: KafkaBench, tmp_path: Path) -> None:
    with pytest.raises(StreamBroken, match=r"compresion\.type"):
        bench.plain(client={"compresion.type": "lz4"}).ensure(SHOP)
    with pytest.raises(StreamBroken, match=r"ca\.location"):
        bench.plain(client={"ssl.ca.location": str(tmp_path / "none"), "security.protocol": "ssl"}).ensure(SHOP)
