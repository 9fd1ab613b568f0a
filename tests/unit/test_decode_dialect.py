"""A second kind of source goes through every fold by its own reader and types, and its advice is in every error."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from penstock.decode.choices import chosen
from penstock.decode.dialect import dialect_of
from penstock.decode.schema import arrow_schema
from penstock.decode.sift import sift
from penstock.errors import KeyRequired, RowIncomplete
from penstock.fold.anomalies import find_anomalies
from penstock.fold.clone import fold_append, fold_clone
from penstock.fold.envelope import fold_events
from penstock.fold.evolution import follow
from penstock.fold.history import fold_history
from penstock.fold.projection import project_effect
from penstock.fold.sharing import shares
from penstock.fold.whole_rows import fold_rows
from penstock.model.change import DELETE, INSERT, TRUNCATE, UPDATE
from penstock.model.feed import Projection
from penstock.model.table import TableSchema
from penstock.model.type_map import WIDEST
from tiny_dialect import TEXT, WHOLE, tiny_changes, tiny_schema

COLUMNS = {"id": WHOLE, "n": WHOLE, "note": TEXT}
THINGS = tiny_schema(COLUMNS)
CHANGES = tiny_changes(
    THINGS,
    [
        (INSERT, {"new": {"id": 1, "n": 10, "note": "one"}}),
        (INSERT, {"new": {"id": 2, "n": 20, "note": "two"}}),
        (UPDATE, {"new": {"id": 1, "n": 11}}),
        (UPDATE, {"old": {"id": 1}, "new": {"id": 3, "n": "many"}}),
        (DELETE, {"old": {"id": 2}}),
        (UPDATE, {"new": {"id": 9, "n": 90}}),
    ],
)


def rows(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: str(row.get("id")))


def test_a_clone_takes_what_was_not_sent_from_earlier_images_or_from_the_destination() -> None:
    net = fold_clone([CHANGES], position=0)
    assert rows(net.upserts) == [{"id": 3, "n": None, "note": "one"}, {"id": 9, "n": 90, "note": None}]
    assert [(one.column, one.cells, one.sample) for one in net.rescues] == [("n", 1, "many")]
    assert [(fetch.column, net.upserts["id"].take(pa.array(fetch.rows)).to_pylist()) for fetch in net.fetches] == [
        ("note", [9])
    ]
    assert net.touched_keys is not None
    assert len(net.touched_keys) == 4
    assert rows(fold_append([CHANGES], position=0, until=300).upserts) == [
        {"id": 1, "n": 10, "note": "one"},
        {"id": 2, "n": 20, "note": "two"},
    ]


def test_history_events_and_anomalies_read_it_too() -> None:
    steps = fold_history([CHANGES], position=0).steps
    assert steps is not None
    assert len(steps.key) == 7  # every change is a moment of its own, and the change of a key is of two keys
    events = fold_events([CHANGES], position=0).upserts.to_pylist()
    assert [(one["op"], one["commit_position"], one["transaction"]) for one in events][:3] == [
        ("insert", 100, 1),
        ("insert", 200, 2),
        ("update", 300, 3),
    ]
    assert (events[2]["after"], events[2]["unchanged"]) == ({"id": 1, "n": 11, "note": None}, ["note"])
    assert events[4]["before"] == {"id": 2, "n": None, "note": None}
    found = find_anomalies([CHANGES], lambda keys: pa.array([False] * len(keys)).to_numpy(False), position=0)
    assert [(one.kind, one.changes) for one in found] == [("update", 1)]


def test_a_huge_transaction_is_shared_out_by_its_keys() -> None:
    parts = list(shares(CHANGES, position=0, until=400, buckets=3))
    assert sum(part.num_rows for part in parts) == 3


def test_whole_rows_are_removed_and_added() -> None:
    schema = tiny_schema({"n": WHOLE}, key=(), identity="full")
    messages: list[tuple[int, dict[str, Any] | bytes]] = [
        (INSERT, {"new": {"n": 1}}),
        (UPDATE, {"old": {"n": 1}, "new": {"n": 2}, "whole": True}),
        (DELETE, {"old": {"n": 7}, "whole": True}),
    ]
    net = fold_rows([tiny_changes(schema, messages)], position=0)
    assert net.upserts.to_pylist() == [{"n": 2}]
    assert net.removals is not None
    assert net.removals.needed.tolist() == [1]
    with pytest.raises(KeyRequired, match=r"tiny did not keep it.*Ask tiny for whole rows"):
        fold_rows([tiny_changes(schema, [(DELETE, {"old": {"n": 7}})])], position=0)


def test_what_cannot_be_read_is_sifted_out() -> None:
    mixed = tiny_changes(
        THINGS, [(INSERT, b"{"), (DELETE, {"old": {"n": 1}}), (TRUNCATE, {}), (INSERT, {"new": {"id": 5}})]
    )
    fit, refused = sift(mixed)
    assert fit.batch.column("op").to_pylist() == [TRUNCATE, INSERT]
    assert [one.reason for one in refused] == ["it is no JSON", "its key column id has no value"]
    assert dialect_of(refused[0].schema).explain(refused[0]) == ["       0  b'{'"]


def test_errors_bring_its_own_advice() -> None:
    with pytest.raises(KeyRequired, match=r"DELETE of a table of which nobody knows the key.*Tell tiny its key"):
        fold_clone([tiny_changes(tiny_schema(COLUMNS, key=()), [(DELETE, {"old": {"id": 1}})])], position=0)
    with pytest.raises(RowIncomplete, match="`where` needs column note, whose value tiny leaves out"):
        project_effect(Projection(where="note = 'one'"), THINGS, fold_clone([CHANGES], position=500))


def test_its_types_are_followed_and_chosen_and_its_name_survives_the_log() -> None:
    wider = tiny_schema({**COLUMNS, "more": TEXT})
    assert follow(THINGS, [wider], WIDEST).changes == ("column more added (text)",)
    assert arrow_schema(chosen(THINGS, (("n", "text"),), WIDEST)).field("n").type == pa.string()
    assert TableSchema.from_json(THINGS.to_json()) == THINGS
    with pytest.raises(ValueError, match="no source of type oracle is registered"):
        arrow_schema(replace(THINGS, dialect="oracle"))
