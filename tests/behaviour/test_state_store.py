"""One suite for every state store: the twin in memory, SQLite, Postgres."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from penstock.demo.server import PostgresServer
from penstock.model.table import TableId
from penstock.model.table_state import State, TableProgress, TableStatus
from penstock.state.memory import MemoryStateStore
from penstock.state.sql import open_store
from penstock.state.store import EVENTS_KEPT, Health, StateStore

ORDERS = TableId("public", "orders")
ODD = TableId('My "Schema"', "täble 'x'")
NOON = datetime(2026, 5, 4, 12, 0, 0, 123456, tzinfo=UTC)
READY = TableStatus(State.READY, NOON)
DATABASES = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateStore]:
    store: StateStore
    if request.param == "memory":
        store = MemoryStateStore()
    elif request.param == "sqlite":
        store = open_store(tmp_path / "deep" / "state.db")
    else:
        server: PostgresServer = request.getfixturevalue("server")
        database = f"state_{next(DATABASES)}"
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute(SQL("create database {}").format(Identifier(database)))
        store = open_store(server.url(database))
    yield store
    store.close()


def test_a_new_store_knows_nothing(store: StateStore) -> None:
    assert store.table_status("lake") == {}
    assert store.progress("lake") == {}
    assert store.processed("lake") is None
    assert store.events() == []
    assert store.health() == {}


def test_table_status_is_kept_for_each_destination_and_table(store: StateStore) -> None:
    errored = TableStatus(State.ERRORED, NOON, "a value does not fit", "ALTER TABLE …", "by hand")
    store.set_table_status("lake", ORDERS, READY)
    store.set_table_status("lake", ODD, errored)
    store.set_table_status("other", ORDERS, errored)
    assert store.table_status("lake") == {ODD: errored, ORDERS: READY}
    assert list(store.table_status("lake")) == sorted([ODD, ORDERS])
    assert store.table_status("other") == {ORDERS: errored}


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
    largest = TableProgress(2**64 - 1, 2**40, 1234.5, NOON, NOON + timedelta(microseconds=1))
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
    store.add_event("table", "Errored", ORDERS)
    started, table = store.events()
    assert (started.kind, started.message, started.table) == ("started", "run started", None)
    assert (table.kind, table.table) == ("table", ORDERS)
    assert started.at <= table.at
    assert [event.kind for event in store.events(1)] == ["table"]
    for number in range(EVENTS_KEPT):
        store.add_event("n", str(number))
    kept = store.events(2 * EVENTS_KEPT)
    assert [event.message for event in kept] == [str(number) for number in range(EVENTS_KEPT)]


def test_health_is_the_last_one_set(store: StateStore) -> None:
    store.set_health("capture", Health("ok", NOON))
    retrying = Health("retrying", NOON, "refused", "start the server", 3)
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
