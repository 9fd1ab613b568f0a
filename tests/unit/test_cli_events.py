"""`penstock events`: what it refuses, before anything is started."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.cli import main as cli
from penstock.config.load import load
from penstock.control.query.events import events_feed
from penstock.errors import UsageError
from penstock.model.table import TableId
from penstock.model.table_state import State, TableStatus
from penstock.state.sql import SqlStateStore, open_store
from pipeline_files import pipeline_file

RULES = [
    {"match": "public.orders", "mode": ["clone", "events"]},
    {"match": "public.items", "mode": ["clone", "append"]},
]
SOURCES = [{"name": name, "type": "postgres", "url": f"postgresql://127.0.0.1:1/{name}"} for name in ("eu", "us")]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return pipeline_file(tmp_path, tables=RULES)


def seen(file: Path, *names: tuple[str | None, str]) -> SqlStateStore:
    """A state store in which these tables, by source and name, are Ready."""
    store = open_store(load(file).state_url)
    for source, table in names:
        status = TableStatus(State.READY, datetime.now(UTC))
        store.of_source(source).set_table_status("lake", TableId("public", table), status)
    return store


@pytest.fixture
def store(file: Path) -> Iterator[SqlStateStore]:
    store = seen(file, *((None, name) for name in ("orders", "orders__events", "items", "items__append")))
    yield store
    store.close()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("public.order",), "pipeline shop has no table public.order. Did you mean public.orders? `penstock tables"),
        (("public.items",), "table public.items has no events: its mode is clone, append. Say `mode: [clone, append,"),
        (("public.orders", "--after", "12"), "--after 12 is not the place of an event. Give the `lsn` of a line"),
        (("public.orders", "--limit", "0"), "Run `penstock events --help`"),
    ],
)
def test_refusals(
    file: Path, store: SqlStateStore, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["events", str(file), *words]) == 2
    spoken = capsys.readouterr()
    assert said in spoken.err
    assert spoken.out == ""


def test_before_the_first_run(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["events", str(file), "public.orders"]) == 2
    assert "has not run yet, so there is no table to print" in capsys.readouterr().err


def test_the_table_goes_by_its_own_name_or_the_sources(file: Path, store: SqlStateStore) -> None:
    for name in ("public.orders", "public.orders__events"):
        assert str(events_feed(load(file), name).target) == "public.orders__events"


def test_of_several_sources_one_is_named(tmp_path: Path) -> None:
    rules = [{"match": "public.orders", "mode": ["clone", "events"], "target": "crm.orders"}]
    pipeline = load(pipeline_file(tmp_path, source=None, sources=SOURCES, tables=rules))
    seen(pipeline.file, ("eu", "orders"), ("us", "orders__events")).close()
    feed = events_feed(pipeline, "eu:public.orders")
    assert (str(feed.target), feed.sid and feed.sid.value) == ("crm.orders__events", "eu")
    with pytest.raises(UsageError, match=r"Did you mean eu:public\.orders"):
        events_feed(pipeline, "public.orders")
