"""MySQL's and MariaDB's types: what a binlog says of a column, how wide its values are there, and its Arrow type.

A `ColumnType` of this dialect has the binlog's type code as its `oid`. `modifier` is what the code needs to be read:
bytes of CHAR, VARCHAR, BINARY and VARBINARY at most; bytes of the length before TEXT, BLOB, JSON and GEOMETRY; bytes of
an ENUM's or SET's number; bits of BIT; digits of fractional seconds; precision << 8 | scale of DECIMAL. The catalogue
(source/mysql/catalogue.py) and the binlog's own description of a table give equal types for the same column.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from penstock.decode.mysql.packed import WIDTHS
from penstock.model.table import ColumnType

TINY, SHORT, LONG, FLOAT, DOUBLE, LONGLONG, INT24, DATE, YEAR = 1, 2, 3, 4, 5, 8, 9, 10, 13
VARCHAR, BIT, TIMESTAMP2, DATETIME2, TIME2 = 15, 16, 17, 18, 19
BLOB_COMPRESSED, VARCHAR_COMPRESSED = 140, 141  # MariaDB's COMPRESSED columns
JSON, NEWDECIMAL, ENUM, SET, BLOB, STRING, GEOMETRY = 245, 246, 247, 248, 252, 254, 255

INTEGERS = {TINY: ("tinyint", 1), SHORT: ("smallint", 2), INT24: ("mediumint", 3), LONG: ("int", 4)}
INTEGERS |= {LONGLONG: ("bigint", 8)}
NUMERIC = frozenset({*INTEGERS, NEWDECIMAL, FLOAT, DOUBLE, YEAR})  # have a sign in the binlog's description
BLOBS = ("", "tiny", "", "medium", "long")  # by the bytes of the length
DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
MOST_DIGITS = 38  # of a decimal; more digits are text


def fixed_width(type: ColumnType) -> int | None:
    """Return the bytes of a value in a row image; None where the value says so itself."""
    code, modifier = type.oid, type.modifier
    if code in INTEGERS:
        return INTEGERS[code][1]
    if code in (FLOAT, DOUBLE):
        return 4 if code == FLOAT else 8
    if code in (DATE, YEAR):
        return 3 if code == DATE else 1
    if code in (DATETIME2, TIMESTAMP2, TIME2):
        return {DATETIME2: 5, TIMESTAMP2: 4, TIME2: 3}[code] + (modifier + 1) // 2
    if code == NEWDECIMAL:
        whole, scale = (modifier >> 8) - (modifier & 255), modifier & 255
        return whole // 9 * 4 + DIGIT_BYTES[whole % 9] + scale // 9 * 4 + DIGIT_BYTES[scale % 9]
    if code in (ENUM, SET):
        return modifier
    return (modifier + 7) // 8 if code == BIT else None


def length_bytes(type: ColumnType) -> int:
    """Return how many bytes stand before a value of variable length to say it."""
    if type.oid in (VARCHAR, STRING, VARCHAR_COMPRESSED):
        return 2 if type.modifier > 255 else 1
    return type.modifier


def arrow_type(type: ColumnType) -> pa.DataType:
    """Return the type that holds every value of a column, but for impossible dates."""
    code, modifier = type.oid, type.modifier
    if type.carried_as or type.held_as == "text":
        return pa.string()
    if type.kind == "array" and type.element is not None:
        return pa.list_(pa.field("element", arrow_type(type.element)))
    if type.kind == "composite":
        return pa.struct([pa.field(name, arrow_type(one)) for name, one in type.fields])
    if type.name == "boolean":
        return pa.bool_()  # penstock's own: a source's BOOLEAN is a TINYINT
    if code in (TINY, SHORT, INT24):
        return pa.int32()
    if code == LONG:
        return pa.int64() if is_unsigned(type) else pa.int32()
    if code == LONGLONG:
        return pa.decimal128(20, 0) if is_unsigned(type) else pa.int64()
    if code == NEWDECIMAL:
        fits = modifier >> 8 <= MOST_DIGITS
        return pa.decimal128(modifier >> 8, modifier & 255) if fits else pa.string()
    if code == BIT:
        return pa.int64() if modifier < 64 else pa.decimal128(20, 0)
    if code in _PLAIN:
        return _PLAIN[code]
    if type.name in WIDTHS:
        return pa.string()
    return pa.binary() if type.charset == "binary" or code == GEOMETRY else pa.string()


_PLAIN = {
    FLOAT: pa.float32(),
    DOUBLE: pa.float64(),
    DATE: pa.date32(),
    YEAR: pa.int32(),
    DATETIME2: pa.timestamp("us"),
    TIMESTAMP2: pa.timestamp("us", "UTC"),
    TIME2: pa.string(),
    ENUM: pa.string(),
    SET: pa.string(),
    JSON: pa.string(),
}


def is_unsigned(type: ColumnType) -> bool:
    return type.name.endswith(" unsigned")


def type_text(type: ColumnType) -> str:
    """Return the type as its users write it."""
    name, modifier = type.name, type.modifier
    if type.oid == NEWDECIMAL:
        words = name.split(" ")
        name = " ".join([f"{words[0]}({modifier >> 8},{modifier & 255})", *words[1:]])
    elif type.oid in (DATETIME2, TIMESTAMP2, TIME2) and modifier > 0:
        name = f"{name}({modifier})"
    elif type.oid in (VARCHAR, STRING) and type.name not in WIDTHS:
        name = f"{name} of {modifier} bytes"
    elif type.oid == BIT:
        name = f"bit({modifier})"
    if type.oid in (BLOB_COMPRESSED, VARCHAR_COMPRESSED):
        name = f"{name} compressed"
    return f"{name} carried as {type.carried_as}" if type.carried_as else name


def keeps_values(old: ColumnType, new: ColumnType) -> bool:
    """Return whether an ALTER to the new type leaves every value as it was: the same one, or a wider one."""
    if old == new or replace(new, modifier=old.modifier, labels=old.labels, oid=old.oid, name=old.name) != old:
        return old == new
    if old.oid in INTEGERS and new.oid in INTEGERS:
        return is_unsigned(old) == is_unsigned(new) and INTEGERS[old.oid][1] <= INTEGERS[new.oid][1]
    if old.oid == new.oid and old.oid in (ENUM, SET):
        return new.labels[: len(old.labels)] == old.labels
    if old.oid == new.oid == NEWDECIMAL and old.name == new.name:
        digits = [(one.modifier >> 8) - (one.modifier & 255) for one in (old, new)]
        return old.modifier & 255 == new.modifier & 255 and digits[0] <= digits[1]
    if old.name in WIDTHS or new.name in WIDTHS or (old.oid == STRING and old.charset == "binary"):
        return False
    return old.oid == new.oid and old.oid in (VARCHAR, STRING, BLOB) and old.modifier <= new.modifier


def column_type(
    code: int, modifier: int, *, unsigned: bool = False, charset: str = "", labels: tuple[str, ...] = ()
) -> ColumnType:
    """Describe a column by what the binlog knows of it. ValueError for a type that is not read."""
    suffix = " unsigned" if unsigned and code != YEAR else ""
    if code in INTEGERS:
        return ColumnType(code, INTEGERS[code][0] + suffix)
    if code in (FLOAT, DOUBLE):
        return ColumnType(code, ("float" if code == FLOAT else "double") + suffix)
    if code == NEWDECIMAL:
        return ColumnType(code, "decimal" + suffix, modifier)
    if code in _NAMES:
        return ColumnType(code, _NAMES[code], modifier if code not in (DATE, YEAR) else -1)
    if code in (ENUM, SET):
        return ColumnType(code, "enum" if code == ENUM else "set", modifier, charset=charset, labels=labels)
    binary = charset == "binary"
    if code in (VARCHAR, VARCHAR_COMPRESSED):
        return ColumnType(code, "varbinary" if binary else "varchar", modifier, charset=charset)
    if code == STRING:
        return ColumnType(code, "binary" if binary else "char", modifier, charset=charset)
    if code in (BLOB, BLOB_COMPRESSED):
        return ColumnType(code, BLOBS[modifier] + ("blob" if binary else "text"), modifier, charset=charset)
    raise ValueError(f"the binlog has a column of type {code}, which is not read")


_NAMES = {
    DATE: "date",
    YEAR: "year",
    BIT: "bit",
    DATETIME2: "datetime",
    TIMESTAMP2: "timestamp",
    TIME2: "time",
    JSON: "json",
    GEOMETRY: "geometry",
}
