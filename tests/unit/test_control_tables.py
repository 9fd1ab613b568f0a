"""`penstock tables`, `resync`, `retry`, `drop` and `forget` over a state store, with and without a run under way."""

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
from penstock.model.table import TableId
from penstock.model.table_state import GONE as GONE_AT_SOURCE
from penstock.model.table_state import State, TableProgress, TableStatus
from penstock.state.lock import PipelineLock
from penstock.state.sql import SqlStateStore, open_store
from pipeline_files import pipeline_file

NOON = datetime(2026, 5, 4, 12, 0, 0, tzinfo=UTC)
ORDERS, ITEMS, ODD = TableId("public", "orders"), TableId("public", "items"), TableId("public", "tåble [x]")
GONE = TableId("other", "gone")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return pipeline_file(tmp_path)


@pytest.fixture
def store(file: Path) -> Iterator[SqlStateStore]:
    """Orders halfway copied, items waiting, an odd table Errored, one that the file does not name any more."""
    store = open_store(load(file).state_url)
    store.set_table_status("lake", ORDERS, TableStatus(State.DATA_SYNC, NOON))
    store.begin_copy("lake", ORDERS, "c1", "f", [("0", 100), ("1", 300)])
    store.finish_range("lake", ORDERS, "c1", 0, 5, "part", 1000)
    store.set_table_status("lake", ITEMS, TableStatus(State.INIT, NOON))
    store.note_copy("lake", ITEMS, "waiting for pid 4711, 35 s: UPDATE items")
    errored = TableStatus(State.ERRORED, NOON, "a value does not fit", "ALTER TABLE it", Retry.MANUAL, "value")
    store.set_table_status("lake", ODD, errored)
    store.set_table_status("lake", GONE, TableStatus(State.READY, NOON))
    yield store
    store.close()


