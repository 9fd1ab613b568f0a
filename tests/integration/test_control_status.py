"""`status` in all weathers: before the first run, with a source that is down, with pending changes, with a dead run."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from databases import Database
from penstock.config.load import load
from penstock.config.model import Pipeline
from penstock.control.status.gather import gather
from penstock.control.status.report import Status
from penstock.control.status.view import as_json, as_text
from penstock.demo.server import free_port
from penstock.errors import Retry
from penstock.model.table import TableId
from penstock.model.table_state import State, TableProgress, TableStatus
from penstock.source.contract import Fact
from penstock.source.postgres.connect import connect
from penstock.source.postgres.session import slot_facts
from penstock.source.postgres.slot import create_slot, slot_state
from penstock.state.lock import PipelineLock
from penstock.state.sql import open_store
from penstock.state.store import Health
from pipeline_files import of_postgres
from running import PipelineFactory, Running

ORDERS, ITEMS = TableId("public", "orders"), TableId("public", "items")


def shown(status: Status) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(as_text(status))
    return console.export_text()


def document(status: Status) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(as_json(status)))
    return found


@pytest.fixture
def loaded(pipeline: PipelineFactory) -> Pipeline:
    return load(pipeline().path)


def test_before_the_first_run_nothing_is_known_and_nothing_is_made(loaded: Pipeline, tmp_path: Path) -> None:
    status = gather(loaded)
    found = document(status)
    assert found["run"] == {"running": False, "pid": None}
    assert found["state"]["exists"] is False
    assert found["tables"] == []
    assert found["source"]["reachable"] is True
    assert found["source"]["slot"]["exists"] is False
    assert (found["log"]["segments"], found["log"]["end"]) == (0, None)
    assert "has not run yet" in shown(status)
    assert [path.name for path in tmp_path.iterdir()] == ["pipeline.yaml"]


def test_a_source_that_is_down_is_reported_and_the_rest_is_shown(pipeline: PipelineFactory) -> None:
    port = free_port()
    file = pipeline(source={"type": "postgres", "url": f"postgresql://app:hunter2@127.0.0.1:{port}/shop"})
    loaded = load(file.path)
    store = open_store(loaded.state_url)
    now = datetime.now(UTC)
    store.set_table_status("lake", ORDERS, TableStatus(State.READY, now))
    store.record_progress("lake", {ORDERS: TableProgress(5, 7, 2.5, now, now)})
    store.close()
    status = gather(loaded)
    found = document(status)
    assert found["source"]["reachable"] is False
    assert f"127.0.0.1:{port}" in found["source"]["error"]
    (table,) = found["tables"]
    assert (table["state"], table["changes"], table["rate"]) == ("Ready", 7, 2.5)
    assert (table["lag_bytes"], table["lag_seconds"]) == (None, None)
    assert "hunter2" not in shown(status) + json.dumps(found)

    command = file.command("status", "FILE")
    assert command.returncode == 0, command.stderr
    assert "public.orders" in command.stdout
    assert f"127.0.0.1:{port}" in command.stdout


def test_tables_that_have_processed_all_have_no_lag_though_no_change_was_theirs(
    loaded: Pipeline, postgres: Database
) -> None:
    with connect(postgres.url) as connection:
        create_slot(connection, postgres.url, of_postgres(loaded.source).slot)
    position = postgres.flush_position()
    then = datetime.now(UTC) - timedelta(hours=1)
    store = open_store(loaded.state_url)
    store.set_table_status("lake", ORDERS, TableStatus(State.READY, then))
    store.set_table_status(
        "lake", ITEMS, TableStatus(State.ERRORED, then, "no key", "ALTER TABLE items …", Retry.MANUAL)
    )
    for table in (ORDERS, ITEMS):
        store.record_progress("lake", {table: TableProgress(position - 100, 7, 99.0, then, then)})
    store.set_processed("lake", position)
    store.set_health("capture", Health("ok", then))
    store.add_event("started", "run started")
    store.close()
    with PipelineLock(loaded.home / "lock"):
        status = gather(loaded)
    items, orders = document(status)["tables"]
    assert (orders["lag_bytes"], orders["lag_seconds"]) == (0, 0.0)
    assert orders["rate"] == 0, "an hour ago it had a rate"
    assert items["lag_bytes"] == 100, "an Errored table stays where it is"
    assert (items["error"], items["solution"], items["retry"]) == ("no key", "ALTER TABLE items …", Retry.MANUAL)
    assert document(status)["source"]["slot"]["active"] is False
    text = shown(status)
    assert "public.items is Errored" in text
    assert "ALTER TABLE items …" in text
    assert "run started" in text
    assert f"process {status.pid}" in text


def test_components_of_a_run_that_was_killed_are_stopped(loaded: Pipeline) -> None:
    store = open_store(loaded.state_url)
    then = datetime.now(UTC)
    store.set_health("capture", Health("retrying", then, "refused", "start it", 3, "slot-busy"))
    store.set_health("destination lake", Health("failed", then, "gone"))
    store.close()
    with PipelineLock(loaded.home / "lock"):
        assert gather(loaded).components["capture"].state == "retrying"
        assert "attempt 3" in shown(gather(loaded))
        assert ": [slot-busy] refused" in shown(gather(loaded))
    components = gather(loaded).components
    assert (components["capture"].state, components["destination lake"].state) == ("stopped", "failed")


def test_lag_in_seconds_is_the_age_of_the_oldest_pending_change(pipeline: PipelineFactory, postgres: Database) -> None:
    postgres.execute("create table orders (id int primary key)", "create table items (id int primary key)")
    file = pipeline()
    loaded = load(file.path)
    capture = Running(file, ("capture", "FILE"))
    try:
        capture.await_text("started")
        begin = postgres.flush_position()
        before = datetime.now(UTC)
        postgres.execute("insert into orders values (1)")
        target = postgres.flush_position()
        while (gather(loaded).log.end or 0) < target:
            assert capture.process.poll() is None, capture.tail()
        store = open_store(loaded.state_url)
        for table in (ORDERS, ITEMS):
            store.set_table_status("lake", table, TableStatus(State.READY, before))
        store.set_processed("lake", begin)
        items, orders = gather(loaded).tables
        assert orders.lag_seconds is not None
        assert 0 < orders.lag_seconds <= (datetime.now(UTC) - before).total_seconds()
        assert orders.lag_bytes is not None
        assert orders.lag_bytes >= target - begin
        assert items.lag_seconds == 0.0
        capture.stop()
        items, orders = gather(loaded).tables
        assert orders.lag_seconds is not None
        assert items.lag_seconds is None, "nobody captures, so what the source did since is not known"
        store.close()
    finally:
        capture.clean_up()


def test_a_damaged_log_is_reported_by_name(loaded: Pipeline) -> None:
    log = Path(loaded.log_uri)
    log.mkdir(parents=True)
    for start, end in ((1, 2), (5, 6)):
        (log / f"{start:016x}-{end:016x}-00000000.arrow").touch()
    status = gather(loaded)
    assert status.log.problem is not None
    assert "0/2 to 0/5 is missing" in " ".join(shown(status).split())


def test_a_damaged_state_store_is_reported(loaded: Pipeline) -> None:
    Path(loaded.state_url).write_bytes(b"this is not a database" * 100)
    status = gather(loaded)
    assert status.problem is not None
    assert "move it away" in shown(status)
    assert document(status)["state"]["error"] is not None


def test_a_lost_slot_shouts(loaded: Pipeline, postgres: Database) -> None:
    with connect(postgres.url) as connection:
        create_slot(connection, postgres.url, of_postgres(loaded.source).slot)
    status = gather(loaded)
    slot = f"slot {of_postgres(loaded.source).slot}"
    assert status.source.health is not None
    assert status.source.health.facts[0] == Fact(slot, "not active", "warning")
    assert f"; {slot} not active, confirmed " in shown(status)
    with connect(postgres.url) as connection:
        state = slot_state(connection, of_postgres(loaded.source).slot)
    assert state is not None
    facts = slot_facts(of_postgres(loaded.source).slot, replace(state, invalidation="wal_removed"))
    assert facts == (Fact(slot, "is lost: wal_removed", "error"),)
    lost = replace(status, source=replace(status.source, health=replace(status.source.health, facts=facts)))
    assert "is lost: wal_removed" in shown(lost)


def test_copies_are_shown_while_they_go_on(loaded: Pipeline) -> None:
    store = open_store(loaded.state_url)
    store.set_table_status("lake", ORDERS, TableStatus(State.DATA_SYNC, datetime.now(UTC)))
    store.begin_copy("lake", ORDERS, "c1", "f", [("0", 100), ("1", 300)])
    store.finish_range("lake", ORDERS, "c1", 0, 5, "part", 1000)
    store.note_copy("lake", ITEMS, "waiting for pid 4711")
    status = gather(loaded)
    items, orders = document(status)["tables"]
    assert (orders["copy"]["rows"], orders["copy"]["rows_estimate"], orders["copy"]["fraction"]) == (1000, 4000, 0.25)
    assert (items["state"], items["copy"]["note"]) == ("Init", "waiting for pid 4711")
    assert "1,000 of about 4,000" in shown(status)
    assert "copy of public.items: waiting for pid 4711" in shown(status)
    store.finish_range("lake", ORDERS, "c1", 1, 5, "part", 3000)
    store.end_copy("lake", ORDERS)
    store.note_copy("lake", ITEMS, "")
    store.close()
    assert "rows copied" not in shown(gather(loaded))
