"""One stream, destinations with different type maps: each holds what its columns can be, and rescues the rest."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from datetime import time
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from loop_bench import Bench, drain, numbered, schema
from penstock.decode.choices import chosen, fitted, unchosen
from penstock.decode.rescue import RESCUED
from penstock.decode.schema import arrow_schema
from penstock.destinations.iceberg.type_map import ICEBERG_TYPES
from penstock.destinations.registry import TYPES
from penstock.fold.evolution import follow
from penstock.model.feed import Feed, Mode
from penstock.model.table import ColumnType, TableId, TableSchema
from penstock.model.type_map import AS_WRITTEN, WIDEST, TypeMap
from pgoutput_messages import INT2, INT4, INT8, TEXT, UNSENT, delete, insert, numeric, update

TIME, FREE = ColumnType(1083, "time"), ColumnType(1700, "numeric")
WIDE = numeric(50, 10)
TIMES = ColumnType(1183, "_time", kind="array", element=TIME)
THINGS = schema("things", 7, id=INT8, small=INT2, wide=WIDE, any=FREE, at=TIME, times=TIMES)
NO_TIME = TypeMap(time=False, digits=40, any_number="decimal(40,20)")
DIGITS = "1" * 40 + ".0123456789"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.loop.close()
    bench.writer.__exit__(None, None, None)


def types(table: TableSchema) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in arrow_schema(table)}


def followed(bench: Bench, name: str, table: TableSchema, type_map: TypeMap, mode: Mode = Mode.CLONE) -> TableId:
    """A feed of its own into the twin, of the types that the map has."""
    target = TableId("public", name)
    feed = Feed(target, table.table, target, mode, type_map=type_map)
    bench.follow(feed, chosen(table, feed.types, feed.type_map))
    return target


@pytest.mark.parametrize(
    ("type_map", "expected"),
    [
        (WIDEST, [pa.int16(), pa.decimal256(50, 10), pa.string(), pa.time64("us"), pa.list_(pa.time64("us"))]),
        (ICEBERG_TYPES, [pa.int32(), pa.decimal128(38, 10), pa.decimal128(38, 18), pa.string(), pa.list_(pa.string())]),
        (AS_WRITTEN, [pa.int16(), pa.decimal256(50, 10), pa.decimal128(38, 18), pa.string(), pa.list_(pa.string())]),
        (NO_TIME, [pa.int16(), pa.decimal256(40, 10), pa.decimal256(40, 20), pa.string(), pa.list_(pa.string())]),
        (
            replace(WIDEST, digits=38),
            [pa.int16(), pa.string(), pa.string(), pa.time64("us"), pa.list_(pa.time64("us"))],
        ),
    ],
)
def test_a_map_decides_what_columns_are(type_map: TypeMap, expected: list[pa.DataType]) -> None:
    made = chosen(THINGS, (), type_map)
    assert list(types(made).values())[1:] == expected
    assert unchosen(made) == THINGS, "nothing of it gets into what is recorded of the source"
    assert TableSchema.from_json(made.to_json()) == made
    assert fitted(made, type_map) == made
    assert pickle.loads(pickle.dumps(type_map)) == type_map


def test_a_choice_of_the_user_comes_first() -> None:
    made = chosen(THINGS, (("any", "decimal(20,2)"), ("at", "text"), ("pg:int2", "text")), WIDEST)
    assert (types(made)["any"], types(made)["at"], types(made)["small"]) == (
        pa.decimal128(20, 2),
        pa.string(),
        pa.string(),
    )


def test_what_the_log_records_does_not_know_of_maps() -> None:
    assert "held_as" not in THINGS.to_json()
    assert THINGS.fingerprint == TableSchema.from_json(THINGS.to_json()).fingerprint
    assert chosen(THINGS, (), ICEBERG_TYPES).fingerprint != THINGS.fingerprint


def test_every_destination_of_the_file_has_a_map() -> None:
    assert TYPES["iceberg"].type_map == ICEBERG_TYPES
    assert TYPES["files"].type_map == AS_WRITTEN


@pytest.mark.parametrize("mode", [Mode.CLONE, Mode.HISTORY, Mode.EVENTS])
def test_wide_values_go_through_decode_fold_and_a_wide_destination(bench: Bench, mode: Mode) -> None:
    wide = followed(bench, "wide", THINGS, WIDEST, mode)
    bench.seal(
        200,
        (THINGS, 110, insert("1", "-32768", DIGITS, "1" * 90, "23:59:59.999999", "{12:00:00,NULL}")),
        (THINGS, 120, insert("2", "1", "1", "NaN", "00:00:00", "{}")),
    )
    drain(bench)
    bench.seal(
        300,
        (THINGS, 210, update("1", "5", UNSENT, UNSENT, UNSENT, UNSENT)),
        (THINGS, 220, delete("2", None, None, None, None, None)),
    )
    drain(bench)
    rows = bench.lake.rows(wide)
    assert RESCUED not in rows.column_names
    if mode is Mode.EVENTS:
        rows = pa.Table.from_pylist([row["after"] for row in rows.to_pylist() if row["op"] == "insert"][:1])
        assert rows["small"].to_pylist() == [-32768]
    elif mode is Mode.HISTORY:
        rows = rows.sort_by("valid_from").filter(pa.compute.equal(rows.sort_by("valid_from")["id"], 1))
        assert rows["small"].to_pylist() == [-32768, 5]
    else:
        assert rows["small"].to_pylist() == [5]
    kept = rows.slice(0, 1).to_pylist()[0]
    assert kept["wide"] == Decimal(DIGITS)
    assert kept["any"] == "1" * 90
    assert kept["at"] == time(23, 59, 59, 999_999)
    assert kept["times"] == [time(12), None]


def test_each_destination_rescues_what_it_cannot_hold_and_nothing_else(bench: Bench) -> None:
    wide, lake = followed(bench, "wide", THINGS, WIDEST), followed(bench, "lake", THINGS, ICEBERG_TYPES)
    bench.seal(200, (THINGS, 110, insert("1", "7", DIGITS, "1" * 90, "24:00:00", "{24:00:00}")))
    drain(bench)
    (row,) = bench.lake.rows(wide).to_pylist()
    assert row == {
        "id": 1,
        "small": 7,
        "wide": Decimal(DIGITS),
        "any": "1" * 90,
        "at": None,
        "times": None,
        RESCUED: [("at", "24:00:00"), ("times", "{24:00:00}")],
    }
    (row,) = bench.lake.rows(lake).to_pylist()
    assert row == {
        "id": 1,
        "small": 7,
        "wide": None,
        "any": None,
        "at": "24:00:00",
        "times": ["24:00:00"],
        RESCUED: [("wide", DIGITS), ("any", "1" * 90)],
    }


def test_rows_are_found_by_keys_of_wide_types(bench: Bench) -> None:
    table = replace(schema("spans", 8, id=INT2, at=TIME, wide=WIDE, note=TEXT), key=("id", "at", "wide"))
    target = followed(bench, "spans", table, WIDEST)
    first, second = ("1", "10:00:00", DIGITS), ("1", "10:00:00", "1")
    bench.seal(200, (table, 110, insert(*first, "a")), (table, 120, insert(*second, "b")))
    drain(bench)
    bench.seal(300, (table, 210, update(*first, "c")), (table, 220, delete(*second, None)))
    drain(bench)
    assert bench.lake.rows(target).to_pylist() == [
        {"id": 1, "at": time(10), "wide": Decimal(DIGITS), "note": "c"},
    ]


def test_rows_without_a_key_are_told_apart_by_wide_cells(bench: Bench) -> None:
    table = replace(schema("bag", 9, small=INT2, at=TIME, wide=WIDE), key=(), identity="full")
    target = followed(bench, "bag", table, WIDEST)
    twice, once = ("1", "10:00:00", DIGITS), ("1", "10:00:00", None)
    bench.seal(200, *((table, 110 + n, insert(*row)) for n, row in enumerate([twice, twice, once])))
    drain(bench)
    bench.seal(300, (table, 210, delete(*twice, full=True)))
    drain(bench)
    assert sorted(str(row["wide"]) for row in bench.lake.rows(target).to_pylist()) == sorted([DIGITS, "None"])


def test_a_map_decides_what_can_be_widened() -> None:
    before = numbered(schema("things", 7, id=INT8, n=INT2, w=numeric(30, 2)), 1, 2, 3)
    after = numbered(schema("things", 7, id=INT8, n=INT4, w=numeric(50, 2)), 1, 2, 3)

    def resync(type_map: TypeMap) -> str:
        return follow(fitted(before, type_map), [fitted(after, type_map)], type_map).resync

    assert resync(WIDEST) == ""
    assert resync(ICEBERG_TYPES) == "", "both are an int there, and the decimal grows to its 38 digits"
    assert "column n changed from int2 to int4" in resync(replace(WIDEST, widenings=frozenset()))
    assert "column w changed from numeric(30,2) to numeric(50,2)" in resync(replace(WIDEST, digits=38))


def test_a_widened_column_keeps_its_rows(bench: Bench) -> None:
    before = numbered(schema("things", 7, id=INT8, n=INT2, w=numeric(30, 2)), 1, 2, 3)
    after = numbered(schema("things", 7, id=INT8, n=INT4, w=numeric(50, 2)), 1, 2, 3)
    target = followed(bench, "wide", before, WIDEST)
    bench.seal(200, (before, 110, insert("1", "3", "1.50")))
    drain(bench)
    bench.seal(300, (after, 210, insert("2", "70000", "1" * 40 + ".25")))
    drain(bench)
    rows = bench.lake.rows(target)
    assert rows.schema.field("n").type == pa.int32()
    assert rows.schema.field("w").type == pa.decimal256(50, 2)
    assert rows["n"].to_pylist() == [3, 70000]
    assert rows["w"].to_pylist() == [Decimal("1.50"), Decimal("1" * 40 + ".25")]
