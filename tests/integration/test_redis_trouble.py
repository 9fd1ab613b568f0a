"""What a Redis server refuses, tried against real servers: each one clear line, and nothing published by halves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis as redis_client

from penstock.config.destinations import RedisDestination as RedisSection
from penstock.destinations.redis.client import RedisConnection
from penstock.destinations.redis.destination import RedisDestination
from penstock.destinations.redis.protocol import RedisError
from penstock.destinations.stream_contract import TOPIC_TYPE, Publisher, Records, ShardPlace, StreamId
from penstock.errors import DestinationUnreachable, PenstockError, StreamBroken, TopicsRefused
from penstock.model.place import place_at
from stream_servers import Server, free_port, make_certificates, redis_server, tls_in_front

SHOP = StreamId("shop", "history 1", place_at(100))
SECRET = "s3cret/+ word"


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    """A server with a password, which tests may change."""
    with redis_server("--requirepass", SECRET) as server:
        yield server


@pytest.fixture
def client(guarded: Server) -> Iterator[Any]:
    with redis_client.Redis(port=guarded.port, password=SECRET) as client:
        client.flushall()
        yield client


def destination(url: str, **settings: Any) -> RedisDestination:
    return RedisDestination(RedisSection(type="redis", url=url, **{"timeout": 5, **settings}))


def own(server: Server, **settings: Any) -> RedisDestination:
    return destination(f"redis://:s3cret%2F%2B%20word@127.0.0.1:{server.port}/0", **settings)


def publish(publisher: Publisher, *texts: str, topic: str = "public.orders", end: int = 200) -> None:
    count = len(texts)
    publisher.open()
    given = Records(
        pa.array([place_at(100, number) for number in range(count)]),
        pa.array([b"k", *[None] * (count - 1)], pa.binary()),
        pa.array([text.encode() for text in texts], pa.binary()),
        pa.array([topic] * count, TOPIC_TYPE),
        pa.array([0] * count, pa.int32()),
        (("kind", pa.array([b"new", *[None] * (count - 1)], pa.binary())),),
    )
    publisher.publish([given], lambda: ShardPlace(place_at(end)))


def opened(made: RedisDestination) -> Publisher:
    made.ensure(SHOP)
    return made.publisher("shop", 0)


def one_line(error: PenstockError) -> str:
    text = str(error)
    assert "\n" not in text
    assert error.solution
    assert SECRET not in text
    assert "s3cret" not in text
    return text


def test_entries_have_the_fields_that_were_asked_for(guarded: Server, client: Any) -> None:
    publish(opened(own(guarded)), "one", "two")
    publish(opened(own(guarded, name="forge", fields="deltaforge")), "one", "two", topic="forge")
    ((_, first), (_, second)) = client.xrange("public.orders")
    assert first == {b"place": place_at(100).encode(), b"key": b"k", b"value": b"one", b"kind": b"new"}
    assert second == {b"place": place_at(100, 1).encode(), b"value": b"two"}
    ((_, first), (_, second)) = client.xrange("forge")
    name = f"forge/{place_at(100)}".encode()
    assert first == {b"event_id": name, b"idempotency_key": name, b"df-event": b"one", b"df-key": b"k",
                     b"df-headers": b'{"kind": "new"}'}  # fmt: skip
    assert second[b"df-headers"] == b"{}"
    assert b"df-key" not in second


def test_a_stream_is_trimmed_to_about_its_length(guarded: Server, client: Any) -> None:
    publish(opened(own(guarded, maxlen=100)), *(f"value {number}" for number in range(1000)))
    assert 100 <= client.xlen("public.orders") <= 300


@pytest.mark.parametrize(("url", "said"), [("redis://", "wants a password"), ("redis://:wrong@", "refuses the user")])
def test_passwords(guarded: Server, url: str, said: str) -> None:
    with pytest.raises(DestinationUnreachable) as refused:
        destination(f"{url}127.0.0.1:{guarded.port}").ensure(SHOP)
    assert said in one_line(refused.value)


def test_a_user_without_rights(guarded: Server, client: Any) -> None:
    client.acl_setuser("reader", enabled=True, passwords=["+secret"], keys=["*"], commands=["+get", "+info", "+watch"])
    with pytest.raises(DestinationUnreachable) as refused:
        destination(f"redis://reader:secret@127.0.0.1:{guarded.port}").ensure(SHOP)
    assert "may not do that" in one_line(refused.value)


def test_nobody_there() -> None:
    with pytest.raises(DestinationUnreachable) as refused:
        destination(f"redis://127.0.0.1:{free_port()}").ensure(SHOP)
    assert "Connection refused" in one_line(refused.value)


def test_a_key_of_another_type_concerns_its_stream_only(guarded: Server, client: Any) -> None:
    client.rpush("public.orders", "not a stream")
    made = own(guarded)
    publisher = opened(made)
    with pytest.raises(TopicsRefused) as refused:
        made.topics("shop", ["public.orders", "public.people"])
    assert refused.value.reasons == {"public.orders": "the key public.orders is a list, not a stream"}
    with pytest.raises(DestinationUnreachable, match=r"public\.orders is a list"):  # it became one later
        publish(publisher, "a", "b")
    assert made.places("shop") == [ShardPlace(place_at(100))], "nothing was published, and the place stays"
    client.delete("public.orders")
    publish(publisher, "a", "b")
    assert client.xlen("public.orders") == 2


def _fill(publisher: Publisher) -> None:
    for number in range(100):
        publish(publisher, *["x" * 50_000] * 4, end=200 + number)


def test_a_server_that_is_full_takes_all_or_nothing(guarded: Server, client: Any) -> None:
    made = own(guarded)
    publisher = opened(made)
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 1_000_000)
    try:
        with pytest.raises(DestinationUnreachable) as refused:
            _fill(publisher)
        assert "maxmemory" in one_line(refused.value)
        length = client.xlen("public.orders")
        assert length % 4 == 0
        client.config_set("maxmemory", 0)
        publish(publisher, "a", end=900)
        assert client.xlen("public.orders") == length + 1
    finally:
        client.config_set("maxmemory", 0)


def test_a_replica_and_a_server_that_forgets_keys_are_refused(guarded: Server, client: Any) -> None:
    publisher = opened(own(guarded))
    client.config_set("maxmemory-policy", "allkeys-lru")
    client.config_set("maxmemory", 1 << 30)
    try:
        with pytest.raises(StreamBroken, match="may remove streams and their place"):
            own(guarded).ensure(SHOP)
        client.config_set("maxmemory", 0)
        client.execute_command("REPLICAOF", "127.0.0.1", str(free_port()))
        with pytest.raises(DestinationUnreachable) as refused:
            publish(publisher, "a")
        assert "replica" in one_line(refused.value)
    finally:
        client.execute_command("REPLICAOF", "NO", "ONE")
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 0)
    publish(publisher, "a")


def test_a_place_that_is_gone(guarded: Server, client: Any) -> None:
    publisher = opened(own(guarded))
    publish(publisher, "a")
    client.delete("penstock:redis:shop:0")
    for look in (publisher.open, lambda: own(guarded).ensure(SHOP)):
        with pytest.raises(StreamBroken) as broken:
            look()
        assert "penstock:redis:shop:0 is missing" in one_line(broken.value)


def test_streams_that_others_change_all_the_time(guarded: Server, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A foreign entry between WATCH and EXEC makes Redis refuse the transaction; ours is tried again."""
    publisher = opened(own(guarded))
    real = RedisConnection.send_and_look

    def others_first(connection: RedisConnection, *given: Any) -> bytearray:
        client.xadd("public.orders", {"foreign": "1"})
        return real(connection, *given)

    monkeypatch.setattr(RedisConnection, "send_and_look", others_first)
    publish(publisher, "a", "b")
    assert [fields[b"value"] for _, fields in client.xrange("public.orders") if b"value" in fields] == [b"a", b"b"]


