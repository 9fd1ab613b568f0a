"""The publish loop over the in-memory stream: every event once and in order, whatever fails in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from loop_bench import ORDERS, PEOPLE, numbered, schema
from penstock.destinations.memory_stream import MemoryPublisher
from penstock.destinations.stream_contract import Published, Records, ShardPlace
from penstock.errors import Overtaken, StreamBroken, TableError, UnknownTopics
from penstock.model.place import place_at
from penstock.model.table import TableId
from penstock.model.table_state import State
from penstock.runtime.publish import loop as publish_loop
from penstock.runtime.publish.task import place_name
from pgoutput_messages import INT8, TEXT, delete, insert, numeric, truncate, update
from publish_bench import PublishBench, stream_feed

PRICES = schema("prices", 3, id=INT8, price=numeric(5, 2))


@pytest.fixture
def bench(tmp_path: Path) -> PublishBench:
    return PublishBench(tmp_path, stream_feed(ORDERS), stream_feed(PEOPLE))


def test_events_of_all_tables_come_in_commit_order(bench: PublishBench) -> None:
    bench.seal(
        200, (ORDERS, 110, insert("1", "new")), (PEOPLE, 120, insert("2", "Ann", "x")), (ORDERS, 130, delete("1", None))
    )
    bench.seal(
        300, (PEOPLE, 210, update("2", "Bo", "y")), (ORDERS, 210, insert("3", "new")), (ORDERS, 220, truncate(1))
    )
    bench.drain()
    (events,) = bench.events()
    assert [(event["op"], event["table"], (event["key"] or {}).get("id")) for event in events] == [
        ("insert", "orders", 1),
        ("insert", "people", 2),
        ("delete", "orders", 1),
        ("update", "people", 2),
        ("insert", "orders", 3),
        ("truncate", "orders", None),
    ]
    assert [event["place"] for event in events] == sorted(event["place"] for event in events)
    assert bench.loop.processed == 300
    progress = bench.state.progress("stream")
    assert {str(name): one.changes for name, one in progress.items()} == {"public.orders": 4, "public.people": 2}
    assert bench.state.table_status("stream")[ORDERS.table].state is State.READY


def test_changes_under_another_name(bench: PublishBench) -> None:
    """A table that was renamed for a moment lacks events, unless a table of that name is published."""
    tables = bench.loop.tables
    for one in (ORDERS, PEOPLE):
        tables[one.table].relation_id = one.relation_id
    bench.seal(200, (ORDERS, 110, insert("1", "a")), (replace(PEOPLE, table=ORDERS.table), 120, insert("9", "b", "")))
    bench.drain()
    assert not any(table.errored for table in tables.values())
    bench.seal(
        300, (ORDERS, 210, insert("2", "a")), (replace(ORDERS, table=TableId("public", "away")), 220, delete("1", ""))
    )
    bench.seal(400, (PEOPLE, 310, insert("3", "c", "d")))
    bench.drain()
    status = bench.state.table_status("stream")[ORDERS.table]
    assert "was called public.away for a while" in status.reason
    assert status.code == "events-missing"
    assert tables[ORDERS.table].incomplete
    assert bench.state.table_status("stream")[PEOPLE.table].state is State.READY
    (events,) = bench.events()
    assert events[-1]["key"] == {"id": 3}


def test_structures_of_one_batch_stay_in_order(bench: PublishBench) -> None:
    wider = numbered(schema("orders", 1, id=INT8, state=TEXT, note=TEXT), 1, 2, 3)
    bench.seal(
        200,
        (ORDERS, 110, insert("1", "a")),
        (wider, 120, insert("2", "b", "note")),
        (ORDERS, 130, insert("3", "c")),
        (wider, 140, update("1", "d", "note")),
    )
    bench.drain()
    (events,) = bench.events()
    assert [sorted(event["after"]) for event in events] == [
        ["id", "state"],
        ["id", "note", "state"],
        ["id", "state"],
        ["id", "note", "state"],
    ]
    assert bench.ids() == [1, 2, 3, 1]


def test_a_transaction_in_parts_stays_in_order_and_can_fail_in_the_middle(tmp_path: Path) -> None:
    """What fails in a later part stands behind from there: the events of the earlier part are not published twice."""
    bench = PublishBench(tmp_path, stream_feed(ORDERS), stream_feed(PRICES, strict=True))
    bench.part(150, 0, (PRICES, insert("1", "1.00")), (ORDERS, insert("1", "a")), (PRICES, insert("2", "2.00")))
    bench.part(150, 3, (ORDERS, insert("2", "b")), (PRICES, insert("3", "NaN")), (ORDERS, insert("3", "c")))
    bench.seal(200)
    bench.drain()
    (events,) = bench.events()
    assert [(event["table"], event["key"]["id"]) for event in events] == [
        ("prices", 1),
        ("orders", 1),
        ("prices", 2),
        ("orders", 2),
        ("orders", 3),
    ]
    assert bench.store.shards["shop"][0].at.behind == {place_name(PRICES.table): place_at(150, 4)}
    bench.feeds = (stream_feed(ORDERS), stream_feed(PRICES))
    bench.restart()
    bench.drain()
    assert bench.ids(table="prices") == [1, 2, 3]
    assert len(bench.events()[0]) == 6


def test_a_restart_goes_on_and_publishes_nothing_twice(bench: PublishBench) -> None:
    bench.seal(200, (ORDERS, 110, insert("1", "a")))
    bench.drain()
    bench.restart()
    bench.seal(300, (ORDERS, 210, insert("2", "b")))
    bench.drain()
    bench.restart()
    bench.drain()
    assert bench.ids() == [1, 2]


def test_shards_that_were_published_before_a_failure_are_left_alone(tmp_path: Path) -> None:
    bench = PublishBench(tmp_path, stream_feed(ORDERS), shards=3)
    bench.seal(200, *((ORDERS, 100 + number, insert(str(number), "a")) for number in range(30)))
    bench.runner.fail_after = 1
    with pytest.raises(ConnectionError):
        bench.drain()
    assert [len(share) > 0 for share in bench.events()] == [True, False, False]
    bench.seal(300, *((ORDERS, 200 + number, update(str(number), "b")) for number in range(30)))
    bench.restart()
    bench.drain()
    seen = [event for share in bench.events() for event in share]
    assert sorted((event["key"]["id"], event["op"]) for event in seen) == sorted(
        (number, op) for number in range(30) for op in ("insert", "update")
    )
    for share in bench.events():
        assert [event["place"] for event in share] == sorted(event["place"] for event in share)


def test_a_destination_that_loses_its_end_gets_it_again(bench: PublishBench) -> None:
    """As a Redis does that was killed between two snapshots, or whose replica took over."""
    bench.seal(200, (ORDERS, 110, insert("1", "a")))
    bench.drain()
    shard = bench.store.shards["shop"][0]
    earlier = shard.at, list(shard.records)
    bench.seal(300, (ORDERS, 210, insert("2", "b")))
    bench.drain()
    shard.at, shard.records = earlier
    bench.seal(400, (ORDERS, 310, insert("3", "c")))
    with pytest.raises(Overtaken, match="the destination lost what it had acknowledged"):
        bench.drain()
    bench.drain()
    assert bench.ids() == [1, 2, 3]
    assert bench.loop.processed == 400


@pytest.mark.parametrize("shards", [1, 2])
def test_an_errored_table_stands_behind_and_is_brought_on(tmp_path: Path, shards: int) -> None:
    strict = stream_feed(PRICES, strict=True)
    bench = PublishBench(tmp_path, stream_feed(ORDERS), strict, shards=shards)
    bench.seal(200, (PRICES, 110, insert("1", "1.00")), (ORDERS, 120, insert("1", "a")))
    bench.seal(
        300, (PRICES, 210, insert("2", "NaN")), (PRICES, 220, insert("3", "3.00")), (ORDERS, 230, insert("2", "b"))
    )
    bench.drain()
    bench.seal(400, (PRICES, 310, update("1", "1.50")), (ORDERS, 320, insert("3", "c")))
    bench.drain()
    status = bench.state.table_status("stream")[PRICES.table]
    assert status.state is State.ERRORED
    assert "NaN" in status.reason
    seen = [event for share in bench.events() for event in share]
    assert sorted(event["key"]["id"] for event in seen if event["table"] == "orders") == [1, 2, 3]
    assert bench.loop.processed == 400
    assert bench.loop.held_from < 400 == bench.loop.needed_from
    bench.feeds = (stream_feed(ORDERS), stream_feed(PRICES))
    bench.restart()  # without `strict`, the value is rescued
    bench.seal(500, (PRICES, 410, update("1", "2.00")))
    bench.drain()
    prices = [event for share in bench.events() for event in share if event["table"] == "prices"]
    assert sorted((event["key"]["id"], event["place"]) for event in prices) == [
        (1, place_at(110)),
        (1, place_at(310)),
        (1, place_at(410)),
        (2, place_at(210)),
        (3, place_at(220, 1)),
    ]
    of_one = [event["place"] for event in prices if event["key"]["id"] == 1]
    assert of_one == sorted(of_one), "each key stays in commit order"
    assert bench.state.table_status("stream")[PRICES.table].state is State.READY
    assert bench.loop.is_level
    assert bench.loop.held_from == bench.loop.needed_from == 500


def test_a_table_can_go_on_without_what_it_lacks(tmp_path: Path) -> None:
    bench = PublishBench(tmp_path, stream_feed(PRICES, strict=True))
    bench.seal(200, (PRICES, 110, insert("1", "NaN")))
    bench.drain()
    bench.loop.skip(bench.loop.tables[PRICES.table])
    bench.seal(300, (PRICES, 210, insert("2", "2.00")))
    bench.drain()
    assert bench.ids() == [2]
    assert [event.kind for event in bench.state.events()][-1] == "skipped"


def test_a_message_that_cannot_be_decoded_is_kept_and_passed_over(bench: PublishBench) -> None:
    bench.seal(
        200,
        (ORDERS, 110, insert("1", "a")),
        (ORDERS, 120, insert("2", "b")[:-1]),
        (PEOPLE, 130, insert("5", "Ann", "x")),
        (ORDERS, 140, insert("3", "c")),
    )
    bench.drain()
    assert bench.ids(table="orders") == [1, 3]
    assert bench.ids(table="people") == [5]
    assert [one.message.commit_position for one in bench.state.quarantined("stream")] == [120]
    assert bench.state.table_status("stream")[ORDERS.table].state is State.READY
    bench.seal(300, (ORDERS, 210, insert("4", "d")))
    bench.drain()
    assert bench.ids(table="orders") == [1, 3, 4]


def test_a_stream_that_starts_now_leaves_out_what_the_log_has(bench: PublishBench) -> None:
    bench.seal(200, (ORDERS, 110, insert("1", "a")))
    bench.restart(start="now")
    bench.drain()
    bench.seal(300, (ORDERS, 210, insert("2", "b")))
    bench.drain()
    assert bench.ids() == [2]


def test_a_stream_starts_at_a_position_that_the_log_has(bench: PublishBench) -> None:
    bench.seal(200, (ORDERS, 110, insert("1", "a")), (ORDERS, 150, insert("2", "b")), (ORDERS, 160, insert("3", "c")))
    bench.restart(start=50)
    with pytest.raises(StreamBroken, match="to start at 0/32, and the change log begins at 0/64"):
        bench.drain()
    bench.restart(start=250)
    bench.drain()
    assert not bench.loop.has_begun, "the log has not got there"
    bench.restart(start=150)
    bench.drain()
    assert bench.ids() == [2, 3]
    bench.restart(start=50)
    bench.seal(300, (ORDERS, 210, insert("4", "d")))
    bench.drain()
    assert bench.ids() == [2, 3, 4], "a stream that is there knows where it is"


def test_nothing_happens_while_the_log_is_empty(bench: PublishBench) -> None:
    assert not bench.loop.step(now=True)
    assert not bench.loop.has_begun


def test_places_move_on_over_what_holds_no_events(bench: PublishBench, monkeypatch: pytest.MonkeyPatch) -> None:
    other = schema("other", 9, id=INT8)
    bench.seal(200, (ORDERS, 110, insert("1", "a")))
    bench.drain()
    bench.seal(300, (other, 210, insert("1")))
    bench.drain()
    assert (bench.loop.processed, bench.loop.needed_from) == (300, 200), "what is not kept is read again"
    monkeypatch.setattr(publish_loop, "ADVANCE_EVERY", 0.0)
    bench.loop.step(now=True)
    assert bench.loop.needed_from == 300
    bench.seal(400, (other, 310, insert("2")))
    monkeypatch.undo()
    bench.drain()
    bench.loop.close()
    assert bench.restart().begin()
    assert bench.loop.processed == 400


def test_a_log_that_has_passed_the_stream_is_refused(bench: PublishBench) -> None:
    bench.seal(200, (ORDERS, 110, insert("1", "a")))
    bench.drain()
    bench.seal(300, (ORDERS, 210, insert("2", "b")))
    bench.seal(400, (ORDERS, 310, insert("3", "c")))
    for name in bench.log.segments()[:2]:
        bench.log.remove(name)
    bench.restart()
    with pytest.raises(StreamBroken, match="the events in between are lost"):
        bench.drain()
    assert bench.ids() == [1]


def test_an_errored_table_whose_changes_the_log_has_let_go_is_lost(tmp_path: Path) -> None:
    bench = PublishBench(tmp_path, stream_feed(ORDERS), stream_feed(PRICES, strict=True))
    bench.seal(200, (PRICES, 110, insert("1", "NaN")), (ORDERS, 120, insert("1", "a")))
    bench.seal(300, (ORDERS, 210, insert("2", "b")))
    bench.drain()
    bench.loop.pass_over(200)
    status = bench.state.table_status("stream")[PRICES.table]
    assert "the change log begins at" in status.reason
    assert bench.loop.held_from == bench.loop.needed_from == 300, "nothing is kept for it any more"
    assert place_name(PRICES.table) == '"public"."prices"'


def test_topics_are_looked_up_when_they_are_first_met(bench: PublishBench) -> None:
    bench.store.topics, bench.store.forbidden = set(), {"public.people"}
    bench.restart()
    bench.seal(200, (ORDERS, 110, insert("1", "a")), (PEOPLE, 120, insert("2", "Ann", "x")))
    bench.seal(300, (ORDERS, 210, insert("3", "b")))
    bench.drain()
    assert bench.ids() == [1, 3]
    assert bench.store.topics == {"public.orders"}
    status = bench.state.table_status("stream")
    assert status[ORDERS.table].state is State.READY
    assert "topic public.people: it may not be made" in status[PEOPLE.table].reason
    bench.store.forbidden = set()
    bench.loop.retry(bench.loop.tables[PEOPLE.table])
    bench.drain()
    assert bench.ids(table="people") == [2]


def test_topics_that_have_changed_are_looked_up_again(bench: PublishBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that the layout knows is gone when it is published to: that concerns the tables in it, and no other."""
    bench.store.topics = set()
    bench.restart()
    bench.seal(200, (ORDERS, 110, insert("1", "a")), (PEOPLE, 120, insert("2", "Ann", "x")))
    bench.drain()
    publish, gone = MemoryPublisher.publish, "public.people"

    def publishing(self: MemoryPublisher, records: Iterable[Records], upto: Callable[[], ShardPlace]) -> Published:
        given = list(records)
        if any(gone in some.topics.to_pylist() for some in given) and gone in bench.store.forbidden:
            raise UnknownTopics([gone])
        return publish(self, given, upto)

    monkeypatch.setattr(MemoryPublisher, "publish", publishing)
    bench.store.forbidden = {gone}
    bench.seal(300, (ORDERS, 210, insert("3", "b")), (PEOPLE, 220, insert("4", "Bob", "y")))
    bench.drain()
    assert bench.ids() == [1, 2, 3]
    assert f"topic {gone}: it may not be made" in bench.state.table_status("stream")[PEOPLE.table].reason
    bench.store.forbidden = set()
    bench.loop.retry(bench.loop.tables[PEOPLE.table])
    bench.drain()
    assert bench.ids(table="people") == [2, 4]


