"""What `status` and `wait` say of several destinations: lag, health, and what the commit policy calls delivered."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from penstock.config.load import load
from penstock.config.model import Pipeline
from penstock.control.status.destinations import destination_reports
from penstock.control.status.gather import gather
from penstock.control.status.report import DestinationReport, TableReport
from penstock.control.status.view import as_json, as_text
from penstock.control.wait import await_delivery
from penstock.errors import CheckFailed, DestinationUnreachable, PenstockError
from penstock.model.scoped_name import ScopedName
from penstock.model.table import TableId
from penstock.model.table_state import State, TableStatus
from penstock.state.lock import PipelineLock
from penstock.state.sql import SqlStateStore, open_store
from penstock.state.store import Health

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
ORDERS, ITEMS = TableId("public", "orders"), TableId("public", "items")
AWAY = Health("retrying", NOON, "the bucket does not answer", "Bring it back", 3, "destination-unreachable")


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        "version: 1\nname: crm\nsource: {type: postgres, url: postgresql://app@127.0.0.1:1/crm}\n"
        'tables: [{match: "public.*"}]\n'
        "destinations:\n"
        "  - {name: lake, type: iceberg, warehouse: ./lake}\n"
        "  - {name: second, type: iceberg, warehouse: ./second}\n"
        "  - {name: trial, type: iceberg, warehouse: ./trial, required: false}\n"
    )
    return load(file)


@pytest.fixture
def store(pipeline: Pipeline) -> Iterator[SqlStateStore]:
    """A run that has brought 0x500 to the lake, 0x200 to the second, and is copying to the trial."""
    store = open_store(pipeline.state_url)
    for name, position in (("lake", 0x500), ("second", 0x200), ("trial", 0x900)):
        for table in (ORDERS, ITEMS):
            store.set_table_status(name, table, TableStatus(State.INIT, NOON))
            if name != "trial":
                store.set_table_status(name, table, TableStatus(State.READY, NOON))
        store.set_processed(name, position)
        store.set_health(f"destination {name}", Health("ok", NOON))
    yield store
    store.close()


def shown(pipeline: Pipeline) -> str:
    console = Console(width=300, file=io.StringIO())
    with console.capture() as captured:
        console.print(as_text(gather(pipeline)))
    return captured.get()


def test_every_destination_has_a_section_and_the_policy_says_what_is_delivered(
    pipeline: Pipeline, store: SqlStateStore
) -> None:
    store.set_table_status("second", ITEMS, TableStatus(State.ERRORED, NOON, "a value does not fit"))
    store.set_health(
        "destination trial", Health("failed", NOON, "somebody else's warehouse", "Name another", 0, "schema")
    )
    report = as_json(gather(pipeline))
    figures = {one["name"]: (one["processed"], one["counts"], one["tables"]) for one in report["destinations"]}
    assert figures == {
        "lake": ("0/500", True, {"Ready": 2}),
        "second": ("0/200", True, {"Ready": 1, "Errored": 1}),
        "trial": ("0/900", False, {"Init": 2}),
    }
    trial = report["destinations"][2]
    assert (trial["state"], trial["code"], trial["holds_log"]) == ("failed", "schema", True)
    assert report["delivered"] == [
        {
            "source": None,
            "position": None,
            "lag_bytes": None,
            "least": 2,
            "among": ["lake", "second"],
            "waiting": {"second": "1 table Errored"},
        }
    ]
    text = shown(pipeline)
    assert "does not count as delivered; the log is kept for it, up to log.max_bytes" in text
    assert "not everything to all of lake, second; second: 1 table Errored" in text


def test_what_is_delivered_is_what_the_slowest_of_the_policy_has(pipeline: Pipeline, store: SqlStateStore) -> None:
    assert as_json(gather(pipeline))["delivered"][0]["position"] == "0/200"
    assert "everything before 0/200 to all of lake, second" in shown(pipeline)


def table(destination: str, lag: float | None, state: State = State.READY) -> TableReport:
    return TableReport(
        destination, ScopedName(None, ORDERS), ORDERS, state, NOON, 0x500, 0, lag, changes=1, rate=0.0, newest=NOON
    )


def test_a_destination_lags_as_far_as_its_slowest_ready_table(pipeline: Pipeline) -> None:
    def report(*tables: TableReport) -> DestinationReport:
        return destination_reports(pipeline, tables, processed={"lake": 0x500}, health={}, head=0x600)[0]

    lake = report(table("lake", 0.5), table("lake", 2.0), table("lake", 900.0, State.ERRORED), table("second", 7.0))
    assert (lake.lag_bytes, lake.lag_seconds, lake.states) == (0x100, 2.0, {"Ready": 2, "Errored": 1})
    assert report(table("lake", 0.5), table("lake", None)).lag_seconds is None, "what is unknown is not guessed"


def test_waiting_ends_when_the_policy_has_it(pipeline: Pipeline, store: SqlStateStore) -> None:
    await_delivery(pipeline, {"crm": 0x200}, 0)
    with pytest.raises(CheckFailed, match=r"not delivered within 0 s: 0/201 at second") as late:
        await_delivery(pipeline, {"crm": 0x201}, 0)
    assert late.value.exit_code == 1


def test_waiting_for_one_that_is_away_lasts_until_the_timeout_and_exits_3(
    pipeline: Pipeline, store: SqlStateStore
) -> None:
    store.set_health("destination second", AWAY)
    with pytest.raises(DestinationUnreachable, match="second: the bucket does not answer") as away:
        await_delivery(pipeline, {"crm": 0x500}, 0)
    assert away.value.exit_code == 3
    await_delivery(pipeline, {"crm": 0x200}, 0)
    store.set_health("destination second", Health("ok", NOON))
    store.set_health("destination trial", AWAY)
    with pytest.raises(CheckFailed):
        await_delivery(pipeline, {"crm": 0x500}, 0)


@pytest.mark.parametrize(("hours", "at_once"), [(1, True), (-1, False)])
def test_waiting_for_one_that_failed_for_good_in_this_run_ends_at_once(
    pipeline: Pipeline, store: SqlStateStore, hours: int, at_once: bool
) -> None:
    failed = Health("failed", datetime.now(UTC) + timedelta(hours=hours), "gone", "Do penstock reset FILE", 0, "gap")
    store.set_health("destination second", failed)
    times = iter([0.0, 0.0, 99.0, 99.0])
    with PipelineLock(pipeline.home / "lock"), pytest.raises(PenstockError) as ended:
        await_delivery(pipeline, {"crm": 0x500}, 60, clock=lambda: next(times))
    assert ended.value.exit_code == 3
    assert ("has failed: gone" in ended.value.what) == at_once, "an earlier run's failure may be fixed by now"