def test_tls(guarded: Server, client: Any, tmp_path: Path) -> None:
    certificate, key = make_certificates(tmp_path)
    with tls_in_front(guarded.port, certificate, key) as port:
        url = f"rediss://:s3cret%2F%2B%20word@localhost:{port}"
        publish(opened(destination(url, ca_file=str(certificate))), "a")
        with pytest.raises(DestinationUnreachable) as refused:
            destination(url).ensure(SHOP)
        assert "not trusted" in one_line(refused.value)
        with pytest.raises(DestinationUnreachable) as refused:
            destination(url.replace("localhost", "127.0.0.1"), ca_file=str(certificate)).ensure(SHOP)
        assert "not trusted" in one_line(refused.value)
    assert client.xlen("public.orders") == 1


def test_a_hash_tag_of_the_streams_is_that_of_the_place(guarded: Server, client: Any) -> None:
    publish(opened(own(guarded, stream="{shop}.${source.table}")), "a", topic="{shop}.orders")
    assert sorted(client.keys("penstock*")) == [b"penstock:{shop}:redis:shop", b"penstock:{shop}:redis:shop:0"]


@pytest.mark.parametrize("code", ["LOADING", "MISCONF", "CLUSTERDOWN", "CROSSSLOT", "MOVED", "BUSY"])
def test_refusals_that_no_server_gives_on_demand(guarded: Server, client: Any, code: str) -> None:
    with own(guarded)._server.connected() as connection:
        error = connection.refusal(RedisError(f"{code} the server's own words"))
    assert f"({code} the server's own words)" in one_line(error)
    assert "refuses a command" not in str(error)
