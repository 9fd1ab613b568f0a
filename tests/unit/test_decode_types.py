"""Texts as Postgres writes them, and the values that they become; texts that fit no value of the column's type."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.decode.schema import arrow_schema
from penstock.decode.types.registry import codec
from penstock.model.table import ColumnType
from pgoutput_messages import (
    BOOL,
    BYTEA,
    DATE,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    JSONB,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    numeric,
    table_schema,
)

FLOAT4 = ColumnType(700, "float4")
BPCHAR = ColumnType(1042, "bpchar", 9)
TIME = ColumnType(1083, "time")
INTERVAL = ColumnType(1186, "interval")
JSON = ColumnType(114, "json")
BARE_NUMERIC = ColumnType(1700, "numeric")

FITTING: list[tuple[ColumnType, pa.DataType, dict[str, Any]]] = [
    (BOOL, pa.bool_(), {"t": True, "f": False}),
    (INT2, pa.int32(), {"-32768": -32768, "32767": 32767}),
    (INT4, pa.int32(), {"-2147483648": -(2**31), "2147483647": 2**31 - 1}),
    (INT8, pa.int64(), {"-9223372036854775808": -(2**63), "9223372036854775807": 2**63 - 1}),
    (FLOAT4, pa.float32(), {"1.5": 1.5, "1e-45": 1.401298464324817e-45, "-Infinity": float("-inf")}),
    (FLOAT8, pa.float64(), {"5e-324": 5e-324, "1.7976931348623157e+308": 1.7976931348623157e308, "0.1": 0.1}),
    (numeric(10, 2), pa.decimal128(10, 2), {"-99999999.99": Decimal("-99999999.99"), "0.00": Decimal("0.00")}),
    (numeric(38, 38), pa.decimal128(38, 38), {"0." + "9" * 38: Decimal("0." + "9" * 38)}),
    (numeric(38, 0), pa.decimal128(38, 0), {"9" * 38: Decimal("9" * 38)}),
    (numeric(39, 0), pa.string(), {"9" * 39: "9" * 39}),
    (numeric(3, -2), pa.string(), {"12300": "12300"}),
    (numeric(2, 4), pa.string(), {"0.0012": "0.0012"}),
    (BARE_NUMERIC, pa.string(), {"NaN": "NaN", "1.500": "1.500", "Infinity": "Infinity", "1" * 1000: "1" * 1000}),
    (TEXT, pa.string(), {"": "", "\\N": "\\N", "a\tb\n": "a\tb\n", "🐘é": "🐘é"}),
    (BPCHAR, pa.string(), {"ab   ": "ab   "}),
    (BYTEA, pa.binary(), {"\\x": b"", "\\x00ff": b"\x00\xff", "\\xDEADBEEF": b"\xde\xad\xbe\xef"}),
    (DATE, pa.date32(), {"0001-01-01": date(1, 1, 1), "9999-12-31": date(9999, 12, 31)}),
    (TIME, pa.string(), {"24:00:00": "24:00:00", "00:00:00.000001": "00:00:00.000001"}),
    (
        TIMESTAMP,
        pa.timestamp("us"),
        {"0001-01-01 00:00:00": datetime(1, 1, 1), "2024-02-29 23:59:59.5": datetime(2024, 2, 29, 23, 59, 59, 500_000)},
    ),
    (
        TIMESTAMPTZ,
        pa.timestamp("us", "UTC"),
        {
            "2024-02-29 23:59:59.000001+00": datetime(2024, 2, 29, 23, 59, 59, 1, UTC),
            "2024-01-01 05:30:00+05:30": datetime(2024, 1, 1, tzinfo=UTC),
        },
    ),
    (UUID, pa.string(), {"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}),
    (JSON, pa.string(), {'{"a": 1,  "a": 2}': '{"a": 1,  "a": 2}'}),
    (JSONB, pa.string(), {'{"n": 1e400}': '{"n": 1e400}'}),
    (INTERVAL, pa.string(), {"1 mon 02:00:00": "1 mon 02:00:00"}),
]

MISFITS = [
    (BOOL, ["true", "", "x"]),
    (INT2, ["", "1.0", "9999999999"]),
    (INT8, ["9223372036854775808", "abc"]),
    (FLOAT8, ["", "one"]),
    (numeric(10, 2), ["NaN", "100000000.00", "1.234", ""]),
    (BYTEA, ["", "x", "\\x0", "\\xzz", "abcd", "\\y00"]),
    (DATE, ["infinity", "-infinity", "0044-03-15 BC", "12345-03-15 BC", "", "5881580-01-01", "20000-13-01"]),
    (TIMESTAMP, ["infinity", "0044-03-15 00:00:00 BC", "294247-01-01 00:00:00", "2024-01-01 00:00:00+00", ""]),
    (TIMESTAMPTZ, ["-infinity", "0001-01-01 00:00:00+00 BC", "294276-12-31 23:59:59.999999+00", "2024-01-01 00:00:00"]),
]


def texts(*values: str | None) -> pa.Array:
    return pa.array([None if value is None else value.encode() for value in values], pa.binary())


@pytest.mark.parametrize(("type", "arrow_type", "expected"), FITTING, ids=lambda value: getattr(value, "name", None))
def test_texts_become_values(type: ColumnType, arrow_type: pa.DataType, expected: dict[str, Any]) -> None:
    one = codec(type)
    assert one.arrow_type == arrow_type
    parsed = one.parse(texts(None, *expected, None))
    parsed.validate(full=True)
    assert parsed.type == arrow_type
    assert parsed.to_pylist() == [None, *expected.values(), None]


@pytest.mark.parametrize(("type", "arrow_type", "expected"), FITTING, ids=lambda value: getattr(value, "name", None))
def test_slices_and_empty_arrays(type: ColumnType, arrow_type: pa.DataType, expected: dict[str, Any]) -> None:
    one = codec(type)
    padded = texts("not a value", None, *expected, "not a value")
    assert one.parse(padded[1:-1]).to_pylist() == [None, *expected.values()]
    assert one.parse(texts()).to_pylist() == []
    assert one.parse(texts(None, None)).to_pylist() == [None, None]


@pytest.mark.parametrize(("type", "values"), MISFITS, ids=lambda value: getattr(value, "name", None))
def test_misfits_are_refused(type: ColumnType, values: list[str]) -> None:
    for value in values:
        with pytest.raises(ValueError):
            codec(type).parse(texts(None, value))


def test_nan_is_a_float() -> None:
    assert str(codec(FLOAT8).parse(texts("NaN"))[0]) == "nan"


def test_years_of_more_than_four_digits_among_others() -> None:
    moments = codec(TIMESTAMPTZ).parse(texts("294246-12-31 23:59:59.999999+00", None, "1970-01-01 00:00:01+00"))
    assert moments.cast(pa.int64()).to_pylist() == [9_223_371_244_799_999_999, None, 1_000_000]
    moments = codec(TIMESTAMP).parse(texts("10000-01-01 00:00:00.5"))
    assert moments.cast(pa.int64()).to_pylist() == [253_402_300_800_500_000]
    days = codec(DATE).parse(texts("1970-01-02", "5874897-12-31"))
    assert days.cast(pa.int32()).to_pylist() == [1, 2_145_042_905]


def test_bytes_that_are_no_text_are_refused() -> None:
    for type in (TEXT, JSONB, DATE, INT8, numeric(5, 1), BOOL):
        with pytest.raises(ValueError):
            codec(type).parse(pa.array([b"\xff\xfe"], pa.binary()))


def test_only_key_columns_are_required() -> None:
    schema = arrow_schema(table_schema({"id": INT8, "body": TEXT}))
    assert schema.names == ["id", "body"]
    assert [field.nullable for field in schema] == [False, True]
