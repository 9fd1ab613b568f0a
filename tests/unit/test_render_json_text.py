"""JSON by kernels says what `decode/json_values.py` says of the same values."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, time
from decimal import Decimal

import pyarrow as pa
import pytest

from penstock.decode.json_values import json_values
from penstock.render.json_text import JsonRows, json_texts

COLUMNS = {
    "truth": pa.array([True, None, False]),
    "whole": pa.array([2**63 - 1, None, -(2**63)], pa.int64()),
    "floating": pa.array([1.0, -0.0, 1e300, 1.5e-7, 0.1, None, float("nan"), math.inf, -math.inf]),
    "single": pa.array([0.1, 1e-9, None, math.nan], pa.float32()),
    "text": pa.array(['plain "quoted" \\ back', "tab\tline\n\x01 é 漢 \U0001f600", "", None]),
    "large text": pa.array(["a\nb", None], pa.large_string()),
    "decimal": pa.array([Decimal("12.50"), Decimal("-0.01"), None], pa.decimal128(38, 2)),
    "small decimal": pa.array([Decimal("1E-18"), Decimal("0"), None], pa.decimal128(38, 18)),
    "date": pa.array([date(2026, 1, 31), None, date(1, 1, 1)]),
    "far date": pa.array([-(10**6), 4 * 10**6, None], pa.int32()).cast(pa.date32()),
    "moment": pa.array([datetime(2026, 1, 31, 1, 2, 3, 40), datetime(2026, 1, 31), None]),
    "moment in time": pa.array([datetime(2026, 1, 31, 1, 2, 3, 500000, UTC), None]),
    "far moment": pa.array([-(2**62), 2**60, None], pa.int64()).cast(pa.timestamp("us", "UTC")),
    "time": pa.array([time(1, 2, 3), None], pa.time64("us")),
    "binary": pa.array([b"\x00\xff", b"", None]),
    "list": pa.array([[1, None, 2], [], None], pa.list_(pa.int64())),
    "list of texts": pa.array([["a", 'b"'], None, [None]], pa.list_(pa.string())),
    "struct": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": None}]),
    "map": pa.array([[("a", "1"), ("b", None)], None, []], pa.map_(pa.string(), pa.string())),
    "nothing": pa.nulls(2),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_kernels_agree_with_values(name: str) -> None:
    column = COLUMNS[name]
    for some in (column, column.slice(1), column.slice(0, 0)):
        texts = json_texts(some).to_pylist()
        assert [None if text is None else json.loads(text) for text in texts] == json_values(some)


def test_the_sign_of_zero_is_kept() -> None:
    (text,) = json_texts(pa.array([-0.0])).to_pylist()
    assert math.copysign(1, json.loads(text)) == -1


def test_a_template_joins_constants_and_columns() -> None:
    made = JsonRows().object({"a": pa.array([1, None]), 'b"': "x", "c": {"d": pa.array(["y", "z"])}, "e": {}}).joined(2)
    assert [json.loads(text) for text in made.to_pylist()] == [
        {"a": 1, 'b"': "x", "c": {"d": "y"}, "e": {}},
        {"a": None, 'b"': "x", "c": {"d": "z"}, "e": {}},
    ]
    assert JsonRows().object({"a": 1}).joined(2).to_pylist() == ['{"a":1}', '{"a":1}']
