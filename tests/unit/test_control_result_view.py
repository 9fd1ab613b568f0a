"""Answers as table, JSON and CSV: no value is lost, and NULL is never an empty string."""

from __future__ import annotations

import csv
import io
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

from penstock.control.query.result_view import as_csv, as_json, as_table

CASES: list[tuple[pa.DataType, Any, Any]] = [
    (pa.int64(), 2**62, 2**62),
    (pa.bool_(), False, False),
    (pa.float64(), 0.1, 0.1),
    (pa.float64(), float("-inf"), "-Infinity"),
    (pa.float64(), float("nan"), "NaN"),
    (pa.decimal128(38, 10), Decimal("0.0000000001"), "0.0000000001"),
    (pa.string(), "", ""),
    (pa.string(), 'say "hi", \n naïve 🎁 [bold]', 'say "hi", \n naïve 🎁 [bold]'),
    (pa.binary(), b"\x00\xff", "00ff"),
    (pa.date32(), -135_140, "1600-01-01"),
    (pa.date32(), 2_932_897, "10000-01-01"),
    (pa.timestamp("us"), 0, "1970-01-01T00:00:00"),
    (pa.timestamp("us"), -1, "1969-12-31T23:59:59.999999"),
    (pa.timestamp("us", "UTC"), 1, "1970-01-01T00:00:00.000001Z"),
    (pa.timestamp("us", "UTC"), 2**63 - 1, "294247-01-10T04:00:54.775807Z"),
    (pa.list_(pa.int32()), [1, None], [1, None]),
    (pa.struct([("d", pa.decimal128(5, 2))]), {"d": Decimal("1.50")}, {"d": "1.50"}),
    (pa.map_(pa.string(), pa.int32()), [("k", 1)], {"k": 1}),
    (pa.map_(pa.string(), pa.int32()), [], {}),
    (pa.map_(pa.int32(), pa.decimal128(5, 2)), [(7, Decimal("1.50")), (8, None)], {"7": "1.50", "8": None}),
    (pa.list_(pa.map_(pa.string(), pa.string())), [[("a", "x")]], [{"a": "x"}]),
    (pa.struct([("m", pa.map_(pa.string(), pa.int32()))]), {"m": [("a", 1)]}, {"m": {"a": 1}}),
]


@pytest.mark.parametrize(("kind", "value", "expected"), CASES)
def test_values_in_json(kind: pa.DataType, value: Any, expected: Any) -> None:
    (found, null) = json.loads(as_json(pa.table({"v": pa.array([value, None], kind)})))
    assert found == {"v": expected}
    assert null == {"v": None}


def test_an_empty_answer_is_an_empty_array() -> None:
    assert as_json(pa.table({"v": pa.array([], pa.int32())})) == "[]"


def test_csv_tells_null_from_the_empty_string() -> None:
    answer = pa.table({"id": [1, 2], "note": ["", None], "total": pa.array([Decimal("1.50"), None])})
    assert as_csv(answer).splitlines() == ['"id","note","total"', '1,"",1.50', "2,,"]


def test_csv_keeps_quotes_and_line_breaks() -> None:
    text = 'say "hi",\nand go'
    (row,) = csv.DictReader(io.StringIO(as_csv(pa.table({"v": [text]}))))
    assert row == {"v": text}


def test_a_table_shows_every_value_as_it_is() -> None:
    console = Console(record=True, width=80, file=io.StringIO())
    console.print(as_table(pa.table({"id": [1, 2], "note": ["[bold]not markup[/]", None]})))
    heading, first, second = console.export_text().rstrip().splitlines()
    assert heading.split() == ["id", "note"]
    assert first.rstrip().endswith("[bold]not markup[/]")
    assert second.split() == ["2", "null"]
