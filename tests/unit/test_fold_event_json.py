"""Events as JSON: the shape, and every kind of value without loss."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.decode.json_values import json_values
from penstock.fold.envelope import fold_events, read_events
from penstock.fold.event_json import event_lines
from penstock.model.feed import Feed
from penstock.render.events import render_changes
from pgoutput_messages import INT8, TEXT, UNSENT, Stream, delete, insert, numeric, table_schema, truncate, update

THINGS = table_schema({"id": INT8, "price": numeric(6, 2), "body": TEXT})

VALUES: list[tuple[pa.DataType, Any, Any]] = [
    (pa.int64(), 2**62, 2**62),
    (pa.bool_(), False, False),
    (pa.float64(), 0.1, 0.1),
    (pa.float32(), 0.1, 0.1),
    (pa.float32(), float("inf"), "Infinity"),
    (pa.float64(), float("nan"), "NaN"),
    (pa.decimal128(38, 10), Decimal("1E-10"), "0.0000000001"),
    (pa.decimal128(38, 0), Decimal(10) ** 37, "1" + "0" * 37),
    (pa.string(), 'say "hi"\n naïve 🎁 \u2028', 'say "hi"\n naïve 🎁 \u2028'),
    (pa.binary(), b"\x00\xff", "AP8="),
    (pa.date32(), 2_932_897, "10000-01-01"),
    (pa.timestamp("us"), -1, "1969-12-31T23:59:59.999999"),
    (pa.timestamp("us", "UTC"), 2**63 - 1, "294247-01-10T04:00:54.775807Z"),
    (pa.time64("us"), 1, "00:00:00.000001"),
    (pa.list_(pa.int32()), [1, None], [1, None]),
    (pa.list_(pa.list_(pa.date32())), [[0], None, []], [["1970-01-01"], None, []]),
    (pa.struct([("d", pa.decimal128(5, 2)), ("n", pa.null())]), {"d": Decimal("1.50")}, {"d": "1.50", "n": None}),
    (pa.map_(pa.string(), pa.binary()), [("k", b"v"), ("l", None)], {"k": "dg==", "l": None}),
    (pa.map_(pa.int64(), pa.int64()), [(1, 2)], {"1": 2}),
]


@pytest.mark.parametrize(("kind", "value", "expected"), VALUES, ids=lambda one: str(one)[:20])
def test_values(kind: pa.DataType, value: Any, expected: Any) -> None:
    array = pa.array([None, value, value, None], kind)
    assert json.loads(json.dumps(json_values(array))) == [None, expected, expected, None]
    assert json_values(array[2:]) == [expected, None], "of a part of an array"


def events(stream: Stream, **options: Any) -> pa.RecordBatch:
    table: pa.Table = fold_events([stream.raw(THINGS)], position=0, **options).upserts
    (batch,) = table.sort_by([("commit_position", "ascending"), ("ordinal", "ascending")]).combine_chunks().to_batches()
    return batch


def test_the_shape() -> None:
    stream = Stream().transaction(insert("1", "1.50", "a"), update("2", "2.00", UNSENT, key=("1", None, None)))
    stream.transaction(delete("2", None, None)).transaction(truncate())
    found = [json.loads(line) for line in event_lines(events(stream))]
    assert [(event["op"], event["before"], event["after"]) for event in found] == [
        ("insert", None, {"id": 1, "price": "1.50", "body": "a"}),
        ("update", {"id": 1, "price": None, "body": None}, {"id": 2, "price": "2.00"}),
        ("delete", {"id": 2, "price": None, "body": None}, None),
        ("truncate", None, None),
    ]
    assert found[1] == found[1] | {
        "schema": "public",
        "table": "things",
        "table_id": THINGS.relation_id,
        "place": f"{100:016x}/{1:016x}",
        "change_position": f"{100:016x}",
        "transaction": 1,
        "commit_time": "1970-01-01T00:00:01Z",
        "schema_version": THINGS.structure,
        "before_kind": "key",
        "unchanged": ["body"],
    }
    assert [event.get("truncate_options") for event in found] == [None, None, None, []]
    native = {"op", "schema", "table", "table_id", "place", "change_position", "transaction", "commit_time"}
    native |= {"schema_version", "before", "after"}
    assert set(found[0]) == native
    (streamed,) = render_changes(stream.raw(THINGS), Feed.clone(THINGS.table), "shop").values.to_pylist()[:1]
    assert {name: json.loads(streamed)[name] for name in native} == found[0], "as streams have it"


def test_the_place_of_markers_sorts_as_text_too() -> None:
    stream = Stream().transaction(insert("1", "1", "a"), insert("2", "1", "a")).transaction(insert("3", "1", "a"))
    found = [json.loads(line) for line in event_lines(events(stream, markers=True))]
    assert [event["op"] for event in found] == ["begin", "insert", "insert", "commit", "begin", "insert", "commit"]
    places = [event["place"] for event in found]
    assert sorted(places) == places


def test_what_was_rescued_and_whose_it_is() -> None:
    rows = pa.table({"id": [1], "price": pa.array([None], pa.decimal128(6, 2)), "body": ["x"]})
    rescued = pa.array([[("price", "NaN")]], pa.map_(pa.string(), pa.string()))
    copied = read_events(rows.append_column("_rescued", rescued), THINGS, THINGS, 100, 5_000, 7)
    (batch,) = copied.append_column("sid", pa.array([3])).to_batches()
    (line,) = event_lines(batch, "sid")
    assert json.loads(line) == {
        "sid": 3,
        "op": "read",
        "schema": "public",
        "table": "things",
        "table_id": THINGS.relation_id,
        "place": f"{99:016x}/{7:016x}",
        "change_position": None,
        "transaction": None,
        "commit_time": "1970-01-01T00:00:00.005000Z",
        "schema_version": THINGS.structure,
        "before": None,
        "after": {"id": 1, "price": None, "body": "x"},
        "_rescued": {"after.price": "NaN"},
    }


def test_images_of_a_structure_that_is_past() -> None:
    batch = events(Stream().transaction(insert("1", "1", "a")).transaction(insert("2", "1", "b")))
    (old, new) = batch.column("after").to_pylist()
    kind = batch.column("after").type
    place = batch.schema.get_field_index("after")
    batch = batch.set_column(place, "after", pa.array([None, new], kind))
    batch = batch.append_column("after_dropped_1", pa.array([old, None], kind))
    found = [json.loads(line)["after"] for line in event_lines(batch)]
    assert [image["id"] for image in found] == [1, 2]
