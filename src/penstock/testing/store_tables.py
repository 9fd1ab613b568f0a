"""Tests of a state store: states, progress, events, health, copies and requests. Collected by `store.py`."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest

from penstock.errors import Retry
from penstock.model.table import TableId
from penstock.model.table_state import State, TableProgress, TableStatus
from penstock.state.store import EVENTS_KEPT, CopyProgress, Health, RangeRecord, StateStore

ORDERS = TableId("public", "orders")
ODD = TableId('My "Schema"', "täble 'x'")
NOON = datetime(2026, 5, 4, 12, 0, 0, 123456, tzinfo=UTC)
READY = TableStatus(State.READY, NOON)


def test_a_new_store_knows_nothing(store: StateStore) -> None:
    assert store.table_status("lake") == {}
    assert store.progress("lake") == {}
    assert store.processed("lake") is None
    assert store.events() == []
    assert store.health() == {}
    assert store.copy_of("lake", ORDERS) is None
    assert store.copy_progress("lake") == {}
    assert store.requests() == []


def test_table_status_is_kept_for_each_destination_and_table(store: StateStore) -> None:
    errored = TableStatus(State.ERRORED, NOON, "a value does not fit", "ALTER TABLE …", Retry.MANUAL, "value")
    store.set_table_status("lake", ORDERS, READY)
    store.set_table_status("lake", ODD, errored)
    later = TableStatus(State.ERRORED, NOON, "no answer", "Wait", Retry.AT_ONCE, "value", "in 20 s (try 2 of 5)")
    store.set_table_status("other", ORDERS, later)
    assert store.table_status("lake") == {ODD: errored, ORDERS: READY}
    assert list(store.table_status("lake")) == sorted([ODD, ORDERS])
    assert store.table_status("other") == {ORDERS: later}


def test_the_same_state_again_replaces_its_reason(store: StateStore) -> None:
    first = TableStatus(State.ERRORED, NOON, "first")
    second = TableStatus(State.ERRORED, NOON + timedelta(seconds=1), "second")
    store.set_table_status("lake", ORDERS, first)
    store.set_table_status("lake", ORDERS, second)
    assert store.table_status("lake")[ORDERS] == second


@pytest.mark.parametrize(
    ("path", "refused"),
    [
        ([], State.CATCHUP),
        ([State.READY], State.CATCHUP),
        ([State.READY, State.ERRORED], State.SYNC_DONE),
        ([State.INIT, State.DATA_SYNC], State.READY),
    ],
)
def test_illegal_moves_are_refused(store: StateStore, path: list[State], refused: State) -> None:
    for state in path:
        store.set_table_status("lake", ORDERS, TableStatus(state, NOON))
    before = store.table_status("lake")
    with pytest.raises(ValueError, match=f"public.orders may not move from .* to {refused}"):
        store.set_table_status("lake", ORDERS, TableStatus(refused, NOON))
    assert store.table_status("lake") == before


def test_progress_keeps_whole_positions_and_microseconds(store: StateStore) -> None:
    largest = TableProgress(2**64 - 1, 2**40, 1234.5, NOON, NOON + timedelta(microseconds=1), fetched=2**40)
    fresh = TableProgress(0, 0, 0.0, None, NOON)
    store.record_progress("lake", {ORDERS: largest, ODD: fresh})
    assert store.progress("lake") == {ORDERS: largest, ODD: fresh}
    store.record_progress("lake", {ORDERS: fresh})
    assert store.progress("lake") == {ORDERS: fresh, ODD: fresh}


def test_processed_is_kept_for_each_destination(store: StateStore) -> None:
    store.set_processed("lake", 7)
    store.set_processed("lake", 2**63 + 1)
    assert store.processed("lake") == 2**63 + 1
    assert store.processed("other") is None


def test_events_come_oldest_first_and_the_newest_are_kept(store: StateStore) -> None:
    store.add_event("started", "run started")
    store.add_event("table", "Errored", ORDERS, destination="lake")
    started, table = store.events()
    assert (started.kind, started.message, started.table) == ("started", "run started", None)
    assert (table.kind, table.table, table.destination) == ("table", ORDERS, "lake")
    assert started.destination is None
    assert started.at <= table.at
    assert [event.kind for event in store.events(1)] == ["table"]
    for number in range(EVENTS_KEPT):
        store.add_event("n", str(number))
    kept = store.events(2 * EVENTS_KEPT)
    assert [event.message for event in kept] == [str(number) for number in range(EVENTS_KEPT)]


def test_health_is_the_last_one_set(store: StateStore) -> None:
    store.set_health("capture", Health("ok", NOON))
    retrying = Health("retrying", NOON, "refused", "start the server", 3, "source-unreachable")
    store.set_health("capture", retrying)
    store.set_health("apply", Health("stopped", NOON))
    assert store.health() == {"apply": Health("stopped", NOON), "capture": retrying}


def test_several_threads_may_write(store: StateStore) -> None:
    def write(number: int) -> None:
        table = TableId("public", f"t{number}")
        for changes in range(10):
            store.record_progress("lake", {table: TableProgress(number, changes, 0.0, None, NOON)})

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {made.changes for made in store.progress("lake").values()} == {9}
    assert len(store.progress("lake")) == 4


RANGES = [("blocks 0 to 9", 100), ('\u00e9 \U0001f40d " blocks 10 to 19', 300), ("the rest", 100)]


def test_a_copy_is_kept_with_its_ranges(store: StateStore) -> None:
    assert store.copy_of("lake", ODD) is None
    store.begin_copy("lake", ODD, "c1", "fingerprint", RANGES)
    store.begin_copy("lake", ORDERS, "c2", "other", [])
    assert store.finish_range("lake", ODD, "c1", 1, 2**64 - 1, "p\u00e4rt", 7)
    record = store.copy_of("lake", ODD)
    assert record is not None
    assert (record.copy, record.fingerprint, record.attempts, record.note) == ("c1", "fingerprint", 1, "")
    assert timedelta() <= datetime.now(UTC) - record.started < timedelta(minutes=1)
    assert record.ranges == (
        RangeRecord(0, RANGES[0][0], None, None, 0, 100),
        RangeRecord(1, RANGES[1][0], 2**64 - 1, "p\u00e4rt", 7, 300),
        RangeRecord(2, RANGES[2][0], None, None, 0, 100),
    )
    assert [one.finished for one in record.ranges] == [False, True, False]
    empty = store.copy_of("lake", ORDERS)
    assert empty is not None
    assert empty.ranges == ()
    assert store.copy_of("other", ODD) is None


def test_a_range_that_is_finished_again_replaces_itself(store: StateStore) -> None:
    store.begin_copy("lake", ORDERS, "c1", "f", RANGES)
    store.finish_range("lake", ORDERS, "c1", 0, 5, "lost", 3)
    store.finish_range("lake", ORDERS, "c1", 0, 9, "again", 4)
    record = store.copy_of("lake", ORDERS)
    assert record is not None
    assert record.ranges[0] == RangeRecord(0, RANGES[0][0], 9, "again", 4, 100)
    assert store.copy_progress("lake")[ORDERS].rows == 4


def test_a_copy_that_begins_again_leaves_nothing_of_the_earlier_one(store: StateStore) -> None:
    store.begin_copy("lake", ORDERS, "c1", "f1", RANGES)
    store.finish_range("lake", ORDERS, "c1", 0, 5, "part", 3)
    store.note_copy("lake", ORDERS, "waiting for pid 4711")
    store.begin_copy("lake", ORDERS, "c2", "f2", RANGES[:2])
    assert not store.finish_range("lake", ORDERS, "c1", 1, 6, "late", 3)
    assert not store.finish_range("lake", ORDERS, "c2", 2, 6, "no such range", 3)
    record = store.copy_of("lake", ORDERS)
    assert record is not None
    assert (record.copy, record.fingerprint, record.attempts, record.note) == ("c2", "f2", 2, "")
    assert [(one.number, one.finished) for one in record.ranges] == [(0, False), (1, False)]


def test_the_progress_of_a_copy_is_counted_from_its_finished_ranges(store: StateStore) -> None:
    store.begin_copy("lake", ORDERS, "c1", "f", RANGES)
    begun = store.copy_progress("lake")[ORDERS]
    assert (begun.ranges, begun.ranges_finished, begun.rows, begun.bytes, begun.bytes_total) == (3, 0, 0, 0, 500)
    assert (begun.fraction, begun.rows_estimate) == (0.0, None)
    store.finish_range("lake", ORDERS, "c1", 0, 5, "part", 20)
    store.finish_range("lake", ORDERS, "c1", 2, 5, "part", 20)
    half = store.copy_progress("lake")[ORDERS]
    assert (half.ranges_finished, half.rows, half.bytes, half.bytes_total) == (2, 40, 200, 500)
    assert (half.fraction, half.rows_estimate, half.ended) == (0.4, 100, None)
    assert store.copy_progress("other") == {}


def test_a_finished_copy_leaves_its_figures_and_no_ranges(store: StateStore) -> None:
    store.begin_copy("lake", ORDERS, "c1", "f", RANGES)
    for number in range(3):
        store.finish_range("lake", ORDERS, "c1", number, 5, "part", 10)
    store.note_copy("lake", ORDERS, "waiting")
    store.end_copy("lake", ORDERS)
    assert store.copy_of("lake", ORDERS) is None
    assert not store.finish_range("lake", ORDERS, "c1", 0, 5, "late", 10)
    done = store.copy_progress("lake")[ORDERS]
    assert (done.ranges, done.ranges_finished, done.rows, done.bytes, done.bytes_total) == (3, 3, 30, 500, 500)
    assert (done.fraction, done.rows_estimate, done.note) == (1.0, 30, "")
    assert done.started is not None
    assert done.ended is not None
    assert done.started <= done.ended
    store.end_copy("lake", ORDERS)
    assert store.copy_progress("lake")[ORDERS] == done
    store.begin_copy("lake", ORDERS, "c2", "f", RANGES)
    again = store.copy_progress("lake")[ORDERS]
    assert (again.attempts, again.ended, again.rows) == (1, None, 0)


def test_the_copy_of_an_empty_table_is_finished_when_it_ends(store: StateStore) -> None:
    store.begin_copy("lake", ORDERS, "c1", "f", [])
    store.end_copy("lake", ORDERS)
    done = store.copy_progress("lake")[ORDERS]
    assert (done.rows, done.fraction, done.rows_estimate) == (0, 1.0, 0)
    assert done.ended is not None


def test_a_copy_that_is_given_up_leaves_nothing(store: StateStore) -> None:
    store.begin_copy("lake", ORDERS, "c1", "f", RANGES)
    store.finish_range("lake", ORDERS, "c1", 0, 5, "part", 10)
    store.end_copy("lake", ORDERS)
    assert store.copy_of("lake", ORDERS) is None
    assert store.copy_progress("lake") == {}
    store.end_copy("lake", ODD)


def test_a_copy_may_wait_before_it_begins(store: StateStore) -> None:
    store.note_copy("lake", ORDERS, "waiting for pid 4711, 35 s: UPDATE …")
    store.note_copy("lake", ORDERS, "waiting for pid 4711, 36 s: UPDATE …")
    assert store.copy_of("lake", ORDERS) is None
    assert store.copy_progress("lake") == {ORDERS: CopyProgress(note="waiting for pid 4711, 36 s: UPDATE …")}
    assert store.copy_progress("lake")[ORDERS].fraction is None
    store.note_copy("lake", ORDERS, "")
    assert store.copy_progress("lake") == {}
    store.begin_copy("lake", ORDERS, "c1", "f", RANGES)
    store.note_copy("lake", ORDERS, "waiting for a connection")
    record = store.copy_of("lake", ORDERS)
    assert record is not None
    assert record.note == store.copy_progress("lake")[ORDERS].note == "waiting for a connection"
    assert len(record.ranges) == 3


def test_pauses_are_kept_until_they_are_taken_back(store: StateStore) -> None:
    assert store.set_pause("lake", ORDERS)
    assert store.set_pause("", None)
    assert store.set_pause("lake", None)
    assert not store.set_pause("lake", ORDERS)
    assert [(one.destination, one.table) for one in store.pauses()] == [("", None), ("lake", None), ("lake", ORDERS)]
    assert [one.covers("lake") for one in store.pauses()] == [True, True, False]
    assert store.lift_pause("", None)
    assert not store.lift_pause("", None)
    store.forget_table("lake", ORDERS)
    assert [(one.destination, one.table) for one in store.pauses()] == [("lake", None)]
    store.forget_destination("lake")
    assert store.pauses() == []


def test_requests_wait_in_order_until_they_are_taken_up(store: StateStore) -> None:
    first = store.add_request("lake", ORDERS, "resync")
    second = store.add_request("lake", ODD, "retry")
    assert [(one.id, one.destination, one.table, one.kind) for one in store.requests()] == [
        (first, "lake", ORDERS, "resync"),
        (second, "lake", ODD, "retry"),
    ]
    assert timedelta() <= datetime.now(UTC) - store.requests()[0].at < timedelta(minutes=1)
    store.drop_request(second)
    store.drop_request(second)
    third = store.add_request("lake", ORDERS, "retry")
    assert third not in (first, second)
    assert [one.id for one in store.requests()] == [first, third]


def test_requests_and_pins_are_of_one_destination(store: StateStore) -> None:
    for destination in ("lake", "pond"):
        store.add_request(destination, ORDERS, "resync")
        store.ask_pins(destination, [ORDERS])
    assert [one.destination for one in store.requests("pond")] == ["pond"]
    assert [one.destination for one in store.pins("pond")] == ["pond"]
    store.forget_table("lake", ORDERS)
    assert [one.destination for one in store.requests()] == ["pond"]
    assert [one.destination for one in store.pins()] == ["pond"]
