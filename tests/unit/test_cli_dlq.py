"""`penstock dlq` over a state store, without a source: what is shown, asked for again, removed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.cli import main as cli
from penstock.config.load import load
from penstock.model.dead_letter import DeadLetter
from penstock.model.quarantine import raw_message
from penstock.model.table import TableId
from penstock.state.lock import PipelineLock
from penstock.state.sql import SqlStateStore, open_store
from pgoutput_messages import INT8, TEXT, Stream, insert, table_schema
from pipeline_files import pipeline_file

THINGS = table_schema({"id": INT8, "body": TEXT})
STREAM = {"type": "files", "path": "./changes", "name": "lake"}
TABLE, OTHER = THINGS.table, TableId("public", "other")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return pipeline_file(tmp_path, destinations=[STREAM, {"type": "iceberg", "warehouse": "w", "name": "tables"}])


@pytest.fixture
def store(file: Path) -> Iterator[SqlStateStore]:
    """A change that was too large, and a row of the copy that was refused."""
    store = open_store(load(file).state_url)
    changes = Stream().transaction(insert("1", "héllo")).raw(THINGS)
    change = DeadLetter(TABLE, "64/0", b'{"id":1}', None, "too-large", "more than 1 MiB", "insert")
    row = DeadLetter(OTHER, "63/1", None, b'{"a":1}', "refused", "no such route", "read", headers=(("h", b"v"),))
    store.keep_letters("lake", [replace(change, message=raw_message(changes, 0, "")), row], most=9)
    yield store
    store.close()


def said(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> str:
    assert cli.main([str(word) for word in words]) == code
    spoken = capsys.readouterr()
    return spoken.out + spoken.err


def ids(store: SqlStateStore) -> list[int]:
    return [one.id for one in store.letters("lake")]


def test_list_and_show(file: Path, store: SqlStateStore, capsys: pytest.CaptureFixture[str]) -> None:
    listed = said(capsys, "dlq", "list", file)
    for part in ("public.things", "insert 64/0", '{"id":1}', "[too-large] more than 1 MiB", "no such route"):
        assert part in listed
    only = said(capsys, "dlq", "list", file, "--table", "public.other", "--destination", "lake")
    assert "public.things" not in only
    coded = said(capsys, "dlq", "list", file, "--code", "too-large")
    assert "public.things" in coded
    assert "public.other" not in coded
    assert "there are no dead letters" in said(capsys, "dlq", "retry", file, "--code", "processor")
    found = json.loads(said(capsys, "dlq", "list", file, "--json"))["dead_letters"]
    assert [(one["table"], one["place"], one["code"], one["attempts"], one["asked"]) for one in found] == [
        ("public.things", "64/0", "too-large", 1, False),
        ("public.other", "63/1", "refused", 1, False),
    ]
    change, row = (one["id"] for one in found)
    shown = said(capsys, "dlq", "show", file, change)
    for part in ("insert 64/0", "body (text): 'héllo'", "[too-large]", "tried    1 times"):
        assert part in shown
    assert '{"a":1}' in said(capsys, "dlq", "show", file, row)
    whole = json.loads(said(capsys, "dlq", "show", file, row, "--json"))
    assert (bytes.fromhex(whole["value"]), whole["headers"]) == (b'{"a":1}', {"h": b"v".hex()})
    assert "no dead letter has the id 77" in said(capsys, "dlq", "show", file, 77, code=2)
    assert "table public.x has no dead letters" in said(capsys, "dlq", "list", file, "--table", "public.x", code=2)


def test_retry_leaves_requests(file: Path, store: SqlStateStore, capsys: pytest.CaptureFixture[str]) -> None:
    change, row = ids(store)
    assert "next `penstock run" in said(capsys, "dlq", "retry", file, "--table", "public.other")
    with PipelineLock(load(file).home / "lock"):
        again = said(capsys, "dlq", "retry", file)
    assert f"{change} public.things: will be sent again" in again
    assert f"{row} public.other: is already to be sent again" in again
    assert f"process {os.getpid()}" in again
    assert [one.letter.id for one in store.asked_letters("lake")] == [row, change]
    assert "asked for again" in said(capsys, "dlq", "list", file)
    store.keep_letters("tables", [DeadLetter(OTHER, '{"id": 1}', b'{"id": 1}', None, "processor", "no", "row")], most=9)
    of_table = said(capsys, "dlq", "retry", file, "--destination", "tables")
    assert f"is a row of a table: penstock resync {file} public.other copies the table again" in of_table
    assert store.asked_letters("tables") == []


def test_ack_and_purge_remove_letters(file: Path, store: SqlStateStore, capsys: pytest.CaptureFixture[str]) -> None:
    change, row = ids(store)
    refused = said(capsys, "dlq", "purge", file, "--table", "public.other", code=2)
    assert "removing 1 dead letters cannot be undone" in refused
    assert f"dlq purge {file} --table public.other --yes" in refused
    assert "0 dead letters are removed" in said(capsys, "dlq", "purge", file, "--code", "processor", "--yes")
    assert ids(store) == [change, row]
    said(capsys, "dlq", "ack", file, change)
    assert ids(store) == [row]
    said(capsys, "dlq", "purge", file, "--yes")
    assert ids(store) == []
    assert [event.message for event in store.events()] == ["1 dead letter was removed by an operator"] * 2
    for command in ("list", "retry"):
        assert "there are no dead letters" in said(capsys, "dlq", command, file)
