"""The publish loop over real Redis and NATS servers: tables in trouble, and servers that go and come back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis as redis_client

from loop_bench import AT_ONCE, ORDERS, PEOPLE
from penstock.config.destinations import NatsDestination as NatsSection
from penstock.config.destinations import RedisDestination as RedisSection
from penstock.destinations.nats.destination import NatsDestination
from penstock.destinations.redis.destination import RedisDestination
from penstock.destinations.stream_contract import CopyPlace, StreamDestination
from penstock.errors import DestinationUnreachable, Overtaken
from penstock.model.table_state import State
from penstock.runtime.publish.loop import PublishLoop
from penstock.runtime.publish.task import place_name
from pgoutput_messages import insert, update
from publish_bench import PublishBench, stream_feed
from stream_benches import read_nats_events
from stream_servers import Server, nats_server, redis_server


class ServerBench(PublishBench):
    """A publish loop whose stream is on a server."""

    def __init__(self, folder: Path, destination: StreamDestination) -> None:
        self.destination = destination
        super().__init__(folder, stream_feed(ORDERS), stream_feed(PEOPLE))

    def restart(self, **_: Any) -> PublishLoop:
        self.loop = PublishLoop("shop", self.destination, self.runner, self.log, AT_ONCE, self.state)
        for feed in self.feeds:
            self.loop.follow(feed)
        return self.loop


@pytest.fixture
def own_redis() -> Iterator[Server]:
    with redis_server() as server:
        yield server


def redis_bench(folder: Path, server: Server) -> ServerBench:
    section = RedisSection(type="redis", url=f"redis://127.0.0.1:{server.port}", timeout=5, shards=2)
    return ServerBench(folder, RedisDestination(section))


def redis_ids(server: Server, stream: str) -> list[int]:
    with redis_client.Redis(port=server.port) as client:
        return [json.loads(fields[b"value"])["key"]["id"] for _, fields in client.xrange(stream)]


def test_a_key_of_another_type_makes_its_table_errored_and_no_other(tmp_path: Path, own_redis: Server) -> None:
    bench = redis_bench(tmp_path, own_redis)
    with redis_client.Redis(port=own_redis.port) as client:
        client.set("public.people", "not a stream")
        bench.seal(200, (ORDERS, 110, insert("1", "a")), (PEOPLE, 120, insert("7", "Ann", "x")))
        bench.drain()
        bench.seal(300, (ORDERS, 210, insert("2", "a")), (PEOPLE, 220, insert("8", "Bo", "x")))
        bench.drain()
        status = bench.state.table_status("redis")
        assert status[ORDERS.table].state is State.READY
        assert status[PEOPLE.table].state is State.ERRORED
        assert "the key public.people is a string, not a stream" in status[PEOPLE.table].reason
        assert redis_ids(own_redis, "public.orders") == [1, 2]
        client.delete("public.people")
    bench.loop.retry(bench.loop.tables[PEOPLE.table])
    bench.drain()
    assert redis_ids(own_redis, "public.people") == [7, 8]
    assert bench.state.table_status("redis")[PEOPLE.table].state is State.READY


def test_a_redis_that_comes_back_with_older_data_gets_what_it_lost(tmp_path: Path, own_redis: Server) -> None:
    bench = redis_bench(tmp_path, own_redis)
    bench.seal(200, (ORDERS, 110, insert("1", "a")))
    bench.drain()
    older = own_redis.folder / "older"
    shutil.copy(own_redis.folder / "appendonly.aof", older)
    bench.seal(300, (ORDERS, 210, insert("2", "a")))
    bench.drain()
    own_redis.kill()
    bench.seal(400, (ORDERS, 310, insert("3", "a")))
    with pytest.raises(DestinationUnreachable, match="Connection refused"):
        bench.drain()
    shutil.copy(older, own_redis.folder / "appendonly.aof")
    own_redis.start()
    assert redis_ids(own_redis, "public.orders") == [1]
    with pytest.raises(Overtaken, match="the destination lost what it had acknowledged"):
        bench.drain()
    bench.drain()
    assert redis_ids(own_redis, "public.orders") == [1, 2, 3]


def test_a_nats_that_goes_and_comes_back(tmp_path: Path) -> None:
    with nats_server() as server:
        section = NatsSection(type="nats", url=[f"nats://127.0.0.1:{server.port}"], stream="SHOP", timeout=5, shards=2)
        bench = ServerBench(tmp_path, NatsDestination(section))
        bench.seal(200, *((ORDERS, 101 + number, insert(str(number), "a")) for number in range(30)))
        bench.drain()
        server.kill()
        bench.seal(300, *((ORDERS, 201 + number, update(str(number), "b")) for number in range(30)))
        with pytest.raises(DestinationUnreachable, match="Connection refused"):
            bench.drain()
        server.start()
        bench.drain()
        bench.restart()
        bench.seal(400, (PEOPLE, 310, insert("7", "Ann", "x")))
        bench.drain()
        shards = [read_nats_events(server, f"SHOP_{shard}") for shard in range(2)]
    seen = sorted((event["table"], event["key"]["id"], event["op"]) for events in shards for event in events)
    orders = [("orders", number, op) for number in range(30) for op in ("insert", "update")]
    assert seen == sorted([*orders, ("people", 7, "insert")])
    for events in shards:
        assert [event["place"] for event in events] == sorted(event["place"] for event in events)


def test_a_nats_that_comes_back_without_the_end_of_a_copy(tmp_path: Path) -> None:
    with nats_server() as server:
        section = NatsSection(type="nats", url=[f"nats://127.0.0.1:{server.port}"], stream="SHOP", timeout=5)
        bench = ServerBench(tmp_path, NatsDestination(section))
        bench.seal(200, (ORDERS, 110, insert("1", "a")), (PEOPLE, 120, insert("7", "Ann", "x")))
        bench.drain()
        name, publisher = place_name(PEOPLE.table), bench.loop.publisher(0)
        whole = publisher.open()
        publisher.advance(replace(whole, behind={name: whole.place}, copies={name: CopyPlace("snapshot", 1)}))
        server.kill()
        shutil.copytree(server.folder / "jetstream", tmp_path / "older")
        server.start()
        publisher.open()
        publisher.advance(whole)
        bench.seal(300, (ORDERS, 210, insert("2", "a")))
        bench.drain()
        server.kill()
        shutil.rmtree(server.folder / "jetstream")
        shutil.copytree(tmp_path / "older", server.folder / "jetstream")
        server.start()
        bench.seal(400, (ORDERS, 310, insert("3", "a")), (PEOPLE, 320, insert("8", "Bo", "x")))
        with pytest.raises(Overtaken, match="the destination lost what it had acknowledged"):
            bench.drain()
        bench.drain()
        status = bench.state.table_status("nats")[PEOPLE.table]
        assert (status.state, status.code) == (State.ERRORED, "events-missing")
        assert "has lost rows of its copy" in status.reason
        seen = [(event["table"], event["key"]["id"]) for event in read_nats_events(server, "SHOP")]
    assert seen == [("orders", 1), ("people", 7), ("orders", 2), ("orders", 3)]
