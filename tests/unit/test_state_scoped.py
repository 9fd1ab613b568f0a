"""Two sources in one state store: what one writes, the other never sees, though their tables have the same names."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.model.quarantine import RawMessage
from penstock.model.scoped_name import ScopedName
from penstock.model.table import Column, ColumnType, TableId, TableSchema
from penstock.model.table_state import State, TableProgress, TableStatus
from penstock.state.memory import MemoryStateStore
from penstock.state.sql import open_store
from penstock.state.store import EVENTS_KEPT, Health, StateStore

ORDERS = TableId("public", "orders")
SCHEMA = TableSchema(ORDERS, 1, (Column("id", ColumnType(23, "int4")),), ("id",))
NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateStore]:
    store: StateStore = MemoryStateStore() if request.param == "memory" else open_store(tmp_path / "state.db")
    yield store
    store.close()


def test_what_one_source_writes_no_other_sees(store: StateStore) -> None:
    eu, us = store.of_source("eu"), store.of_source("us")
    eu.set_table_status("lake", ORDERS, TableStatus(State.READY, NOON))
    eu.record_progress("lake", {ORDERS: TableProgress(5, 1, 0.0, None, NOON)})
    eu.set_processed("lake", 7)
    eu.set_health("capture", Health("ok", NOON))
    eu.begin_copy("lake", ORDERS, "a", "f", [("", 1)])
    eu.note_copy("lake", ORDERS, "waiting")
    number = eu.add_request("lake", ORDERS, "resync")
    eu.add_event("errored", "about a table", ORDERS)
    eu.add_event("errored", "about the source")
    eu.quarantine("lake", ORDERS, [RawMessage(SCHEMA, 1, 0, 1, 1, NOON, ord("I"), b"x", "why")])

    assert us.table_status("lake") == {}
    assert us.progress("lake") == {}
    assert us.copy_progress("lake") == {}
    assert us.processed("lake") is None
    assert us.health() == {}
    assert us.copy_of("lake", ORDERS) is None
    assert us.requests() == []
    assert us.events() == []
    assert us.quarantined("lake") == []
    assert us.quarantined_counts("lake") == {}

    assert [request.id for request in eu.requests()] == [number]
    assert [(event.message, event.table) for event in eu.events()] == [
        ("about a table", ORDERS),
        ("about the source", None),
    ]


def test_ids_are_of_one_source_and_used_once(store: StateStore) -> None:
    eu, us = store.of_source("eu"), store.of_source("us")
    requests = [one.add_request("lake", ORDERS, "resync") for one in (eu, us)]
    pins = [one.ask_pins("lake", [ORDERS])[0] for one in (eu, us)]
    assert requests[0] != requests[1]
    assert pins[0] != pins[1]
    us.drop_request(requests[0])
    us.drop_pins(pins)
    assert not us.hold_pin(pins[0])
    assert [one.id for one in eu.requests()] == requests[:1]
    assert [one.id for one in eu.pins()] == pins[:1]


def test_many_events_of_one_source_push_out_no_others(store: StateStore) -> None:
    store.of_source("eu").add_event("errored", "long ago")
    for number in range(EVENTS_KEPT + 1):
        store.of_source("us").add_event("n", str(number))
    assert [event.message for event in store.of_source("eu").events()] == ["long ago"]
    assert len(store.of_source("us").events(2 * EVENTS_KEPT)) == EVENTS_KEPT


def test_a_pipeline_with_one_source_sees_rows_of_none_in_particular(store: StateStore) -> None:
    store.of_source("eu").set_table_status("lake", ORDERS, TableStatus(State.READY, NOON))
    assert store.table_status("lake") == store.of_source(None).table_status("lake") == {}
    store.set_processed("lake", 5)
    assert store.of_source(None).processed("lake") == 5


def test_names_are_written_with_their_source() -> None:
    assert str(ScopedName("eu", ORDERS)) == "eu:public.orders"
    assert str(ScopedName(None, ORDERS)) == "public.orders"
