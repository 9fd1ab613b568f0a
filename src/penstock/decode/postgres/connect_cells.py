"""Postgres' own text of a value as Debezium's Postgres connector has it, with its default settings.

The connector's mapping is documented under "Data type mappings"; docs/events.md lists where this differs. A type that
the connector leaves out of its records (composites, lines, boxes) is its text here: nothing is left out.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.connect import ConnectColumn, ConnectType
from penstock.decode.postgres.fitting import fitted
from penstock.decode.postgres.json_cells import json_texts
from penstock.decode.postgres.types import numeric
from penstock.decode.postgres.types.array import list_codec
from penstock.decode.postgres.types.codec import TypeCodec
from penstock.decode.postgres.types.registry import codec
from penstock.model.table import ColumnType

_HEADER = 4
_DEFAULT_DIGITS = 6
_MILLISECONDS = 3  # digits up to which Debezium counts milliseconds
_DAY, _MONTH = 86_400_000_000, 2_629_800_000_000  # µs; a month is the twelfth of 365.25 days
# What the driver makes of `infinity` and `-infinity`, in µs
_FOREVER, _NEVER = 9_223_372_036_825_200_000, -9_223_372_036_832_400_000

_STRING = ConnectType(pa.string(), "string")
_BYTES = ConnectType(pa.binary(), "bytes")
_VARIABLE = ConnectType(
    pa.struct([pa.field("scale", pa.int32()), pa.field("value", pa.binary())]),
    "struct",
    "io.debezium.data.VariableScaleDecimal",
    fields=(("scale", ConnectType(pa.int32(), "int32"), False), ("value", _BYTES, False)),
    doc="Variable scaled decimal",
)
_DOUBLE = ConnectType(pa.float64(), "double")
_POINT = ConnectType(
    pa.struct(
        [
            pa.field("x", pa.float64()),
            pa.field("y", pa.float64()),
            pa.field("wkb", pa.binary()),
            pa.field("srid", pa.int32()),
        ]
    ),
    "struct",
    "io.debezium.data.geometry.Point",
    fields=(
        ("x", _DOUBLE, False),
        ("y", _DOUBLE, False),
        ("wkb", _BYTES, True),
        ("srid", ConnectType(pa.int32(), "int32"), True),
    ),
    doc="Geometry (POINT)",
)
_PLAIN = {
    16: ConnectType(pa.bool_(), "boolean"),
    21: ConnectType(pa.int16(), "int16"),
    23: ConnectType(pa.int32(), "int32"),
    20: ConnectType(pa.int64(), "int64"),
    26: ConnectType(pa.int64(), "int64"),
    700: ConnectType(pa.float32(), "float"),
    701: _DOUBLE,
    17: _BYTES,
}
_NAMED = {
    2950: "io.debezium.data.Uuid",
    114: "io.debezium.data.Json",
    3802: "io.debezium.data.Json",
    142: "io.debezium.data.Xml",
    3614: "io.debezium.data.Tsvector",
}
_OF_EXTENSIONS = {"ltree": "io.debezium.data.Ltree"}
_NUMERIC, _DATE, _TIME, _TIMETZ, _TIMESTAMP, _TIMESTAMPTZ, _INTERVAL = 1700, 1082, 1083, 1266, 1114, 1184, 1186
_BIT, _VARBIT, _POINT_OID, _MONEY = 1560, 1562, 600, 790
_INTERVAL_PART = re.compile(r"(-?\+?\d+) (year|mon|day)s?|([-+]?)(\d+):(\d\d):(\d\d(?:\.\d+)?)")


@lru_cache(maxsize=4096)
def _codec(type: ColumnType) -> tuple[ConnectType, TypeCodec]:
    """Return a column's Connect type, and the codec that makes its values of texts."""
    if type.carried_as == "text":
        return _STRING, codec(type)
    if type.kind == "array" and type.element is not None:
        kind, element = _codec(type.element)
        made = list_codec(element, type.delimiter)
        return ConnectType(made.arrow_type, "array", items=kind), made
    if type.kind == "enum":
        return _named("io.debezium.data.Enum")
    if type.kind == "base" and type.name == "hstore":
        return ConnectType(pa.string(), "string", "io.debezium.data.Json"), _each(pa.string(), _hstore)
    if type.kind != "base":
        return _STRING, codec(ColumnType(25, "text"))
    if type.name in _OF_EXTENSIONS:
        return _named(_OF_EXTENSIONS[type.name])
    return _of_base(type)


