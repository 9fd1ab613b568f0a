"""How columns are asked for, and what becomes of values that only a binary copy can show."""

from __future__ import annotations

import struct
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pytest

from penstock.decode.postgres.types.registry import codec
from penstock.model.table import Column, ColumnType
from penstock.source.postgres.copy_columns import converted, expression, is_expected
from pgoutput_messages import BOOL, DATE, FLOAT8, INT2, JSONB, TEXT, TIMESTAMP, TIMESTAMPTZ, UUID, numeric

INET = ColumnType(869, "inet")
INFINITE_DATE = 2**31 - 1
INFINITE_MOMENT = 2**63 - 1


def as_sent(since_2000: int, bits: int, epoch: int) -> int:
    """The driver adds the years from 1970 to 2000 and lets the sum wrap around."""
    half = 1 << (bits - 1)
    return (since_2000 + epoch + half) % (2 * half) - half


def test_how_columns_are_asked_for() -> None:
    assert expression(Column('a"b', INT2)) == '"a""b"'
    assert expression(Column("doc", JSONB)) == '"doc"'
    assert expression(Column("price", numeric(10, 2))) == '"price"::pg_catalog.text'
    assert expression(Column("id", UUID)) == '"id"::pg_catalog.text'
    asked = expression(Column("host", INET))
    assert asked == """CASE WHEN "host" IS DISTINCT FROM NULL THEN pg_catalog.format('%s', "host") END"""


def test_types_that_are_not_those_of_the_schema_are_seen() -> None:
    assert is_expected(Column("n", INT2), pa.int16())
    assert not is_expected(Column("n", INT2), pa.int32())
    assert is_expected(Column("doc", JSONB), pa.json_(pa.string()))
    assert is_expected(Column("host", INET), pa.string())
    assert not is_expected(Column("at", TIMESTAMP), pa.timestamp("us", "UTC"))
    assert not is_expected(Column("name", TEXT), pa.binary())


def test_values_get_the_type_that_the_stream_gives_them() -> None:
    for type, received in (
        (INT2, pa.array([1, None, -32768], pa.int16())),
        (BOOL, pa.array([True, None])),
        (JSONB, pa.ExtensionArray.from_storage(pa.json_(pa.string()), pa.array(['{"a": 1}', None]))),
        (TEXT, pa.array(["", None, "é"])),
    ):
        made, misfits = converted(Column("v", type), received)
        assert misfits is None
        assert made.type == codec(type).arrow_type
        assert made.to_pylist() == received.to_pylist()


def test_there_is_one_nan() -> None:
    negative = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0]
    made, misfits = converted(Column("v", FLOAT8), pa.array([negative, None, -0.0, 1.5]))
    assert misfits is None
    assert made.view(pa.int64()).to_pylist()[0] == 0x7FF8_0000_0000_0000
    assert made.view(pa.int64()).to_pylist()[2:] == [-(2**63), 0x3FF8_0000_0000_0000]
    assert made.null_count == 1


@pytest.mark.parametrize(
    ("since_2000", "text"),
    [
        (INFINITE_DATE, "infinity"),
        (-INFINITE_DATE - 1, "-infinity"),
        (-730_120, "0001-12-31 BC"),
        (-746_117, "0044-03-15 BC"),
    ],
)
def test_dates_that_do_not_fit(since_2000: int, text: str) -> None:
    sent = pa.array([0, None, as_sent(since_2000, 32, 10_957)], pa.int32()).cast(pa.date32())
    made, misfits = converted(Column("v", DATE), sent)
    assert misfits is not None
    assert misfits.texts == [text]
    assert misfits.rows.tolist() == [2]
    assert [value.is_valid for value in made] == [True, False, False]


@pytest.mark.parametrize(
    ("since_2000", "text"),
    [
        (INFINITE_MOMENT, "infinity"),
        (-INFINITE_MOMENT - 1, "-infinity"),
        (-730_120 * 86_400_000_000 + 86_399_250_000, "0001-12-31 23:59:59.25 BC"),
        (9_223_371_331_199_999_999, "294276-12-31 23:59:59.999999"),
    ],
)
def test_moments_that_do_not_fit(since_2000: int, text: str) -> None:
    moment = as_sent(since_2000, 64, 946_684_800_000_000)
    for type, zone in ((TIMESTAMP, ""), (TIMESTAMPTZ, "+00")):
        sent = pa.array([0, None, moment], pa.int64()).cast(codec(type).arrow_type)
        made, misfits = converted(Column("v", type), sent)
        assert made.null_count == 2
        era = " BC" if text.endswith(" BC") else ""
        shown = text.removesuffix(" BC") + ("" if "infinity" in text else zone) + era
        assert misfits is not None
        assert misfits.texts == [shown]


def test_the_first_and_the_last_that_fit() -> None:
    days = pa.array([-719_162, 2_145_042_905], pa.int32()).cast(pa.date32())
    assert converted(Column("v", DATE), days)[0].equals(days)
    moments = pa.array([-62_135_596_800_000_000, 9_223_371_244_799_999_999], pa.int64()).cast(pa.timestamp("us"))
    assert converted(Column("v", TIMESTAMP), moments)[0].equals(moments)


def test_texts_that_do_not_fit_are_shown() -> None:
    made, misfits = converted(Column("v", numeric(5, 2)), pa.array(["1.50", None, "NaN", "x"]))
    assert misfits is not None
    assert misfits.texts == ["NaN", "x"]
    assert made.to_pylist() == [Decimal("1.50"), None, None, None]


def test_a_column_that_is_wanted_as_text_is_asked_for_as_text() -> None:
    as_text = Column("v", replace(TIMESTAMP, carried_as="text"))
    assert "format('%s', \"v\")" in expression(as_text)
    assert is_expected(as_text, pa.string())
    assert converted(as_text, pa.array(["infinity"]))[0].to_pylist() == ["infinity"]
