"""`penstock quarantine` over a state store, without a source: what is shown, tried again, given up."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.cli import main as cli
from penstock.config.load import load
from penstock.errors import Retry
from penstock.model.quarantine import raw_message
from penstock.model.table import TableId
from penstock.model.table_state import State, TableStatus
from penstock.state.lock import PipelineLock
from penstock.state.sql import SqlStateStore, open_store
from pgoutput_messages import INT8, TEXT, Stream, insert, table_schema
from pipeline_files import pipeline_file

THINGS = table_schema({"id": INT8, "body": TEXT})
TABLE = THINGS.table
NOON = datetime(2026, 5, 4, 12, 0, 0, tzinfo=UTC)
CUT = insert("1", "héllo")[:-3]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return pipeline_file(tmp_path)


@pytest.fixture
def store(file: Path) -> Iterator[SqlStateStore]:
    """A table that stands at two messages: one is broken, the other is one that today's decoder reads."""
    store = open_store(load(file).state_url)
    store.set_table_status(
        "lake", TABLE, TableStatus(State.ERRORED, NOON, "not decodable", "do something", Retry.MANUAL)
    )
    changes = Stream().transaction(CUT, insert("2", "fine")).raw(THINGS)
    store.quarantine(
        "lake", TABLE, [raw_message(changes, 0, "a cell reaches past its end"), raw_message(changes, 1, "old bug")]
    )
    yield store
    store.close()


def said(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> str:
    assert cli.main([str(word) for word in words]) == code
    spoken = capsys.readouterr()
    return spoken.out + spoken.err


def test_list_and_show(
    file: Path, store: SqlStateStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    listed = said(capsys, "quarantine", "list", file)
    for part in ("public.things", "0/64:0", "a cell reaches past its end", "old bug"):
        assert part in listed
    kept = json.loads(said(capsys, "quarantine", "list", file, "--json"))["quarantine"]
    assert [(one["table"], one["bytes"], one["schema"]) for one in kept] == [
        ("public.things", len(CUT), THINGS.fingerprint),
        ("public.things", len(insert("2", "fine")), THINGS.fingerprint),
    ]
    shown = said(capsys, "quarantine", "show", file, kept[0]["id"])
    for part in (
        "0/64:0",
        "INSERT",
        "id (int8): '1'",
        "unreadable from here",
        "49 00 00 40",
    ):
        assert part in shown
    whole = json.loads(said(capsys, "quarantine", "show", file, kept[0]["id"], "--json"))
    assert bytes.fromhex(whole["data"]) == CUT
    assert "nothing in quarantine has the id or table 77" in said(capsys, "quarantine", "show", file, 77, code=2)


def test_replay_retries_a_table_once_all_of_its_messages_decode(
    file: Path, store: SqlStateStore, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, fine = store.quarantined("lake")
    answer = said(capsys, "quarantine", "replay", file, code=1)
    assert f"{fine.id} public.things: decodes now" in answer
    assert f"{broken.id} public.things: still not decodable: a cell reaches past its end" in answer
    assert store.requests() == []
    said(capsys, "quarantine", "replay", file, fine.id)
    assert store.requests() == [], "the other message still stands in its way"
    store.release([broken.id])
    with PipelineLock(load(file).home / "lock"):
        answer = said(capsys, "quarantine", "replay", file, "public.things")
        assert f"the run under way (process {os.getpid()}) takes it up" in answer
    said(capsys, "quarantine", "replay", file)
    assert [(one.kind, one.table) for one in store.requests()] == [("retry", TABLE)]
    assert len(store.quarantined("lake")) == 1, "it stays until the table has passed it"


def test_drop_says_what_it_means_and_resyncs(
    file: Path, store: SqlStateStore, capsys: pytest.CaptureFixture[str]
) -> None:
    refusal = said(capsys, "quarantine", "drop", file, "public.things", code=2)
    assert "dropping 2 messages cannot be undone" in refusal
    assert "public.things --yes" in refusal
    assert len(store.quarantined("lake")) == 2
    answer = said(capsys, "quarantine", "drop", file, "public.things", "--yes")
    assert "2 messages are forgotten" in answer
    assert "public.things will be copied again" in answer
    assert store.quarantined("lake") == []
    assert [(one.kind, one.table) for one in store.requests()] == [("resync", TABLE)]


def test_a_table_that_went_on_is_not_copied_again(
    file: Path, store: SqlStateStore, capsys: pytest.CaptureFixture[str]
) -> None:
    store.set_table_status("lake", TABLE, TableStatus(State.READY, NOON))
    fine = store.quarantined("lake")[1]
    assert f"{fine.id} public.things: its table went on without it" in said(
        capsys, "quarantine", "replay", file, fine.id
    )
    said(capsys, "quarantine", "drop", file, "--yes")
    assert (store.quarantined("lake"), store.requests()) == ([], [])


def test_nothing_kept(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing is in quarantine" in said(capsys, "quarantine", "list", file)
    assert "nothing is in quarantine" in said(capsys, "quarantine", "replay", file)
    assert not (file.parent / "penstock-shop").exists()


def test_status_counts_them(file: Path, store: SqlStateStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert "public.things has 2 in quarantine" in said(capsys, "status", file)
    (table,) = json.loads(said(capsys, "status", file, "--json"))["tables"]
    assert (table["table"], table["quarantined"]) == (str(TableId("public", "things")), 2)