def test_a_table_that_is_tried_again_lacks_nothing_of_what_passed_meanwhile(bench: PublishBench) -> None:
    """Batches that hold events of a waiting table only are processed, and move no place."""
    bench.store.topics, bench.store.forbidden = set(), {"public.people"}
    bench.restart()
    bench.seal(200, (ORDERS, 110, insert("1", "a")), (PEOPLE, 120, insert("1", "Ann", "x")))
    bench.drain()
    bench.seal(300, (PEOPLE, 210, insert("2", "Bo", "x")))
    bench.seal(400, (PEOPLE, 310, insert("3", "Cy", "x")))
    bench.drain()
    assert bench.loop.processed == 400
    bench.store.forbidden = set()
    bench.loop.retry(bench.loop.tables[PEOPLE.table])
    bench.drain()
    bench.seal(500, (PEOPLE, 410, insert("4", "Di", "x")))
    bench.drain()
    assert bench.ids(table="people") == [1, 2, 3, 4]


def test_a_table_that_is_errored_between_two_batches_lacks_nothing_either(bench: PublishBench) -> None:
    bench.seal(200, (ORDERS, 110, insert("1", "a")), (PEOPLE, 120, insert("1", "Ann", "x")))
    bench.drain()
    people = bench.loop.tables[PEOPLE.table]
    bench.loop.mark_errored(people, TableError("somebody's mistake", "Correct it"))
    for end in (300, 400):
        bench.seal(end, (PEOPLE, end - 10, insert(str(end), "Bo", "x")))
        bench.drain()
    bench.loop.retry(people)
    bench.drain()
    assert bench.ids(table="people") == [1, 300, 400]


def test_a_stream_that_is_gone_is_not_begun_again(bench: PublishBench) -> None:
    """As when somebody deletes the topic in which Kafka keeps the places."""
    bench.seal(200, (ORDERS, 110, insert("1", "new")))
    bench.store.streams.clear()
    bench.restart()
    bench.drain()
    assert bench.ids() == [1]
    bench.store.streams.clear()
    bench.store.shards.clear()
    bench.restart()
    with pytest.raises(StreamBroken, match=r"gone from its destination, though 1 events were published") as broken:
        bench.drain()
    assert "another `name`" in broken.value.solution
