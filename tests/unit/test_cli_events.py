"""`penstock events`: what it refuses, before anything is started."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from loop_bench import ORDERS, PEOPLE, schema
from penstock.cli import main as cli
from penstock.config.load import load
from penstock.control.query.log_events import asked, events_table
from penstock.errors import UsageError
from penstock.model.table import TableId
from penstock.model.table_state import State, TableStatus
from penstock.state.sql import SqlStateStore, open_store
from pgoutput_messages import DATE, INT8, TEXT, delete, insert, update
from pipeline_files import pipeline_file
from publish_bench import PublishBench

RULES = [
    {"match": "public.orders", "mode": ["clone", "events"]},
    {"match": "public.items", "mode": ["clone", "append"]},
]
SECRETS = schema("secrets", 9, id=INT8, word=TEXT)
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
        (("public.items",), "log is empty. Start `penstock run"),
        (
            ("public.orders", "--after", "12"),
            "--after 12 is neither the place of an event nor a time.",
        ),
        (
            ("public.orders", "--format", "xml"),
            "--format xml is unknown. It may be native, debezium, ",
        ),
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
        source, feeds = asked(load(file), [name])
        kept = events_table(source, feeds)
        assert kept is not None
        assert str(kept.target) == "public.orders__events"


def test_of_several_sources_one_is_named(tmp_path: Path) -> None:
    rules = [{"match": "public.orders", "mode": ["clone", "events"], "target": "crm.orders"}]
    pipeline = load(pipeline_file(tmp_path, source=None, sources=SOURCES, tables=rules))
    seen(pipeline.file, ("eu", "orders"), ("us", "orders__events")).close()
    feed = events_table(*asked(pipeline, ["eu:public.orders"]))
    assert feed is not None
    assert (str(feed.target), feed.sid and feed.sid.value) == ("crm.orders__events", "eu")
    with pytest.raises(UsageError, match=r"Did you mean eu:public\.orders"):
        asked(pipeline, ["public.orders"])
    with pytest.raises(UsageError, match="several sources, whose events have no common order"):
        asked(pipeline, ["eu:public.orders", "us:public.orders__events"])


class Printed:
    """A change log of three tables, and what `penstock events` prints of it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.file = pipeline_file(folder, tables=[{"match": "public.*", "exclude": ["public.secrets"]}])
        self.bench = PublishBench(Path(load(self.file).log_uri))
        self.bench.seal(
            300,
            (ORDERS, 110, insert("1", "new")),
            (PEOPLE, 120, insert("2", "Ann", "x")),
            (SECRETS, 120, insert("9", "x")),
            (ORDERS, 130, update("3", "moved", key=("1", None))),
        )
        self.bench.seal(500, (PEOPLE, 310, update("2", "Bo", "y")), (ORDERS, 410, delete("3", None)))
        self._capsys = capsys
        seen(self.file, (None, "orders"), (None, "people")).close()

    def __call__(self, *words: str) -> list[dict[str, Any]]:
        assert cli.main(["events", str(self.file), *words]) == 0
        return [json.loads(line) for line in self._capsys.readouterr().out.splitlines()]


@pytest.fixture
def printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Printed:
    return Printed(tmp_path, capsys)


def shown(events: list[dict[str, Any]]) -> list[tuple[str, str, int]]:
    return [(event["op"], event["table"], (event["after"] or event["before"])["id"]) for event in events]


ALL = [
    ("insert", "orders", 1),
    ("insert", "people", 2),
    ("delete", "orders", 1),
    ("insert", "orders", 3),
    ("update", "people", 2),
    ("delete", "orders", 3),
]


def test_several_tables_in_stream_order_from_the_log_alone(printed: Printed) -> None:
    events = printed()
    assert shown(events) == ALL
    assert (events[0]["source"], events[0]["database"]) == ("shop", "shop")
    assert shown(printed("public.people")) == [ALL[1], ALL[4]]
    assert printed("public.orders", "public.people") == events
    assert printed("--limit", "2") == events[:2]


def test_resuming_at_any_place_position_or_time(printed: Printed) -> None:
    events = printed()
    for number, event in enumerate(events):
        assert printed("--after", event["place"]) == events[number + 1 :]
    assert printed("--after", "0/82") == printed("--after", f"{0x82:016x}") == events[4:]
    assert printed("--after", "0/78:1") == events[2:]
    assert printed("--after", "1970-01-01T00:00:01.200Z") == events[2:], "committed later"
    assert printed("--after", "1970-01-01T00:00:04") == [events[5]]
    assert printed("--after", "1970-01-01T00:00:01+00:00") == events, "with a warning: it may have been more"


def test_formats(printed: Printed) -> None:
    faucet = printed("--format", "faucet")
    assert [(event["op"], event["lsn"]) for event in faucet] == [
        ("insert", "0/6E"),
        ("insert", "0/78"),
        ("update", "0/82"),
        ("update", "0/136"),
        ("delete", "0/19A"),
    ]
    assert [event["op"] for event in printed("--format", "debezium")] == ["c", "c", "d", "c", "u", "d"]
    assert {event["specversion"] for event in printed("--format", "cloudevents")} == {"1.0"}


def test_following_the_log(printed: Printed) -> None:
    """It goes on as segments come: here until as many lines as were asked for are there."""
    threading.Timer(0.5, lambda: printed.bench.seal(600, (ORDERS, 510, insert("7", "late")))).start()
    assert shown(printed("--follow", "--limit", "7"))[-1] == ("insert", "orders", 7)


def test_what_the_log_no_longer_has(printed: Printed, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["events", str(printed.file), "--after", "0/10"]) == 2
    assert "the change log begins at 0/64: it no longer has what follows 0/10" in capsys.readouterr().err


def test_events_that_cannot_be_written_are_reported(printed: Printed, capsys: pytest.CaptureFixture[str]) -> None:
    days = schema("days", 8, id=INT8, day=DATE)
    printed.bench.seal(600, (days, 510, insert("1", "infinity")), (days, 511, insert("2", "2026-01-02")))
    assert cli.main(["events", str(printed.file), "--format", "debezium", "--after", "0/1F4"]) == 0
    spoken = capsys.readouterr()
    assert [json.loads(line)["after"]["id"] for line in spoken.out.splitlines()] == [2]
    assert 'of public.days cannot be written: column "day"' in spoken.err
