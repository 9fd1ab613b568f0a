"""A user's destination under the publish loop: what it gets, whose trouble its exceptions are, what a hang costs."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

import penstock
from loop_bench import AT_ONCE, ORDERS, PEOPLE
from penstock.destinations.places.folder import LocalFolder
from penstock.destinations.python.batch import Events
from penstock.destinations.python.events import owner_of
from penstock.destinations.python.stream import PythonDestination, PythonStream
from penstock.errors import DestinationUnreachable, StreamBroken
from penstock.model.table_state import State
from penstock.runtime.publish.loop import PublishLoop
from penstock.testing.made_events import event, insert, records_of, row, table
from pgoutput_messages import delete, update
from pgoutput_messages import insert as inserted
from publish_bench import KEEP_TEN, PublishBench, stream_feed
from python_destinations import Ledger


class Collected(penstock.Destination):
    """Keeps events in memory. `before` is called first, and may raise or wait."""

    def __init__(self) -> None:
        self.events: list[penstock.Event] = []
        self.threads: set[int] = set()
        self.before: Callable[[Events], None] = lambda events: None

    def write_events(self, events: Events) -> None:
        self.threads.add(threading.get_ident())
        self.before(events)
        self.events += events

    def keys(self, name: str) -> list[int]:
        return [event.key["id"] for event in self.events if event.table.name == name and event.key is not None]


class Bench(PublishBench):
    """The publish loop over a user's destination in place of the in-memory stream."""

    def __init__(self, folder: Path, user: penstock.Destination, seconds: float = 5.0) -> None:
        self.user, self.seconds, self.places = user, seconds, folder / "places"
        super().__init__(folder / "log", stream_feed(ORDERS), stream_feed(PEOPLE))

    def restart(self, **_: object) -> PublishLoop:
        stream = PythonStream("stream", "", "{}", "", self.seconds, 1000, made=self.user)
        self.stream = PythonDestination(stream, LocalFolder(self.places))
        self.loop = PublishLoop("shop", self.stream, self.runner, self.log, AT_ONCE, self.state, dlq=KEEP_TEN)
        for feed in self.feeds:
            self.loop.follow(feed)
        return self.loop


@pytest.fixture
def user() -> Collected:
    return Collected()


@pytest.fixture
def bench(tmp_path: Path, user: Collected) -> Bench:
    return Bench(tmp_path, user)


def test_events_are_objects_of_their_kind_all_from_one_thread(bench: Bench, user: Collected) -> None:
    bench.seal(200, (ORDERS, 110, inserted("1", "new")), (PEOPLE, 120, inserted("2", "Ann", "x")))
    bench.seal(300, (PEOPLE, 210, update("2", "Bo", "y")), (ORDERS, 220, delete("1", None)))
    bench.drain()
    match user.events:
        case [
            penstock.Insert(table=orders, row={"id": 1, "state": "new"}),
            penstock.Insert(row={"id": 2}),
            penstock.Update(row={"id": 2}, old=None),
            penstock.Delete(old={"id": 1}, old_is_full=False),
        ]:
            assert str(orders) == "public.orders"
            assert [(one.name, one.type) for one in orders.columns] == [("id", "int8"), ("state", "text")]
            assert orders.key == ("id",)
        case other:
            raise AssertionError(other)
    assert [one.place for one in user.events] == sorted(one.place for one in user.events)
    assert user.threads.isdisjoint({threading.get_ident()})
    assert len(user.threads) == 1


def test_an_exception_is_its_tables_and_no_others(bench: Bench, user: Collected) -> None:
    def refuse_orders(events: Events) -> None:
        if any(one.table.name == "orders" for one in events):
            raise ValueError("orders are not welcome here")

    user.before = refuse_orders
    bench.seal(200, (ORDERS, 110, inserted("1", "new")), (PEOPLE, 120, inserted("2", "Ann", "x")))
    bench.seal(300, (PEOPLE, 210, update("2", "Bo", "y")), (ORDERS, 220, delete("1", None)))
    bench.drain()
    status = bench.state.table_status("stream")
    assert status[ORDERS.table].state is State.ERRORED
    assert "write_events raised ValueError: orders are not welcome here" in status[ORDERS.table].reason
    assert status[PEOPLE.table].state is State.READY
    assert (user.keys("orders"), user.keys("people")) == ([], [2, 2])
    user.before = lambda events: None
    bench.loop.retry(bench.loop.tables[ORDERS.table])
    bench.drain()
    assert user.keys("orders") == [1, 1], "the table is brought on, and nothing of it is lost"
    assert user.keys("people") == [2, 2]


def test_a_table_error_is_taken_as_it_is(bench: Bench, user: Collected) -> None:
    def refuse(events: Events) -> None:
        raise penstock.TableError("the warehouse has no room for it", "Make room")

    user.before = refuse
    bench.seal(200, (ORDERS, 110, inserted("1", "new")))
    bench.drain()
    status = bench.state.table_status("stream")[ORDERS.table]
    assert (status.state, status.reason, status.solution) == (
        State.ERRORED,
        "the warehouse has no room for it",
        "Make room",
    )


