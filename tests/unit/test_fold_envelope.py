"""Events: every change a row, through fold and the memory twin."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.changelog.log import ChangeLog
from penstock.decode.choices import chosen
from penstock.decode.schema import arrow_schema
from penstock.destinations.memory import MemoryDestination
from penstock.errors import RowIncomplete
from penstock.fold.column_identity import resolve
from penstock.fold.envelope import fold_events, read_events
from penstock.fold.layout import Layout
from penstock.fold.projection import kept_schema
from penstock.model.feed import ColumnChoice, Projection
from penstock.model.type_map import WIDEST
from penstock.runtime.upkeep.schema_registry import SchemaRegistry
from penstock.state.memory import MemoryStateStore
from pgoutput_messages import INT8, TEXT, UNSENT, Stream, delete, insert, table_schema, truncate, update

THINGS = table_schema({"id": INT8, "body": TEXT, "note": TEXT})
FULL = table_schema({"id": INT8, "body": TEXT, "note": TEXT}, identity="full")
STREAM = (
    Stream()
    .transaction(insert("1", "a", "x"), update("1", UNSENT, "y"))
    .transaction(update("2", UNSENT, UNSENT, key=("1", None, None)), delete("2", None, None), truncate())
)


def rows(table: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    ordered = table.sort_by([("commit_position", "ascending"), ("ordinal", "ascending")])
    return [tuple(row[name] for name in names) for row in ordered.to_pylist()]


def image(id: int, body: str | None, note: str | None) -> dict[str, Any]:
    return {"id": id, "body": body, "note": note}


@pytest.mark.parametrize("buckets", [1, 3])
def test_every_change_is_a_row(buckets: int) -> None:
    folded = [fold_events([STREAM.raw(THINGS)], position=0, bucket=one, buckets=buckets) for one in range(buckets)]
    table = pa.concat_tables([net.upserts for net in folded])
    table.validate(full=True)
    assert rows(table, "op", "commit_position", "ordinal", "before", "after", "unchanged") == [
        ("insert", 100, 0, None, image(1, "a", "x"), None),
        ("update", 100, 1, None, image(1, None, "y"), ["body"]),
        ("update", 200, 0, image(1, None, None), image(2, None, None), ["body", "note"]),
        ("delete", 200, 1, image(2, None, None), None, None),
        ("truncate", 200, 2, None, None, None),
    ]
    first = table.to_pylist()[0]
    assert (first["schema"], first["table"], first["schema_version"]) == ("public", "things", THINGS.structure)
    assert (first["transaction"], first["change_position"], first["commit_time"].timestamp()) == (1, 100, 1)
    assert sum(net.changes for net in folded) == 5


def test_what_was_applied_is_skipped() -> None:
    assert fold_events([STREAM.raw(THINGS)], position=101).upserts.num_rows == 3
    assert fold_events([STREAM.raw(THINGS)], position=0, until=200).upserts.num_rows == 2


def test_old_rows_are_whole_under_full() -> None:
    stream = Stream().transaction(
        update("1", UNSENT, "y", row=("1", "large", "x")), delete("1", "large", "y", full=True)
    )
    table = fold_events([stream.raw(FULL)], position=0).upserts
    assert rows(table, "op", "before", "after", "unchanged") == [
        ("update", image(1, "large", "x"), image(1, "large", "y"), None),
        ("delete", image(1, "large", "y"), None, None),
    ]


@pytest.mark.parametrize("buckets", [1, 2])
def test_markers_stand_around_their_transaction(buckets: int) -> None:
    folded = [
        fold_events([STREAM.raw(THINGS)], position=0, bucket=one, buckets=buckets, markers=True)
        for one in range(buckets)
    ]
    table = pa.concat_tables([net.upserts for net in folded])
    found = [op for (op,) in rows(table, "op")]
    assert found == ["begin", "insert", "update", "commit", "begin", "update", "delete", "truncate", "commit"]


def test_the_copys_rows_stand_before_what_follows() -> None:
    source = pa.Table.from_pylist([image(1, "a", "x"), image(2, "b", None)], schema=arrow_schema(THINGS))
    read = read_events(source, THINGS, THINGS, position=100, moment=500_000, first=7)
    both = pa.concat_tables([fold_events([STREAM.raw(THINGS)], position=100).upserts, read])
    assert rows(both, "op", "after")[:3] == [
        ("read", image(1, "a", "x")),
        ("read", image(2, "b", None)),
        ("insert", image(1, "a", "x")),
    ]


def test_events_and_the_copys_rows_carry_the_version_that_the_registry_has(tmp_path: Path) -> None:
    """Whatever was chosen for its columns, and whatever of them is kept."""
    projection = Projection("", (ColumnChoice("body", dropped=True),), (("region", "eu"),))
    carried = chosen(THINGS, (("note", "text"),), WIDEST)
    kept = kept_schema(projection, carried)
    rows = pa.Table.from_pylist([{"id": 1, "note": "x", "region": "eu"}], schema=arrow_schema(kept))
    streamed = fold_events([STREAM.raw(replace(carried, storage=9, stamp=9))], position=0, projection=projection)
    copied = read_events(rows, carried, kept, position=100, moment=0, first=0)
    state = MemoryStateStore()
    SchemaRegistry(ChangeLog(str(tmp_path)), state).held(carried, 100)
    (recorded,) = state.schema_versions()
    found = {*streamed.upserts["schema_version"].to_pylist(), *copied["schema_version"].to_pylist()}
    assert found == {recorded.fingerprint}


def test_where_and_columns() -> None:
    projection = Projection("note <> 'out'", (ColumnChoice("body", name="text"),), (("region", "eu"),))
    stream = (
        Stream()
        .transaction(insert("1", "a", "in"), insert("2", "b", "out"))
        .transaction(update("1", "a", "out"), update("2", "b", "in", row=("2", "b", "out")))
        .transaction(update("3", "c", "out", row=("3", "b", "out")), delete("4", "d", "out", full=True))
        .transaction(delete("5", None, None))
    )
    table = fold_events([stream.raw(FULL)], position=0, projection=projection).upserts
    assert rows(table, "op", "before", "after") == [
        ("insert", None, {"id": 1, "text": "a", "note": "in", "region": "eu"}),
        ("delete", {"id": 1, "text": None, "note": None, "region": "eu"}, None),
        ("insert", None, {"id": 2, "text": "b", "note": "in", "region": "eu"}),
        ("delete", {"id": 5, "text": None, "note": None, "region": "eu"}, None),
    ]
    with pytest.raises(RowIncomplete, match="note"):
        fold_events([STREAM.raw(THINGS)], position=0, projection=projection)


def test_a_column_that_comes_later_is_in_the_images_from_then_on() -> None:
    lake, layout = MemoryDestination(), Layout(events=True)
    lake.ensure_table(THINGS.table, THINGS, "shop", 0, layout=layout)
    more = table_schema({"id": INT8, "body": TEXT, "note": TEXT, "more": TEXT})
    streams = [(THINGS, STREAM), (more, Stream(transactions=2).transaction(insert("7", "a", "b", "c")))]
    position = 0
    for schema, stream in streams:
        base = lake.structure(THINGS.table, "shop")
        newest = resolve(base, schema)
        plan = lake.plan(THINGS.table, "shop", newest)
        net = fold_events([stream.raw(newest)], position=position, schema=newest)
        position += 300
        lake.commit(plan, [plan.write(net)], truncated=False, position=position)
    found = rows(lake.rows(THINGS.table), "after")
    assert found[0] == ({"id": 1, "body": "a", "note": "x", "more": None},)
    assert found[-1] == ({"id": 7, "body": "a", "note": "b", "more": "c"},)
