"""Texts as Postgres writes them, and the values that they become; texts that fit no value of the column's type."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.decode.postgres.fitting import fitted
from penstock.decode.postgres.types.choices import held_as
from penstock.decode.postgres.types.registry import codec
from penstock.decode.schema import arrow_schema
from penstock.destinations.iceberg.type_map import ICEBERG_TYPES
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
OID = ColumnType(26, "oid")
HSTORE = ColumnType(50_000, "hstore")


def lake(type: ColumnType) -> ColumnType:
    """As an Iceberg table holds it."""
    return replace(type, held_as=held_as(type, ICEBERG_TYPES))


LAKE_NUMERIC = lake(BARE_NUMERIC)


def array(element: ColumnType, delimiter: str = ",") -> ColumnType:
    return ColumnType(50_001, f"_{element.name}", kind="array", element=element, delimiter=delimiter)


PAIR = ColumnType(50_002, "pair", kind="composite", fields=(("a", INT4), ("b", array(TEXT))))

FITTING: list[tuple[ColumnType, pa.DataType, dict[str, Any]]] = [
    (BOOL, pa.bool_(), {"t": True, "f": False}),
    (INT2, pa.int16(), {"-32768": -32768, "32767": 32767}),
    (lake(INT2), pa.int32(), {"-32768": -32768, "32767": 32767}),
    (INT4, pa.int32(), {"-2147483648": -(2**31), "2147483647": 2**31 - 1}),
    (INT8, pa.int64(), {"-9223372036854775808": -(2**63), "9223372036854775807": 2**63 - 1}),
    (FLOAT4, pa.float32(), {"1.5": 1.5, "1e-45": 1.401298464324817e-45, "-Infinity": float("-inf")}),
    (FLOAT8, pa.float64(), {"5e-324": 5e-324, "1.7976931348623157e+308": 1.7976931348623157e308, "0.1": 0.1}),
    (numeric(10, 2), pa.decimal128(10, 2), {"-99999999.99": Decimal("-99999999.99"), "0.00": Decimal("0.00")}),
    (numeric(38, 38), pa.decimal128(38, 38), {"0." + "9" * 38: Decimal("0." + "9" * 38)}),
    (numeric(38, 0), pa.decimal128(38, 0), {"9" * 38: Decimal("9" * 38)}),
    (numeric(39, 0), pa.decimal256(39, 0), {"9" * 39: Decimal("9" * 39), "-0": Decimal(0)}),
    (numeric(76, 20), pa.decimal256(76, 20), {"9" * 56 + "." + "9" * 20: Decimal("9" * 56 + "." + "9" * 20)}),
    (
        numeric(60, 40),
        pa.decimal256(60, 40),
        {"1.5" + "0" * 39: Decimal("1.5"), "0." + "1" * 40: Decimal("." + "1" * 40)},
    ),
    (numeric(77, 0), pa.string(), {"9" * 77: "9" * 77, "NaN": "NaN"}),
    (BARE_NUMERIC, pa.string(), {"NaN": "NaN", "1.500": "1.500", "1" * 1000: "1" * 1000}),
    (lake(numeric(39, 0)), pa.decimal128(38, 0), {"9" * 38: Decimal("9" * 38), "-0": Decimal(0)}),
    (lake(numeric(60, 40)), pa.decimal128(38, 18), {"1.5" + "0" * 39: Decimal("1.5")}),
    (lake(numeric(60, 10)), pa.decimal128(38, 10), {"1.5" + "0" * 9: Decimal("1.5")}),
    (lake(numeric(10, 2)), pa.decimal128(10, 2), {"1.25": Decimal("1.25")}),
    (numeric(3, -2), pa.decimal128(5, 0), {"12300": Decimal(12300)}),
    (numeric(2, 4), pa.decimal128(4, 4), {"0.0012": Decimal("0.0012")}),
    (
        LAKE_NUMERIC,
        pa.decimal128(38, 18),
        {
            "1.500": Decimal("1.5"),
            "-0.000": Decimal(0),
            "0." + "0" * 900: Decimal(0),
            "9" * 20 + "." + "9" * 18: Decimal("9" * 20 + "." + "9" * 18),
            "12" + "." + "5" + "0" * 999: Decimal("12.5"),
        },
    ),
    (
        replace(BARE_NUMERIC, carried_as="decimal(30,2)"),
        pa.decimal128(30, 2),
        {"1": Decimal(1), "1.20": Decimal("1.2")},
    ),
    (replace(BARE_NUMERIC, carried_as="text"), pa.string(), {"NaN": "NaN", "1.500": "1.500", "1" * 1000: "1" * 1000}),
    (OID, pa.int64(), {"4294967295": 4294967295}),
    (array(INT4), pa.list_(pa.int32()), {"{}": [], "{1,NULL,-3}": [1, None, -3]}),
    (
        array(TEXT),
        pa.list_(pa.string()),
        {'{a,"b c",NULL,"NULL","","\\"q\\"","{x}","é,\\\\"}': ["a", "b c", None, "NULL", "", '"q"', "{x}", "é,\\"]},
    ),
    (array(ColumnType(603, "box"), ";"), pa.list_(pa.string()), {"{(1,1),(0,0);NULL}": ["(1,1),(0,0)", None]}),
    (
        PAIR,
        pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))]),
        {"(,)": {"a": None, "b": None}, '(1,"{x,""y z""}")': {"a": 1, "b": ["x", "y z"]}, "(2,{})": {"a": 2, "b": []}},
    ),
    (
        array(PAIR),
        pa.list_(pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])),
        {'{"(1,\\"{\\"\\"y z\\"\\"}\\")",NULL}': [{"a": 1, "b": ["y z"]}, None]},
    ),
    (
        HSTORE,
        pa.map_(pa.string(), pa.string()),
        {"": [], '"a"=>"1", "b c"=>NULL, "\\"q\\""=>"\\\\, x=>"': [("a", "1"), ("b c", None), ('"q"', "\\, x=>")]},
    ),
    (TEXT, pa.string(), {"": "", "\\N": "\\N", "a\tb\n": "a\tb\n", "🐘é": "🐘é"}),
    (BPCHAR, pa.string(), {"ab   ": "ab   "}),
    (BYTEA, pa.binary(), {"\\x": b"", "\\x00ff": b"\x00\xff", "\\xDEADBEEF": b"\xde\xad\xbe\xef"}),
    (DATE, pa.date32(), {"0001-01-01": date(1, 1, 1), "9999-12-31": date(9999, 12, 31)}),
    (TIME, pa.time64("us"), {"23:59:59.999999": time(23, 59, 59, 999_999), "00:00:00.5": time(0, 0, 0, 500_000)}),
    (lake(TIME), pa.string(), {"24:00:00": "24:00:00", "00:00:00.000001": "00:00:00.000001"}),
    (array(TIME), pa.list_(pa.time64("us")), {"{12:34:56,NULL}": [time(12, 34, 56), None]}),
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
    (INT2, ["", "1.0", "32768"]),
    (TIME, ["24:00:00", "12:00:00+00", "", "x"]),
    (INT8, ["9223372036854775808", "abc"]),
    (FLOAT8, ["", "one"]),
    (numeric(10, 2), ["NaN", "100000000.00", "1.234", ""]),
    (numeric(39, 0), ["9" * 40, "1" + "0" * 39, "NaN", "1" * 80, "0.5"]),
    (lake(numeric(39, 0)), ["9" * 39, "1" + "0" * 38, "NaN"]),
    (LAKE_NUMERIC, ["NaN", "Infinity", "-Infinity", "1" * 21, "1" * 1000, "0." + "0" * 18 + "1", "1" * 38 + ".5"]),
    (array(INT4), ["", "1", "{1", "{{1,2},{3,4}}", "[0:1]={1,2}", "{x}", "{1,}", "{1,2,3}}", '{"1"2}']),
    (array(TEXT), ['{"a"', '{"a"b}', "{{a}}", "[2:2]={a}"]),
    (PAIR, ["", "(1)", "(1,{},3)", "(x,{})", "(1,{{a}})", "(1,{}) "]),
    (HSTORE, ["a=>1", '"a"=>1', '"a"', '"a"=>"b" "c"=>"d"']),
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


@pytest.mark.parametrize(("type", "values"), MISFITS, ids=lambda value: getattr(value, "name", None))
def test_misfits_among_others_are_found(type: ColumnType, values: list[str]) -> None:
    fit = next(list(expected) for one, _, expected in FITTING if one == type)
    mixed = [text for value in values for text in (value, None, *fit)]
    made, misfits = fitted(codec(type), texts(*mixed))
    made.validate(full=True)
    assert misfits.tolist() == [text in values for text in mixed]
    assert made.drop_null().to_pylist() == codec(type).parse(texts(*fit * len(values))).to_pylist()


@given(st.lists(st.decimals(allow_nan=False, allow_infinity=False, places=20), min_size=1))
def test_numbers_are_exact_or_misfits(numbers: list[Decimal]) -> None:
    """Arrow reads a number of more than 38 digits as another one."""
    written = [f"{number:f}" for number in numbers]
    made, misfits = fitted(codec(LAKE_NUMERIC), texts(*written))
    for number, value, misfit in zip(numbers, made.to_pylist(), misfits.tolist(), strict=True):
        fits = abs(number) < 10**20 and number == number.quantize(Decimal("1e-18"), context=Context(prec=999))
        assert misfit != fits
        assert value == (number if fits else None)


@given(
    st.integers(1, 80).flatmap(lambda digits: st.integers(-(10**digits), 10**digits)),
    st.sampled_from((38, 76)),
    st.integers(0, 38),
    st.integers(0, 20),
)
def test_a_number_is_read_exactly_or_not_at_all(digits: int, precision: int, scale: int, places: int) -> None:
    """Arrow moves the point of a short number beyond its decimal's digits, and reads another number, too."""
    number = Decimal(digits).scaleb(-places, context=Context(prec=999))
    fits = abs(number) < 10 ** (precision - scale) and number == number.quantize(
        Decimal(1).scaleb(-scale), context=Context(prec=999)
    )
    try:
        made = codec(numeric(precision, scale)).parse(texts(f"{number:f}"))
    except ValueError:
        assert not fits
    else:
        assert made.to_pylist() == [number]


def test_a_wide_whole_number_does_not_become_another() -> None:
    with pytest.raises(ValueError):
        codec(LAKE_NUMERIC).parse(texts("-915452358018736951208399663102"))


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
