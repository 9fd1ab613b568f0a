"""What an operator sees and says of several sources: names carry the source, requests reach the right one."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from penstock.config.load import load
from penstock.config.model import Pipeline
from penstock.control.status.gather import gather
from penstock.control.status.view import as_json, as_text
from penstock.control.tables.requests import ask, look
from penstock.errors import UsageError
from penstock.model.table import TableId
from penstock.model.table_state import State, TableStatus
from penstock.state.sql import open_store
from penstock.state.store import Health

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
ORDERS = TableId("public", "orders")


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    """Two sources that nobody can reach, and what a run has written of them."""
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        "version: 1\nname: crm\nsources:\n"
        "  - {name: eu, type: postgres, url: postgresql://app@127.0.0.1:1/eu}\n"
        "  - {name: us, type: postgres, url: postgresql://app@127.0.0.1:1/us}\n"
        'tables: [{match: "%.orders", target: "all.{table}"}]\n'
        "destinations: [{type: iceberg, warehouse: ./warehouse}]\n"
    )
    loaded = load(file)
    store = open_store(loaded.state_url)
    for name, state in (("eu", State.READY), ("us", State.ERRORED)):
        own = store.of_source(name)
        own.set_table_status("lake", ORDERS, TableStatus(state, NOON, "" if name == "eu" else "why"))
        own.set_processed("lake", 7)
        own.set_health("capture", Health("stopped", NOON))
        own.add_event("errored", "it happened", ORDERS)
    store.close()
    return loaded


def test_status_has_every_source_and_names_tables_by_it(pipeline: Pipeline) -> None:
    report = as_json(gather(pipeline))
    assert [source["name"] for source in report["sources"]] == ["eu", "us"]
    assert [source["log"]["uri"] for source in report["sources"]] == [
        source_view.log_uri for source_view in pipeline.source_views
    ]
    assert "source" not in report
    assert [(table["table"], table["target"], table["state"]) for table in report["tables"]] == [
        ("eu:public.orders", "all.orders", "Ready"),
        ("us:public.orders", "all.orders", "Errored"),
    ]
    assert [one["name"] for one in report["destinations"]] == ["eu:lake", "us:lake"]
    assert [one["name"] for one in report["components"]] == ["eu:capture", "us:capture"]
    assert [event["table"] for event in report["events"]] == ["eu:public.orders", "us:public.orders"]
    json.dumps(report)


def test_the_text_says_which_source_is_which(pipeline: Pipeline) -> None:
    console = Console(width=300, file=io.StringIO())
    with console.capture() as captured:
        console.print(as_text(gather(pipeline)))
    text = captured.get()
    for said in ("source eu", "log eu", "source us", "us:public.orders is Errored"):
        assert said in text


def test_a_request_names_the_source_and_reaches_only_that(pipeline: Pipeline) -> None:
    asked = ask(pipeline, "resync", ["us:public.orders"])
    assert [str(table) for table in asked.new] == ["us:public.orders"]
    store = open_store(pipeline.state_url)
    assert [request.table for request in store.of_source("us").requests()] == [ORDERS]
    assert store.of_source("eu").requests() == []
    store.close()
    assert [str(summary.target) for summary in look(pipeline).tables] == ["all.orders", "all.orders"]


def test_a_table_without_its_source_is_not_guessed(pipeline: Pipeline) -> None:
    with pytest.raises(UsageError, match=r"Did you mean (eu|us):public\.orders"):
        ask(pipeline, "retry", ["public.orders"])


def test_a_source_is_named_when_a_command_is_about_one(pipeline: Pipeline) -> None:
    assert pipeline.source_view("us").source.name == "us"
    with pytest.raises(UsageError, match="has no source asia"):
        pipeline.source_view("asia")
    with pytest.raises(UsageError, match="several sources: eu, us"):
        pipeline.source_view(None)
