"""MySQL's own text of a value (`texts.py`) as Debezium's MySQL and MariaDB connectors have it, with default settings.

The mapping is documented under "Data type mappings"; docs/events.md lists where this differs. Impossible dates are
null, as documented there; of a key column, which cannot be null, they have no form.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.connect import ConnectColumn, ConnectType
from penstock.decode.mysql.json_cells import NO_DATE, iso_moments
from penstock.decode.mysql.texts import octets
from penstock.decode.mysql.types import (
    BIT,
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
    YEAR,
    arrow_type,
    is_unsigned,
)
from penstock.decode.mysql.values import from_written
from penstock.model.table import ColumnType

_STRING = ConnectType(pa.string(), "string")
_BYTES = ConnectType(pa.binary(), "bytes")
_INT32 = ConnectType(pa.int32(), "int32")
_WIDTHS = {TINY: 16, SHORT: 16, INT24: 32, LONG: 32, LONGLONG: 64}
_WIDTHS_UNSIGNED = {TINY: 16, SHORT: 32, INT24: 32, LONG: 64, LONGLONG: 64}
_WHOLE = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
_MILLISECONDS = 3  # digits up to which Debezium counts milliseconds
_GEOMETRY = ConnectType(
    pa.struct([pa.field("wkb", pa.binary()), pa.field("srid", pa.int32())]),
    "struct",
    "io.debezium.data.geometry.Geometry",
    fields=(("wkb", _BYTES, False), ("srid", _INT32, True)),
    doc="Geometry",
)
_EMPTY_GEOMETRY = 4  # bytes of its number of a reference system, before the geometry


def connect_type(type: ColumnType) -> ConnectType:
    code, digits = type.oid, max(type.modifier, 0)
    if type.carried_as == "text":
        return _STRING
    if code in _WIDTHS:
        width = (_WIDTHS_UNSIGNED if is_unsigned(type) else _WIDTHS)[code]
        return ConnectType(_WHOLE[width], f"int{width}")
    if code == BIT:
        if type.modifier == 1:
            return ConnectType(pa.bool_(), "boolean")
        return ConnectType(pa.binary(), "bytes", "io.debezium.data.Bits", parameters=(("length", str(type.modifier)),))
    if code == NEWDECIMAL:
        parameters = (("scale", str(digits & 255)), ("connect.decimal.precision", str(digits >> 8)))
        return ConnectType(pa.binary(), "bytes", "org.apache.kafka.connect.data.Decimal", parameters=parameters)
    if code == DATETIME2:
        name = "io.debezium.time.Timestamp" if digits <= _MILLISECONDS else "io.debezium.time.MicroTimestamp"
        return ConnectType(pa.int64(), "int64", name)
    if code in (ENUM, SET):
        name = "io.debezium.data.Enum" if code == ENUM else "io.debezium.data.EnumSet"
        return ConnectType(pa.string(), "string", name, parameters=(("allowed", ",".join(type.labels)),))
    return _PLAIN.get(code) or (_BYTES if pa.types.is_binary(arrow_type(type)) else _STRING)


_PLAIN = {
    FLOAT: ConnectType(pa.float32(), "float"),
    DOUBLE: ConnectType(pa.float64(), "double"),
    YEAR: ConnectType(pa.int32(), "int32", "io.debezium.time.Year"),
    DATE: ConnectType(pa.int32(), "int32", "io.debezium.time.Date"),
    TIMESTAMP2: ConnectType(pa.string(), "string", "io.debezium.time.ZonedTimestamp"),
    TIME2: ConnectType(pa.int64(), "int64", "io.debezium.time.MicroTime"),
    JSON: ConnectType(pa.string(), "string", "io.debezium.data.Json"),
    GEOMETRY: _GEOMETRY,
}


def connect_column(type: ColumnType, texts: pa.Array) -> ConnectColumn:
    """Return the column as Debezium has it. `texts` is a string array."""
    kind, code, count = connect_type(type), type.oid, len(texts)
    sound = np.zeros(count, np.bool_)
    if texts.null_count == count:
        return ConnectColumn(kind, pa.nulls(count, kind.arrow), sound)
    if kind.type == "string":
        return ConnectColumn(kind, iso_moments(type, _real(texts)) if kind.name.endswith("Timestamp") else texts, sound)
    if code == NEWDECIMAL:
        return ConnectColumn(kind, _each(texts, pa.binary(), _unscaled), sound)
    if code == TIME2:
        return ConnectColumn(kind, _each(texts, pa.int64(), _microseconds), sound)
    if code == GEOMETRY:
        return ConnectColumn(kind, _geometries(octets(texts.cast(pa.binary()))[0]), sound)
    if code == BIT:
        return ConnectColumn(kind, _bits(type, texts), sound)
    found = from_written(type, (_real(texts) if code in (DATE, DATETIME2) else texts).cast(pa.binary()))
    failed = sound.copy()
    failed[found.misfits] = True
    values = found.values
    if code == LONGLONG and is_unsigned(type):
        large = np.asarray(pc.fill_null(pc.greater(values, pa.scalar(2**63 - 1, pa.decimal128(20, 0))), False))
        failed |= large
        values = pc.if_else(pa.array(large), pa.scalar(None, values.type), values)
    if code == DATETIME2:
        values = values.cast(pa.int64())
        if kind.name.endswith(".Timestamp"):
            values = pa.array(np.asarray(pc.fill_null(values, 0)) // 1000, mask=np.asarray(values.is_null()))
    elif code == DATE:
        values = values.cast(pa.int32())
    return ConnectColumn(kind, values.cast(kind.arrow), failed)


def _real(texts: pa.Array) -> pa.Array:
    """Return the texts without those of impossible dates: 2024-02-31 is only found when it is read."""
    odd = pc.match_substring_regex(texts, NO_DATE)
    return pc.if_else(odd, pa.scalar(None, pa.string()), texts) if pc.any(odd).as_py() else texts


def _each(texts: pa.Array, kind: pa.DataType, convert: Callable[[str], Any]) -> pa.Array:
    """Make each distinct value once."""
    encoded = texts.dictionary_encode()
    return pa.array([convert(text) for text in encoded.dictionary.to_pylist()], kind).take(encoded.indices)


def _unscaled(text: str) -> bytes:
    """Return two's complement in as few bytes as it takes, as Java's BigInteger writes it."""
    number = int(text.replace(".", ""))
    bits = number.bit_length() if number >= 0 else (number + 1).bit_length()
    return number.to_bytes(bits // 8 + 1, "big", signed=True)


def _microseconds(text: str) -> int:
    sign, clock = (-1, text[1:]) if text.startswith("-") else (1, text)
    hours, minutes, seconds = clock.split(":")
    whole, _, fraction = seconds.partition(".")
    return sign * (((int(hours) * 60 + int(minutes)) * 60 + int(whole)) * 1_000_000 + int(fraction.ljust(6, "0")))


def _bits(type: ColumnType, texts: pa.Array) -> pa.Array:
    if type.modifier == 1:
        return pc.equal(texts, "1")
    size = (type.modifier + 7) // 8
    return _each(texts, pa.binary(), lambda text: int(text).to_bytes(size, "little"))


def _geometries(values: pa.Array) -> pa.Array:
    made = [None if one is None else _geometry(one) for one in values.to_pylist()]
    return pa.array(made, _GEOMETRY.arrow)


def _geometry(content: bytes) -> dict[str, Any]:
    (srid,) = struct.unpack_from("<i", content.ljust(_EMPTY_GEOMETRY, b"\0"))
    return {"wkb": content[_EMPTY_GEOMETRY:], "srid": srid or None}
