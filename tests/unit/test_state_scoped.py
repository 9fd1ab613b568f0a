"""Two sources in one state store: what one writes, the other never sees, though their tables have the same names."""

from __future__ import annotations

from datetime import UTC, datetime

from penstock.model.quarantine import RawMessage
from penstock.model.table import Column, ColumnType, TableId, TableSchema
from penstock.model.table_state import State, TableProgress, TableStatus
from penstock.state.memory import MemoryStateStore
from penstock.state.scoped import scoped
from penstock.state.store import Health

ORDERS = TableId("public", "orders")
SCHEMA = TableSchema(ORDERS, 1, (Column("id", ColumnType(23, "int4")),), ("id",))
NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


def test_what_one_source_writes_no_other_sees() -> None:
    store = MemoryStateStore()
    eu, us = scoped(store, "eu"), scoped(store, "us")
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


def test_people_see_whose_it_is() -> None:
    store = MemoryStateStore()
    eu = scoped(store, "eu")
    eu.set_table_status("lake", ORDERS, TableStatus(State.READY, NOON))
    eu.add_event("errored", "about the source")
    assert [str(table) for table in store.table_status("lake")] == ["eu:public.orders"]
    assert [event.message for event in store.events()] == ["eu: about the source"]


def test_a_name_that_begins_like_anothers_is_not_taken_for_it() -> None:
    store = MemoryStateStore()
    scoped(store, "eu2").set_table_status("lake", ORDERS, TableStatus(State.READY, NOON))
    assert scoped(store, "eu").table_status("lake") == {}


def test_with_one_source_the_store_is_its_own() -> None:
    store = MemoryStateStore()
    assert scoped(store, None) is store
