"""where, columns and set: the same for the copy's rows and for the stream's net effects."""

from __future__ import annotations

import hashlib
from typing import Any

import pyarrow as pa
import pytest

from penstock.decode.schema import arrow_schema
from penstock.decode.verbatim import verbatim
from penstock.errors import RowIncomplete, SchemaChanged
from penstock.fold.clone import fold_clone
from penstock.fold.envelope import fold_events
from penstock.fold.history import fold_history
from penstock.fold.projection import check_projection, kept_schema, project_effect, project_rows
from penstock.model.feed import ColumnChoice, Projection
from pgoutput_messages import BOOL, INT8, TEXT, TIMESTAMP, UNSENT, Stream, delete, insert, table_schema, update

THINGS = table_schema({"id": INT8, "country": TEXT, "email": TEXT, "notes": TEXT})
PROJECTION = Projection(
    "country <> 'XX'",
    (
        ColumnChoice("country", name="land"),
        ColumnChoice("email", masked=True),
        ColumnChoice("notes", dropped=True),
    ),
    (("region", "eu"), ("tier", 1), ("live", True)),
    "salt",
)


def masked(text: str) -> str:
    return hashlib.sha256(f"salt{text}".encode()).hexdigest()


def rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.to_pylist())


def test_the_copys_rows() -> None:
    source = [
        {"id": 1, "country": "DE", "email": "a@x", "notes": "n"},
        {"id": 2, "country": "XX", "email": "b@x", "notes": "n"},
        {"id": 3, "country": "FR", "email": None, "notes": None},
        {"id": 4, "country": None, "email": "d@x", "notes": None},
    ]
    kept = project_rows(PROJECTION, THINGS, pa.Table.from_pylist(source, schema=arrow_schema(THINGS)))
    assert kept.schema.names == ["id", "land", "email", "region", "tier", "live"]
    assert kept.schema == arrow_schema(kept_schema(PROJECTION, THINGS))
    assert rows(kept) == [(1, "DE", masked("a@x"), "eu", 1, True), (3, "FR", None, "eu", 1, True)]
    assert "salt" not in repr(PROJECTION)


def test_rows_that_are_carried_as_texts_are_compared_and_masked_as_their_values() -> None:
    """As in changes (tests/unit/test_render_events.py): a copied row and its update must agree."""
    schema = table_schema({"id": INT8, "yes": BOOL, "at": TIMESTAMP})
    projection = Projection("id < 100 and yes", (ColumnChoice("yes", masked=True), ColumnChoice("at", masked=True)))
    texts = [("2", "t", "2026-01-02 03:04:05"), ("30", "f", None), ("1000", "t", None)]
    columns = [pa.array(column, pa.string()) for column in zip(*texts, strict=True)]
    kept = project_rows(projection, verbatim(schema), pa.table(columns, schema=arrow_schema(verbatim(schema))))
    stream = Stream().transaction(*(insert(*one) for one in texts))
    (event,) = (
        fold_events(
            [stream.raw(verbatim(schema))], position=0, schema=verbatim(schema), projection=projection, facts=True
        )
        .upserts["after"]
        .to_pylist()
    )
    assert kept.to_pylist() == [event]
    assert event["id"] == "2"


def test_the_streams_net_effect() -> None:
    stream = (
        Stream()
        .transaction(insert("1", "DE", "a@x", "n"), insert("2", "XX", "b@x", "n"))
        .transaction(update("3", "XX", "c@x", "n"), update("4", "FR", UNSENT, UNSENT), delete("5", None, None, None))
    )
    net = project_effect(PROJECTION, THINGS, fold_clone([stream.raw(THINGS)], position=0))
    assert rows(net.upserts) == [(1, "DE", masked("a@x"), "eu", 1, True), (4, "FR", None, "eu", 1, True)]
    assert net.touched_keys is not None
    assert sorted(net.touched_keys.to_pylist()) == [1, 2, 3, 4, 5], "a row that is not kept is a key without a row"
    assert net.upsert_keys is not None
    assert net.upsert_keys.to_pylist() == net.upserts["id"].to_pylist()
    (fetch,) = net.fetches
    assert (fetch.column, fetch.keys.to_pylist()) == ("email", [4]), "what is dropped is not fetched"
    assert net.upserts["id"].to_pylist()[fetch.rows[0]] == 4


def test_a_row_that_moves_out_of_where_ends_its_version() -> None:
    stream = Stream().transaction(insert("1", "DE", "", "")).transaction(update("1", "XX", "", ""))
    net = project_effect(PROJECTION, THINGS, fold_history([stream.raw(THINGS)], position=0))
    assert net.steps is not None
    assert net.steps.row.tolist() == [0, -1]


def test_a_value_that_where_needs_and_that_was_not_sent_is_no_guess() -> None:
    stream = Stream().transaction(update("1", UNSENT, "a", "b"))
    with pytest.raises(RowIncomplete, match="country") as error:
        project_effect(PROJECTION, THINGS, fold_clone([stream.raw(THINGS)], position=0))
    assert "REPLICA IDENTITY FULL" in error.value.solution


@pytest.mark.parametrize(
    ("projection", "said"),
    [
        (Projection(columns=(ColumnChoice("nots", dropped=True),)), "nots, which it does not have"),
        (Projection(columns=(ColumnChoice("id", masked=True),)), "id is of its key"),
        (Projection(columns=(ColumnChoice("notes", name="email"),)), "two of its columns would be named email"),
        (Projection(constants=(("email", "x"),)), "two of its columns would be named email"),
        (Projection(where="land = 'DE'"), "has no column land"),
    ],
)
def test_what_does_not_suit_the_table_is_told(projection: Projection, said: str) -> None:
    assert any(said in problem for problem in check_projection(projection, THINGS))
    with pytest.raises(SchemaChanged, match=said):
        kept_schema(projection, THINGS)