def connect_column(type: ColumnType, texts: pa.Array) -> ConnectColumn:
    """Return the column as Debezium has it. `texts` is a string array."""
    kind, made = _codec(type)
    values, failed = fitted(made, texts.cast(pa.binary()))
    return ConnectColumn(kind, values, failed)


def _of_base(type: ColumnType) -> tuple[ConnectType, TypeCodec]:
    oid = type.oid
    if oid in _PLAIN:
        kind = _PLAIN[oid]
        made = codec(type)
        return kind, made if made.arrow_type == kind.arrow else _cast(made, kind.arrow)
    if oid in _NAMED:
        return _named(_NAMED[oid])
    if oid == _NUMERIC:
        return _numeric(type)
    if oid in (_DATE, _TIME, _TIMETZ, _TIMESTAMP, _TIMESTAMPTZ, _INTERVAL):
        return _temporal(type)
    if oid == _POINT_OID:
        return _POINT, _each(_POINT.arrow, _point)
    if oid == _BIT and type.modifier == 1:
        return _PLAIN[16], _each(pa.bool_(), lambda text: text == "1")
    if oid in (_BIT, _VARBIT):
        length = str(type.modifier if type.modifier > 0 else 2**31 - 1)
        kind = ConnectType(pa.binary(), "bytes", "io.debezium.data.Bits", parameters=(("length", length),))
        return kind, _each(pa.binary(), _bits)
    if oid == _MONEY:
        return _decimal((("scale", "2"),)), _each(pa.binary(), lambda text: _unscaled(_money(text), 2))
    return _STRING, codec(ColumnType(25, "text"))


def _named(name: str) -> tuple[ConnectType, TypeCodec]:
    return ConnectType(pa.string(), "string", name), codec(ColumnType(25, "text"))


def _decimal(parameters: tuple[tuple[str, str], ...]) -> ConnectType:
    return ConnectType(pa.binary(), "bytes", "org.apache.kafka.connect.data.Decimal", parameters=parameters)


def _numeric(type: ColumnType) -> tuple[ConnectType, TypeCodec]:
    if type.modifier < _HEADER:
        return _VARIABLE, _each(_VARIABLE.arrow, _variable)
    precision, scale = numeric.precision_and_scale(type.modifier)
    kind = _decimal((("scale", str(scale)), ("connect.decimal.precision", str(precision))))
    if not 0 <= scale <= precision <= numeric.NARROW:
        return kind, _each(pa.binary(), lambda text: _unscaled(text, scale))
    return kind, _fixed_decimals(numeric.codec(type))


def _fixed_decimals(made: TypeCodec) -> TypeCodec:
    """Unscaled numbers in as few bytes as they take, the highest first: by numpy, not one by one."""

    def parse(texts: pa.Array) -> pa.Array:
        decimals = made.parse(texts)
        raw = np.frombuffer(pc.fill_null(decimals, 0).buffers()[1], np.uint8)[: 16 * len(texts)].reshape(-1, 16)[
            :, ::-1
        ]
        sign = raw[:, :1] & 0x80
        fill = np.where(sign != 0, 0xFF, 0).astype(np.uint8)
        # A leading byte can go if it only repeats the sign, and the next byte has that sign too.
        idle = (raw[:, :-1] == fill) & ((raw[:, 1:] & 0x80) == sign)
        lead = np.cumprod(idle, axis=1).sum(axis=1)
        packed = raw[np.arange(16) >= lead[:, None]]
        offsets = np.concatenate([[0], np.cumsum(16 - lead)]).astype(np.int32)
        values = pa.Array.from_buffers(pa.binary(), len(texts), [None, pa.py_buffer(offsets), pa.py_buffer(packed)])
        there = decimals.is_valid()
        return values if not decimals.null_count else pc.if_else(there, values, pa.scalar(None, pa.binary()))

    return TypeCodec(pa.binary(), parse, made.misfits)