def output(capsys: pytest.CaptureFixture[str], *words: object) -> list[str]:
    assert cli.main([str(word) for word in words]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return [" ".join(line.split()) for line in said.out.splitlines()]


def refusal(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert cli.main([str(word) for word in words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


def test_values_read_back_are_counted_and_many_of_them_bring_advice(
    file: Path, store: SqlStateStore, capsys: pytest.CaptureFixture[str]
) -> None:
    store.record_progress("lake", {ORDERS: TableProgress(5, 30_000, 1.0, NOON, NOON, fetched=12_345)})
    store.record_progress("lake", {ITEMS: TableProgress(5, 30_000, 1.0, NOON, NOON, fetched=2_000)})
    said = " ".join(output(capsys, "tables", file))
    assert "public.orders: 12,345 unchanged values were not sent by the source" in said
    assert 'Run `ALTER TABLE "public"."orders" REPLICA IDENTITY FULL`' in said
    assert "public.items: 2,000" not in said, "few of its changes"
    found = json.loads("".join(output(capsys, "tables", file, "--json")))
    assert {one["table"]: one["fetched_values"] for one in found["tables"]}["public.items"] == 2_000


def asked(store: SqlStateStore) -> list[tuple[str, TableId]]:
    return [(request.kind, request.table) for request in store.requests()]


def test_tables_show_state_and_progress_and_the_way_out(
    file: Path, store: SqlStateStore, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = output(capsys, "tables", file)
    assert lines[:5] == [
        "table state since rows copied progress",
        "other.gone NotFollowed 2026-05-04 12:00:00 UTC – –",
        "public.items Init 2026-05-04 12:00:00 UTC – –",
        "public.orders DataSync 2026-05-04 12:00:00 UTC 1,000 of about 4,000 25 %",
        "public.tåble [x] Errored 2026-05-04 12:00:00 UTC – –",
    ]
    unfollowed = lines.index("other.gone is no longer followed")
    assert lines[unfollowed + 1].endswith(f"`penstock forget {file} other.gone` removes it from this list")
    assert "waiting for pid 4711, 35 s: UPDATE items" in lines
    trouble = lines.index("public.tåble [x] is Errored [value] since 2026-05-04 12:00:00 UTC, retry: manual")
    assert lines[trouble + 1 : trouble + 3] == ["a value does not fit", "ALTER TABLE it"]
    assert lines[-1] == f"not running; `penstock run {file}` starts it"


def test_a_copy_that_is_done_and_one_that_began_again(
    file: Path, store: SqlStateStore, capsys: pytest.CaptureFixture[str]
) -> None:
    store.begin_copy("lake", ORDERS, "c2", "f", [("0", 100)])
    store.begin_copy("lake", ITEMS, "c3", "f", [("0", 100)])
    store.finish_range("lake", ITEMS, "c3", 0, 5, "part", 77)
    store.end_copy("lake", ITEMS)
    lines = output(capsys, "tables", file)
    assert "public.items Init 2026-05-04 12:00:00 UTC 77 100 %" in lines
    assert "public.orders DataSync 2026-05-04 12:00:00 UTC 0 0 %" in lines
    assert lines[lines.index("public.orders is copied again") + 1].startswith("it began from zero 2 times, last at ")


def test_tables_as_json(file: Path, store: SqlStateStore, capsys: pytest.CaptureFixture[str]) -> None:
    store.add_request("lake", ODD, "retry")
    assert cli.main(["tables", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["run"] == {"running": False, "pid": None}
    by_name = {table["table"]: table for table in found["tables"]}
    orders, odd = by_name["public.orders"], by_name["public.tåble [x]"]
    assert (orders["state"], orders["since"], orders["error"]) == ("DataSync", NOON.isoformat(), None)
    copy = orders["copy"]
    assert datetime.fromisoformat(copy.pop("started")).tzinfo is not None
    assert copy == {
        "ended": None,
        "attempts": 1,
        "ranges": 2,
        "ranges_finished": 1,
        "rows": 1000,
        "rows_estimate": 4000,
        "bytes": 100,
        "bytes_total": 400,
        "fraction": 0.25,
        "note": None,
    }
    assert by_name["public.items"]["copy"]["note"] == "waiting for pid 4711, 35 s: UPDATE items"
    assert by_name["public.items"]["copy"]["fraction"] is None
    assert (odd["error"], odd["solution"], odd["retry"], odd["code"]) == (
        "a value does not fit",
        "ALTER TABLE it",
        "manual",
        "value",
    )
    assert [request["kind"] for request in odd["requests"]] == ["retry"]
    assert odd["copy"] is None


def test_tables_are_filtered_by_name_and_state(
    file: Path, store: SqlStateStore, capsys: pytest.CaptureFixture[str]
) -> None:
    def names(*words: str) -> list[str]:
        return [one["table"] for one in json.loads("".join(output(capsys, "tables", file, "--json", *words)))["tables"]]

    assert names("public.*", "--state", "datasync", "--state", "Init") == ["public.items", "public.orders"]
    assert names("other.gone", "public.items") == ["other.gone", "public.items"]
    assert names("--state", "NotFollowed") == ["other.gone"]
    assert names("--destination", "lake", "--state", "Ready") == []
    assert output(capsys, "tables", file, "--state", "Ready") == ["none of the 4 tables is in such a state"]
    assert "Did you mean public.orders" in refusal(capsys, "tables", file, "public.order")
    assert "Errored" in refusal(capsys, "tables", file, "--state", "broken")


def test_before_the_first_run_there_are_no_tables_and_nothing_is_made(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert output(capsys, "tables", file) == [f"this pipeline has not run yet; `penstock run {file}` starts it"]
    assert "shop has not run yet" in refusal(capsys, "resync", file, "public.orders")
    assert [path.name for path in file.parent.iterdir()] == ["shop.yaml"]


def test_resync_leaves_requests_for_the_next_run(
    file: Path, store: SqlStateStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert output(capsys, "resync", file, "public.tåble [x]", "public.orders", "public.orders") == [
        "public.tåble [x] will be copied again",
        "public.orders will be copied again",
        f"no run is under way: it takes effect at the next `penstock run {file}`",
    ]
    assert asked(store) == [("resync", ODD), ("resync", ORDERS)]
    assert "public.orders: resync asked for" in output(capsys, "tables", file)
    assert output(capsys, "resync", file, "public.orders")[0] == "public.orders is already queued for a resync"
    assert len(asked(store)) == 2


def test_a_run_under_way_is_named(file: Path, store: SqlStateStore, capsys: pytest.CaptureFixture[str]) -> None:
    with PipelineLock(load(file).home / "lock"):
        lines = output(capsys, "resync", file, "public.orders")
        assert lines[-1] == f"the run under way (process {os.getpid()}) takes it up; see `penstock tables {file}`"
        assert not any("not running" in line for line in output(capsys, "tables", file))


def test_retry_is_for_errored_tables(file: Path, store: SqlStateStore, capsys: pytest.CaptureFixture[str]) -> None:
    store.add_request("lake", ODD, "resync")
    lines = output(capsys, "retry", file, "public.orders", "public.tåble [x]")
    assert lines[:2] == [
        "public.tåble [x] will be tried again",
        "public.orders is not Errored: there is nothing to retry",
    ]
    assert asked(store) == [("resync", ODD), ("retry", ODD)]
    assert output(capsys, "retry", file, "public.tåble [x]")[0] == "public.tåble [x] is already queued for a retry"
    assert output(capsys, "retry", file, "public.orders") == ["public.orders is not Errored: there is nothing to retry"]
    assert len(asked(store)) == 2


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("public.ordres", "public.orders"), ("orders", "public.orders"), ("Public.Items", "public.items")],
)
def test_an_unknown_table_is_refused_with_the_nearest_name(
    file: Path, store: SqlStateStore, capsys: pytest.CaptureFixture[str], name: str, nearest: str
) -> None:
    said = refusal(capsys, "resync", file, "public.items", name)
    solution = f"Did you mean {nearest}? `penstock tables {file}` lists them all"
    assert said == f"penstock: [usage] pipeline shop has no table {name}. {solution}\n"
    assert asked(store) == []


def test_a_table_that_resembles_none_and_one_that_is_no_longer_wanted(
    file: Path, store: SqlStateStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "Did you mean" not in refusal(capsys, "retry", file, "x")
    assert f"`penstock forget {file} other.gone`" in refusal(capsys, "resync", file, "other.gone")
    assert "there is no table named to resync" in refusal(capsys, "resync", file)
    assert "not both" in refusal(capsys, "resync", file, "--all", "public.orders")
    assert asked(store) == []


def test_resync_takes_patterns_and_all(file: Path, store: SqlStateStore, capsys: pytest.CaptureFixture[str]) -> None:
    output(capsys, "resync", file, "public.%s", "public.orders")
    assert asked(store) == [("resync", ITEMS), ("resync", ORDERS)]
    assert "public.tåble [x] will be copied again" in output(capsys, "resync", file, "--all")
    assert asked(store)[2:] == [("resync", ODD)], "not the one that is no longer followed"
    assert "pattern nowhere.* stands for no table" in refusal(capsys, "resync", file, "nowhere.*")
    assert "pattern other.* stands for no table" in refusal(capsys, "resync", file, "other.*")


def test_a_table_is_dropped_when_that_is_meant(
    file: Path, store: SqlStateStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"If that is meant: penstock drop {file} public.orders --yes" in refusal(
        capsys, "drop", file, "public.orders"
    )
    assert asked(store) == []
    assert "will be dropped, made again and copied" in output(capsys, "drop", file, "public.orders", "--yes")[0]
    assert asked(store) == [("drop", ORDERS)]
    assert "is not among the tables" in refusal(capsys, "drop", file, "other.gone", "--yes")


def test_a_table_that_is_no_longer_followed_is_forgotten(
    file: Path, store: SqlStateStore, capsys: pytest.CaptureFixture[str]
) -> None:
    store.set_rule("lake", GONE, "{}")
    store.add_request("lake", GONE, "resync")
    assert "other.gone is forgotten" in output(capsys, "forget", file, "other.gone")[0]
    assert GONE not in store.table_status("lake")
    assert (store.rules("lake"), asked(store)) == ({}, [])
    assert "public.orders is followed" in refusal(capsys, "forget", file, "public.orders")
    assert "has no table other.gone" in refusal(capsys, "forget", file, "other.gone")
    store.set_table_status("lake", ITEMS, TableStatus(State.ERRORED, NOON, "table public.items " + GONE_AT_SOURCE))
    output(capsys, "forget", file, "public.items")
    assert list(store.table_status("lake")) == [ORDERS, ODD], "and nothing of the others"
    assert store.copy_of("lake", ORDERS) is not None