def test_nobody_answering_blames_no_table(bench: Bench, user: Collected) -> None:
    def away(events: Events) -> None:
        raise ConnectionRefusedError("nobody listens")

    user.before = away
    bench.seal(200, (ORDERS, 110, inserted("1", "new")))
    with pytest.raises(DestinationUnreachable, match="stream: ConnectionRefusedError: nobody listens"):
        bench.drain()
    assert bench.state.table_status("stream")[ORDERS.table].state is State.READY
    user.before = lambda events: None
    bench.drain()
    assert user.keys("orders") == [1]


def test_refused_events_become_dead_letters(bench: Bench, user: Collected) -> None:
    def refuse_two(events: Events) -> None:
        wrong = {one.place: "twos are refused" for one in events if one.key == {"id": 2}}
        if wrong:
            raise penstock.RecordRefused(wrong)

    user.before = refuse_two
    bench.seal(200, *((ORDERS, 110 + number, inserted(str(number), "new")) for number in range(4)))
    bench.drain()
    assert user.keys("orders") == [0, 1, 3]
    (letter,) = bench.state.letters("stream")
    assert letter.letter.reason == "twos are refused"


def test_a_call_that_hangs_is_given_up_and_never_runs_beside_the_next(tmp_path: Path, user: Collected) -> None:
    release, bench = threading.Event(), Bench(tmp_path, user, seconds=0.2)

    def wait(events: Events) -> None:
        release.wait(60)

    user.before = wait
    bench.seal(200, (ORDERS, 110, inserted("1", "new")))
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(DestinationUnreachable, match="has not answered for"):
            bench.drain()
        assert time.monotonic() - began < 5
    release.set()
    bench.drain()
    assert user.keys("orders") == [1]


def test_a_lost_position_and_one_of_another_log_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    bench = Bench(tmp_path, Ledger(str(path)))
    bench.seal(200, (ORDERS, 110, inserted("1", "new")))
    bench.drain()
    bench.restart()
    bench.loop.begin()
    with sqlite3.connect(path) as database:
        database.execute("update positions set position = 'other' || position")
    with pytest.raises(StreamBroken, match="of another change log"):
        bench.stream.places("shop")
    with sqlite3.connect(path) as database:
        database.execute("delete from positions")
    with pytest.raises(StreamBroken, match="had stored a position, and has none now"):
        bench.stream.places("shop")


def test_events_of_the_source_itself_are_objects_too() -> None:
    orders = table("orders")
    own = {"schema": None, "table": None}
    counts = [{"schema": "public", "table": "orders", "changes": 2}]
    texts = [
        event("begin", 100, orders, None) | own,
        event("relation", 101, orders, None, columns=[{"name": "id", "type": "int8", "nullable": False, "key": True}]),
        event("ddl", 102, orders, None, changes=["column note added"], previous_version="abc"),
        event("message", 103, orders, None, message={"prefix": "app.x", "content": "aGk="}) | own,
        event("commit", 104, orders, None, changes=2, tables=counts, end_position="0/69") | own,
    ]
    given = [json.dumps(one).encode() for one in texts]
    events = list(Events(given, [one["place"] for one in texts], {}))
    match events:
        case [
            penstock.Begin(transaction=100),
            penstock.Relation(table=structure),
            penstock.Ddl(changes=("column note added",), previous="abc"),
            penstock.Message(prefix="app.x", content=b"hi"),
            penstock.Commit(changes=2, by_table=by_table, end="0/69"),
        ]:
            assert (str(structure), structure.key) == ("public.orders", ("id",))
            assert by_table == {penstock.TableId("public", "orders"): 2}
        case _:
            raise AssertionError(events)
    assert [owner_of(one).name for one in events] == ["transaction", "relation", "ddl", "message", "transaction"]


def test_values_have_pythons_types_and_arrows() -> None:
    orders = table("orders")
    odd = event("insert", 120, orders, 2, after={**row(2), "at": "infinity", "price": "NaN"})
    some = [insert(110, orders, 1), odd, event("truncate", 130, orders, None)]
    records = records_of(some, {"orders": orders})
    events = Events(records.values.to_pylist(), records.places.to_pylist(), records.schemas)
    first, second, _ = events
    assert isinstance(first, penstock.Insert)
    assert isinstance(second, penstock.Insert)
    assert first.row["price"] == Decimal("12.50")
    assert first.row["at"] == datetime(2026, 5, 4, 3, 2, 1, 500_000, UTC)
    assert first.row["day"] == date(2026, 5, 4)
    assert first.row["raw"] == b"\x00\xff"
    assert first.row["doc"] == {"nested": [1, {"x": None}]}
    assert second.row["at"] == "infinity", "no datetime stands for it: it stays a text"
    by_columns = events.arrow()
    assert by_columns["op"].to_pylist() == ["insert", "insert", "truncate"]
    after = by_columns["after"].to_pylist()
    assert after[0] == {**first.row, "doc": '{"nested": [1, {"x": null}]}'}
    assert (after[1]["at"], after[1]["price"], after[2]) == (None, None, None)
    assert dict(by_columns["rescued"][1].as_py()) == {"at": "infinity", "price": "NaN"}
    assert by_columns.schema.field("after").type.field("price").type == pa.decimal128(10, 2)
