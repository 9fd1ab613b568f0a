"""Pins against the in-memory twin: a held table waits alone, stops exactly at its position, is kept, and goes on."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
import structlog

from loop_bench import ORDERS, PEOPLE, Bench, drain
from penstock.decode.schema import arrow_schema
from penstock.errors import TableFailed
from penstock.fold.net_effect import NetEffect
from penstock.runtime import pins as runtime_pins
from penstock.runtime.pins import Pins
from penstock.runtime.repair_file import write_repair
from penstock.state.pin import EXPIRES_AFTER, Pin
from pgoutput_messages import delete, insert, update


@pytest.fixture
def pins(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Pins:
    monkeypatch.setattr(runtime_pins, "LOOK_EVERY", 0.0)
    return Pins(bench.loop, bench.state)


def go_on(bench: Bench, pins: Pins) -> None:
    for _ in range(10):
        pins.tend()
        drain(bench)


def only(bench: Bench) -> Pin:
    (pin,) = bench.state.pins()
    return pin


def kept(bench: Bench) -> list[tuple[object, ...]]:
    (rows,) = bench.store.bookmarks.values()
    return sorted(tuple(row.values()) for row in rows.to_pylist())


def test_the_table_is_cut_within_a_segment_and_the_others_go_on(bench: Bench, pins: Pins) -> None:
    bench.seal(200, (ORDERS, 110, insert("1", "new")), (PEOPLE, 110, insert("7", "Ada", "p")))
    go_on(bench, pins)
    (number,) = bench.state.ask_pins(bench.lake.name, [ORDERS.table])
    go_on(bench, pins)
    assert only(bench).state == "held"
    bench.seal(
        300,
        (ORDERS, 210, update("1", "paid")),
        (ORDERS, 250, insert("2", "new")),
        (PEOPLE, 250, insert("8", "Bob", "q")),
    )
    go_on(bench, pins)
    assert bench.rows(ORDERS) == [(1, "new")], "it is held"
    assert len(bench.rows(PEOPLE)) == 2, "the others are not"
    assert bench.state.place_pin(number, 250)
    go_on(bench, pins)
    assert only(bench).state == "made"
    assert kept(bench) == [(1, "paid")], "what commits at the position is not in it"
    assert bench.rows(ORDERS) == [(1, "paid"), (2, "new")], "and then it goes on"
    assert bench.loop.level
    bench.state.drop_pins([number])
    go_on(bench, pins)
    assert bench.store.bookmarks == {}


def test_a_position_that_the_log_has_not_reached_is_waited_for(bench: Bench, pins: Pins) -> None:
    (number,) = bench.state.ask_pins(bench.lake.name, [ORDERS.table])
    go_on(bench, pins)
    bench.state.place_pin(number, 250)
    go_on(bench, pins)
    assert only(bench).state == "placed"
    bench.seal(220, (ORDERS, 210, insert("1", "new")))
    go_on(bench, pins)
    assert only(bench).state == "placed"
    bench.seal(400, (ORDERS, 300, insert("2", "new")))
    go_on(bench, pins)
    assert only(bench).state == "made"
    assert kept(bench) == [(1, "new")]


def test_a_table_that_is_past_the_position_is_not_taken_for_it(bench: Bench, pins: Pins) -> None:
    """The run was started again between holding the table and hearing of its position."""
    (number,) = bench.state.ask_pins(bench.lake.name, [ORDERS.table])
    go_on(bench, pins)
    bench.loop.close()
    bench.restart()
    bench.seal(300, (ORDERS, 210, insert("1", "new")))
    drain(bench)
    bench.state.place_pin(number, 205)
    go_on(bench, Pins(bench.loop, bench.state))
    assert only(bench).state == "failed"
    assert "past the position" in only(bench).reason
    assert bench.loop.level


def test_a_destination_without_bookmarks_refuses_pins(
    bench: Bench, pins: Pins, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = replace(bench.lake.capabilities, bookmarks=False)
    monkeypatch.setattr(bench.lake, "capabilities", without)
    bench.state.ask_pins(bench.lake.name, [ORDERS.table])
    go_on(bench, pins)
    assert only(bench).state == "failed"
    assert "cannot keep its contents for a comparison" in only(bench).reason
    assert bench.loop.level, "nothing is held for it"


def test_an_errored_table_says_why_and_one_that_fails_while_held_too(bench: Bench, pins: Pins) -> None:
    bench.loop.mark_errored(bench.loop.tables[PEOPLE.table], TableFailed("for a test", "mend it"))
    first, second = bench.state.ask_pins(bench.lake.name, [ORDERS.table, PEOPLE.table])
    go_on(bench, pins)
    bench.state.place_pin(first, 250)
    bench.seal(300, (ORDERS, 210, insert("no number", "new")))
    go_on(bench, pins)
    reasons = {pin.id: (pin.state, pin.reason) for pin in bench.state.pins()}
    assert reasons[second] == ("failed", "table public.people is Errored: for a test")
    assert reasons[first][0] == "failed"
    assert "no number" in reasons[first][1]


def test_whoever_asked_and_is_gone_holds_nothing(bench: Bench, pins: Pins, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.state.ask_pins(bench.lake.name, [ORDERS.table, *[PEOPLE.table] * 78])
    go_on(bench, pins)
    bench.seal(300, (ORDERS, 210, insert("1", "new")))
    go_on(bench, pins)
    assert bench.rows(ORDERS) == []

    class Later(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return datetime.now(UTC) + timedelta(seconds=EXPIRES_AFTER + 1)

    monkeypatch.setattr(runtime_pins, "datetime", Later)
    with structlog.testing.capture_logs() as said:
        go_on(bench, pins)
    (dropped,) = [one for one in said if "dropped" in one["event"]]
    assert dropped["pins"] == 79, "one line for all of them"
    assert bench.rows(ORDERS) == [(1, "new")]
    assert bench.state.pins() == []


def test_two_askers_take_turns(bench: Bench, pins: Pins) -> None:
    first, second = bench.state.ask_pins(bench.lake.name, [ORDERS.table, ORDERS.table])
    go_on(bench, pins)
    assert [pin.state for pin in bench.state.pins()] == ["held", "asked"]
    bench.state.drop_pins([first])
    go_on(bench, pins)
    assert [(pin.id, pin.state) for pin in bench.state.pins()] == [(second, "held")]


@pytest.mark.parametrize("failure", ["", "stale", "unknown, done", "unknown, not done"])
def test_a_repair_is_committed_at_the_position(bench: Bench, pins: Pins, tmp_path: Path, failure: str) -> None:
    bench.seal(200, (ORDERS, 110, insert("1", "forged")), (ORDERS, 110, insert("2", "extra")))
    go_on(bench, pins)
    (number,) = bench.state.ask_pins(bench.lake.name, [ORDERS.table])
    go_on(bench, pins)
    bench.seal(300, (ORDERS, 210, insert("3", "three")), (ORDERS, 260, delete("3", None)))
    rows = pa.Table.from_pylist([{"id": 1, "state": "right"}], arrow_schema(ORDERS))
    net = NetEffect(False, rows, pa.array([1]), pa.array([1, 2]), (), 2, 0)
    file = write_repair(net, tmp_path)
    bench.state.place_pin(number, 250, str(file))
    pins.tend()
    drain(bench)
    bench.lake.failures = [failure]
    go_on(bench, pins)
    assert only(bench).state == "made"
    assert kept(bench) == [(1, "right"), (3, "three")]
    assert bench.rows(ORDERS) == [(1, "right")]