def _temporal(type: ColumnType) -> tuple[ConnectType, TypeCodec]:
    digits = type.modifier if type.modifier >= 0 else _DEFAULT_DIGITS
    coarse = digits <= _MILLISECONDS
    if type.oid == _DATE:
        return ConnectType(pa.int32(), "int32", "io.debezium.time.Date"), _cast(codec(type), pa.int32())
    if type.oid == _TIMESTAMP:
        kind = "io.debezium.time.Timestamp" if coarse else "io.debezium.time.MicroTimestamp"
        return ConnectType(pa.int64(), "int64", kind), _moments(1000 if coarse else 1)
    if type.oid == _TIME:
        made = _each(pa.int64(), lambda text: _time(text) // (1000 if coarse else 1))
        if coarse:
            return ConnectType(pa.int32(), "int32", "io.debezium.time.Time"), _cast(made, pa.int32())
        return ConnectType(pa.int64(), "int64", "io.debezium.time.MicroTime"), made
    if type.oid == _TIMETZ:
        return ConnectType(pa.string(), "string", "io.debezium.time.ZonedTime"), _each(pa.string(), _zoned_time)
    if type.oid == _TIMESTAMPTZ:
        return ConnectType(pa.string(), "string", "io.debezium.time.ZonedTimestamp"), _zoned_moments(digits)
    return ConnectType(pa.int64(), "int64", "io.debezium.time.MicroDuration"), _each(pa.int64(), _duration)


def _moments(unit: int) -> TypeCodec:
    plain = codec(ColumnType(_TIMESTAMP, "timestamp"))

    def parse(texts: pa.Array) -> pa.Array:
        strings = texts.cast(pa.string())
        forever, never = pc.equal(strings, "infinity"), pc.equal(strings, "-infinity")
        if pc.any(pc.or_(forever, never)).as_py():
            usual = pc.if_else(pc.or_(forever, never), pa.scalar(None, pa.binary()), texts)
            values = plain.parse(usual).cast(pa.int64())
            values = pc.if_else(forever, _FOREVER, pc.if_else(never, _NEVER, values))
        else:
            values = plain.parse(texts).cast(pa.int64())
        return values if unit == 1 else pa.array(np.asarray(pc.fill_null(values, 0)) // unit, mask=_nulls(values))

    return TypeCodec(pa.int64(), parse)


def _nulls(values: pa.Array) -> Any:
    return np.asarray(values.is_null()) if values.null_count else None


def _zoned_moments(digits: int) -> TypeCodec:
    """`2026-01-02 03:04:05.5+00` as `2026-01-02T03:04:05.500000Z`: with the digits that the column is declared with."""
    plain = codec(ColumnType(_TIMESTAMPTZ, "timestamptz"))

    def parse(texts: pa.Array) -> pa.Array:
        strings = texts.cast(pa.string())
        odd = pc.or_(pc.equal(strings, "infinity"), pc.equal(strings, "-infinity"))
        usual = pc.if_else(odd, pa.scalar(None, pa.binary()), texts)
        numbers = plain.parse(usual).cast(pa.int64())
        if numbers.null_count < len(numbers) and pc.max(numbers).as_py() >= 253_402_300_800_000_000:
            raise ValueError("a year after 9999")
        written = numbers.cast(pa.timestamp("us")).cast(pa.string())
        written = pc.binary_replace_slice(written, 10, 11, "T")
        if digits < _DEFAULT_DIGITS:
            written = pc.utf8_slice_codeunits(written, 0, 19 + (digits + 1 if digits else 0))
        written = pc.binary_join_element_wise(written, "Z", "")
        return pc.if_else(odd, strings, written)

    return TypeCodec(pa.string(), parse)


def _each(arrow_type: pa.DataType, convert: Callable[[str], Any]) -> TypeCodec:
    """For types that are rare: value by value, each distinct one once."""

    def parse(texts: pa.Array) -> pa.Array:
        encoded = texts.dictionary_encode()
        made = [convert(text.decode()) for text in encoded.dictionary.to_pylist()]
        return pa.array(made, arrow_type).take(encoded.indices)

    return TypeCodec(arrow_type, parse)


def _cast(made: TypeCodec, arrow_type: pa.DataType) -> TypeCodec:
    return TypeCodec(arrow_type, lambda texts: made.parse(texts).cast(arrow_type), made.misfits)


def _unscaled(text: str, scale: int) -> bytes:
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
    whole, _, fraction = digits.partition(".")
    if len(fraction.rstrip("0")) > max(scale, 0) or not (whole + fraction).isdigit():
        raise ValueError(f"{text} has no scale of {scale}")
    number = int(whole) // 10 ** (-scale) if scale < 0 else int(whole + fraction.ljust(scale, "0")[:scale])
    return _minimal(sign * number)


def _minimal(number: int) -> bytes:
    """Return two's complement in as few bytes as it takes, as Java's BigInteger writes it."""
    bits = number.bit_length() if number >= 0 else (number + 1).bit_length()
    return number.to_bytes(bits // 8 + 1, "big", signed=True)


def _variable(text: str) -> dict[str, Any]:
    _, _, fraction = text.partition(".")
    return {"scale": len(fraction), "value": _unscaled(text, len(fraction))}


def _money(text: str) -> str:
    number = re.sub(r"[^0-9.\-]", "", text)
    return f"-{number.strip('-')}" if text.startswith(("-", "(")) else number


def _time(text: str) -> int:
    """µs since midnight."""
    hours, minutes, seconds = text.split(":")
    whole, _, fraction = seconds.partition(".")
    return ((int(hours) * 60 + int(minutes)) * 60 + int(whole)) * 1_000_000 + int(fraction.ljust(6, "0"))


def _zoned_time(text: str) -> str:
    """Write in UTC, as ISO 8601 writes it."""
    found = re.fullmatch(r"([0-9:.]+)([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?", text)
    if found is None:
        raise ValueError(f"{text} is no time with a zone")
    offset = int(found[3]) * 3600 + int(found[4] or 0) * 60 + int(found[5] or 0)
    moment = (_time(found[1]) - (offset if found[2] == "+" else -offset) * 1_000_000) % _DAY
    seconds, fraction = divmod(moment, 1_000_000)
    written = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{written}.{fraction:06}".rstrip("0") + "Z" if fraction else f"{written}Z"


def _duration(text: str) -> int:
    total, end = 0, 0
    for part in _INTERVAL_PART.finditer(text):
        number, unit, sign, hours, minutes, seconds = part.groups()
        if unit:
            total += int(number) * {"year": 12 * _MONTH, "mon": _MONTH, "day": _DAY}[unit]
        else:
            total += (-1 if sign == "-" else 1) * _time(f"{hours}:{minutes}:{seconds}")
        end = part.end()
    if end != len(text):
        raise ValueError(f"{text} is no interval of fixed length")
    return total


def _bits(text: str) -> bytes:
    """Return the bits as bytes, the lowest bit first."""
    return int(text or "0", 2).to_bytes(-(-len(text) // 8), "little")


def _point(text: str) -> dict[str, Any]:
    x, y = (float(part) for part in text.strip("()").split(","))
    return {"x": x, "y": y, "wkb": b"\x01" + struct.pack("<Idd", 1, x, y), "srid": None}


def _hstore(text: str) -> str:
    written: str = json_texts(ColumnType(16384, "hstore"), pa.array([text]))[0].as_py()
    return written
