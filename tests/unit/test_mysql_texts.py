"""Values of MySQL as text, as JSON and as Debezium's connectors have them; and texts back as values."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from penstock.decode.connect import ConnectColumn
from penstock.decode.mysql.dialect import MYSQL
from penstock.decode.mysql.types import (
    BIT,
    BLOB,
    DATE,
    DATETIME2,
    DOUBLE,
    ENUM,
    FLOAT,
    GEOMETRY,
    INT24,
    JSON,
    LONG,
    LONGLONG,
    NEWDECIMAL,
    SET,
    SHORT,
    TIME2,
    TIMESTAMP2,
    TINY,
    VARCHAR,
    YEAR,
    column_type,
)
from penstock.decode.mysql.values import from_texts
from penstock.model.table import VERBATIM, ColumnType

POINT = bytes.fromhex("E61000000101000000000000000000F03F0000000000000040")
UTF8 = "utf8mb4"


def type_of(code: int, modifier: int = -1, **more: Any) -> ColumnType:
    return column_type(code, modifier, **more)


# Type, what a SELECT of the copy gives, its text, its JSON, its JSON for faucet's readers (None: the same)
CASES: list[tuple[ColumnType, bytes, str, Any, Any]] = [
    (type_of(TINY), b"-128", "-128", -128, None),
    (type_of(LONGLONG, unsigned=True), b"18446744073709551615", "18446744073709551615", 2**64 - 1, None),
    (type_of(NEWDECIMAL, 12 << 8 | 8), b"0.00000001", "0.00000001", "0.00000001", None),
    (type_of(NEWDECIMAL, 9 << 8 | 2), b"-1.50", "-1.50", "-1.50", None),
    (type_of(NEWDECIMAL, 65 << 8 | 30), b"1." + b"0" * 30, "1." + "0" * 30, "1." + "0" * 30, None),
    (type_of(FLOAT), b"0.10000000149011612", "0.1", 0.1, None),
    (type_of(DOUBLE), b"1.7976931348623157e308", "1.7976931348623157e308", 1.7976931348623157e308, None),
    (type_of(DOUBLE), b"-0", "-0", -0.0, None),
    (type_of(YEAR), b"2024", "2024", 2024, None),
    (type_of(BIT, 10), b"513", "513", 513, None),
    (type_of(DATE), b"2024-02-29", "2024-02-29", "2024-02-29", None),
    (type_of(DATE), b"0000-00-00", "0000-00-00", "0000-00-00", None),
    (type_of(DATETIME2, 3), b"0001-01-01 02:03:04.500", "0001-01-01 02:03:04.500", "0001-01-01T02:03:04.500", 1),
    (type_of(DATETIME2, 0), b"2024-00-10 00:00:00", "2024-00-10 00:00:00", "2024-00-10 00:00:00", 1),
    (type_of(TIMESTAMP2, 0), b"2038-01-19 03:14:07", "2038-01-19 03:14:07", "2038-01-19T03:14:07Z", 1),
    (type_of(TIME2, 3), b"-838:59:58.900", "-838:59:58.900", "-838:59:58.900", None),
    (type_of(ENUM, 1, charset=UTF8, labels=("a", "é")), "é".encode(), "é", "é", None),
    (type_of(SET, 1, charset=UTF8, labels=("x", "y")), b"x,y", "x,y", "x,y", None),
    (type_of(VARCHAR, 90, charset=UTF8), b'tab\t"', 'tab\t"', 'tab\t"', None),
    (type_of(JSON, 4), b'{"a": [1, null]}', '{"a": [1, null]}', {"a": [1, None]}, None),
    (type_of(BLOB, 2, charset="binary"), b"\x00\xff", "00FF", "AP8=", None),
    (type_of(GEOMETRY, 4), POINT, POINT.hex().upper(), base64.b64encode(POINT).decode(), None),
]


@pytest.mark.parametrize(("type", "given", "text", "value", "raw"), CASES)
def test_a_value_has_one_text_which_is_rendered_and_read_back(
    type: ColumnType, given: bytes, text: str, value: Any, raw: Any
) -> None:
    selected = pa.array([given, None], pa.binary())
    carried = from_texts(replace(type, carried_as=VERBATIM), selected)
    assert carried.values.to_pylist() == [text, None]
    assert not len(carried.misfits)
    texts = carried.values
    made = MYSQL.json_texts(type, texts).to_pylist()
    assert repr(json.loads(made[0])) == repr(value)
    assert made[1] is None
    plain = json.loads(MYSQL.json_texts(type, texts, raw=True)[0].as_py())
    assert repr(plain) == repr(text if raw else value)
    assert json.loads(MYSQL.json_texts(replace(type, carried_as="text"), texts)[0].as_py()) == text
    typed, misfits = MYSQL.fitted(type, texts)
    expected = from_texts(type, selected)
    assert typed.equals(expected.values)
    assert misfits.tolist() == [bool(len(expected.misfits)), False]


def test_texts_of_another_database_are_read_and_one_that_fits_nothing_is_told() -> None:
    blob, moment = type_of(BLOB, 2, charset="binary"), type_of(TIMESTAMP2, 6)
    assert MYSQL.parsed(blob, pa.array(["\\x00ff", None])).to_pylist() == [b"\x00\xff", None]
    assert str(MYSQL.parsed(moment, pa.array(["2024-01-02 03:04:05.5+00"]))[0]) == "2024-01-02 03:04:05.500000+00:00"
    for type, text in ((blob, "zz"), (type_of(LONG), "x"), (type_of(DATE), "0000-00-00")):
        with pytest.raises(ValueError, match="does not fit"):
            MYSQL.parsed(type, pa.array([text]))
    values, misfits = MYSQL.fitted(type_of(LONG), pa.array(["1", "x", "3", None]))
    assert (values.to_pylist(), misfits.tolist()) == ([1, None, 3, None], [False, True, False, False])
    assert MYSQL.parsed(MYSQL.own_type("bool"), pa.array(["t", "f", None])).to_pylist() == [True, False, None]


# Type, text, Connect's name of the type, its physical type, and the value
CONNECT: list[tuple[ColumnType, str, str, str, Any]] = [
    (type_of(TINY, unsigned=True), "255", "", "int16", 255),
    (type_of(SHORT, unsigned=True), "65535", "", "int32", 65535),
    (type_of(INT24), "-8388608", "", "int32", -8388608),
    (type_of(LONG), "7", "", "int32", 7),
    (type_of(LONG, unsigned=True), "4294967295", "", "int64", 2**32 - 1),
    (type_of(LONGLONG), "-1", "", "int64", -1),
    (type_of(LONGLONG, unsigned=True), str(2**63 - 1), "", "int64", 2**63 - 1),
    (type_of(FLOAT), "0.5", "", "float", 0.5),
    (type_of(DOUBLE), "1e300", "", "double", 1e300),
    (type_of(NEWDECIMAL, 9 << 8 | 2), "-1.50", "org.apache.kafka.connect.data.Decimal", "bytes", b"\xff\x6a"),
    (type_of(BIT, 1), "1", "", "boolean", True),
    (type_of(BIT, 10), "513", "io.debezium.data.Bits", "bytes", b"\x01\x02"),
    (type_of(YEAR), "2024", "io.debezium.time.Year", "int32", 2024),
    (type_of(DATE), "1970-01-11", "io.debezium.time.Date", "int32", 10),
    (type_of(DATE), "0000-00-00", "io.debezium.time.Date", "int32", None),
    (type_of(DATETIME2, 3), "1970-01-01 00:00:01.500", "io.debezium.time.Timestamp", "int64", 1500),
    (type_of(DATETIME2, 3), "1969-12-31 23:59:59.999", "io.debezium.time.Timestamp", "int64", -1),
    (type_of(DATETIME2, 6), "1970-01-01 00:00:01.000001", "io.debezium.time.MicroTimestamp", "int64", 1000001),
    (
        type_of(TIMESTAMP2, 3),
        "2024-01-02 03:04:05.600",
        "io.debezium.time.ZonedTimestamp",
        "string",
        "2024-01-02T03:04:05.600Z",
    ),
    (type_of(TIMESTAMP2, 0), "0000-00-00 00:00:00", "io.debezium.time.ZonedTimestamp", "string", None),
    (type_of(TIME2, 2), "-838:59:58.50", "io.debezium.time.MicroTime", "int64", -3020398500000),
    (type_of(JSON, 4), '{"a": 1}', "io.debezium.data.Json", "string", '{"a": 1}'),
    (type_of(ENUM, 1, charset=UTF8, labels=("a", "b")), "b", "io.debezium.data.Enum", "string", "b"),
    (type_of(SET, 1, charset=UTF8, labels=("x", "y")), "x,y", "io.debezium.data.EnumSet", "string", "x,y"),
    (type_of(VARCHAR, 90, charset=UTF8), "é", "", "string", "é"),
    (type_of(BLOB, 2, charset="binary"), "00FF", "", "bytes", b"\x00\xff"),
    (
        type_of(GEOMETRY, 4),
        POINT.hex(),
        "io.debezium.data.geometry.Geometry",
        "struct",
        {"wkb": POINT[4:], "srid": 4326},
    ),
]


@pytest.mark.parametrize(("type", "text", "name", "physical", "value"), CONNECT)
def test_a_column_is_what_debezium_documents(type: ColumnType, text: str, name: str, physical: str, value: Any) -> None:
    made = MYSQL.connect_column(type, pa.array([text, None], pa.string()))
    assert (made.type.name, made.type.type) == (name, physical)
    assert made.values.type == made.type.arrow
    assert made.values.to_pylist() == [value, None]
    assert not made.failed.any()
    assert MYSQL.connect_column(type, pa.array([], pa.string())).type == made.type


def test_a_number_that_debezium_has_no_room_for_has_no_form() -> None:
    made: ConnectColumn = MYSQL.connect_column(type_of(LONGLONG, unsigned=True), pa.array([str(2**63), "1"]))
    assert (made.values.to_pylist(), made.failed.tolist()) == ([None, 1], [True, False])
    labels = MYSQL.connect_column(type_of(ENUM, 1, charset=UTF8, labels=("a", "b")), pa.array(["a"])).type
    assert labels.parameters == (("allowed", "a,b"),)
