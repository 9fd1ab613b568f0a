"""TABLE_MAP events: a table's columns as they were at that place of the binlog, as bytes into a schema.

Everything comes from the event: with `binlog_row_metadata=FULL` it has names, signs, character sets, labels and the
key. The catalogue may be of a later time, so it is not asked.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from penstock.decode.mysql.charsets import decoded_text
from penstock.decode.mysql.types import (
    BIT,
    BLOB,
    BLOB_COMPRESSED,
    DATETIME2,
    DOUBLE,
    ENUM,
    FLOAT,
    GEOMETRY,
    JSON,
    NEWDECIMAL,
    NUMERIC,
    SET,
    STRING,
    TIME2,
    TIMESTAMP2,
    VARCHAR,
    VARCHAR_COMPRESSED,
    column_type,
)
from penstock.model.table import TableId
from penstock.source.mysql.catalogue import FoundColumn

_VAR_STRING, _VECTOR = 253, 242
_WITH_CHARSET = frozenset({VARCHAR, STRING, BLOB, ENUM, SET, BLOB_COMPRESSED, VARCHAR_COMPRESSED})
_TEXTUAL = frozenset({STRING, _VAR_STRING, VARCHAR, BLOB, BLOB_COMPRESSED, VARCHAR_COMPRESSED})
_SIGNS, _DEFAULT_CHARSET, _CHARSETS, _NAMES, _SET_LABELS, _ENUM_LABELS, _KEY, _KEY_PREFIXES = 1, 2, 3, 4, 5, 6, 8, 9
_ENUM_DEFAULT_CHARSET, _ENUM_CHARSETS = 10, 11

NO_METADATA = (
    "the binlog does not name its columns: binlog_row_metadata is not FULL. Run `SET GLOBAL binlog_row_metadata = FULL`"
    ", then `penstock resync`"
)


class Unreadable(ValueError):
    """A TABLE_MAP that gives no schema; the text says why and what to do."""


@dataclass
class _Column:
    type: int
    modifier: int
    nullable: bool
    unsigned: bool = False
    collation: int = 63
    name: str | None = None
    labels: tuple[bytes, ...] = field(default_factory=tuple)


def table_of(body: bytes) -> TableId:
    """Return the name of the table alone: those that are not wanted are not read further."""
    size = body[8]
    at = 9 + size + 1
    return TableId(body[9 : 9 + size].decode(), body[at + 1 : at + 1 + body[at]].decode())


def read_schema(
    body: bytes, charsets: Mapping[int, str], *, mariadb: bool
) -> tuple[TableId, list[FoundColumn], tuple[str, ...]]:
    """Return table, columns and key. Unreadable when metadata are missing or a type is not read."""
    try:
        return _read(body, charsets, mariadb=mariadb)
    except (IndexError, struct.error, KeyError, UnicodeDecodeError) as error:
        raise Unreadable(f"the binlog's description of it cannot be read ({error})") from None


def _read(
    body: bytes, charsets: Mapping[int, str], *, mariadb: bool
) -> tuple[TableId, list[FoundColumn], tuple[str, ...]]:
    table = table_of(body)
    at = 9 + body[8] + 1
    at += body[at] + 2
    count, at = _packed(body, at)
    types, at = body[at : at + count], at + count
    size, at = _packed(body, at)
    metadata, at = body[at : at + size], at + size
    nulls, at = body[at : at + (count + 7) // 8], at + (count + 7) // 8
    columns: list[_Column] = []
    place = 0
    for index, code in enumerate(types):
        code, modifier, place = _type(code, metadata, place)
        columns.append(_Column(code, modifier, bool(nulls[index >> 3] >> (index & 7) & 1)))
    key: tuple[int, ...] = ()
    textual = _TEXTUAL | {GEOMETRY} if mariadb else _TEXTUAL
    while at < len(body):
        kind = body[at]
        size, at = _packed(body, at + 1)
        value, at = body[at : at + size], at + size
        if kind == _KEY_PREFIXES:
            raise Unreadable("its primary key has a prefix of a column; give it a key of whole columns")
        key = tuple(_numbers(value)) if kind == _KEY else key
        _take(kind, value, columns, textual)
    if any(column.name is None for column in columns):
        raise Unreadable(NO_METADATA)
    found = [_found(column, charsets) for column in columns]
    return table, found, tuple(found[number].name for number in key)


def _found(column: _Column, charsets: Mapping[int, str]) -> FoundColumn:
    assert column.name is not None
    has_charset = column.type in _WITH_CHARSET
    charset = charsets.get(column.collation, "") if has_charset else ""
    if has_charset and not charset:
        raise Unreadable(f"column {column.name} has collation {column.collation}, which the server does not list")
    labels = tuple(_label(label, charset) for label in column.labels)
    try:
        type = column_type(column.type, column.modifier, unsigned=column.unsigned, charset=charset, labels=labels)
    except ValueError as error:
        raise Unreadable(f"column {column.name}: {error}") from None
    return FoundColumn(column.name, type, column.nullable)


def _label(label: bytes, charset: str) -> str:
    """Labels are in the column's character set."""
    try:
        return decoded_text(label, charset)
    except ValueError as error:
        raise Unreadable(f"a label cannot be read, in the character set {charset} ({error})") from None


def _take(kind: int, value: bytes, columns: list[_Column], textual: frozenset[int]) -> None:
    if kind == _SIGNS:
        for index, column in enumerate(one for one in columns if one.type in NUMERIC):
            column.unsigned = bool(value[index >> 3] << (index & 7) & 0x80)
    elif kind in (_DEFAULT_CHARSET, _ENUM_DEFAULT_CHARSET):
        mine = [one for one in columns if one.type in ((ENUM, SET) if kind == _ENUM_DEFAULT_CHARSET else textual)]
        default, *pairs = _numbers(value)
        for column in mine:
            column.collation = default
        for index, collation in zip(pairs[0::2], pairs[1::2], strict=True):
            mine[index].collation = collation
    elif kind in (_CHARSETS, _ENUM_CHARSETS):
        mine = [one for one in columns if one.type in ((ENUM, SET) if kind == _ENUM_CHARSETS else textual)]
        for column, collation in zip(mine, _numbers(value), strict=True):
            column.collation = collation
    elif kind == _NAMES:
        for column, name in zip(columns, _strings(value), strict=True):
            column.name = name.decode()
    elif kind in (_SET_LABELS, _ENUM_LABELS):
        at = 0
        for column in columns:
            if column.type == (SET if kind == _SET_LABELS else ENUM):
                count, at = _packed(value, at)
                labels = []
                for _ in range(count):
                    size, at = _packed(value, at)
                    labels.append(value[at : at + size])
                    at += size
                column.labels = tuple(labels)


def _type(code: int, metadata: bytes, at: int) -> tuple[int, int, int]:
    """Return code, modifier and where the next column's metadata are. ENUM and SET stand as STRING."""
    if code in (STRING, NEWDECIMAL, _VAR_STRING, ENUM, SET):
        first, second = metadata[at], metadata[at + 1]
        if code != STRING:
            return code, first << 8 | second, at + 2
        if first & 0x30 != 0x30:  # two bits of the length hide in the type, inverted
            return first | 0x30, ((first & 0x30) ^ 0x30) << 4 | second, at + 2
        return (first if first in (ENUM, SET) else STRING), second, at + 2
    if code == BIT:
        return code, metadata[at] + 8 * metadata[at + 1], at + 2
    if code in (VARCHAR, VARCHAR_COMPRESSED):
        return code, int.from_bytes(metadata[at : at + 2], "little"), at + 2
    if code in (
        BLOB,
        GEOMETRY,
        JSON,
        DOUBLE,
        FLOAT,
        TIMESTAMP2,
        DATETIME2,
        TIME2,
        _VECTOR,
        BLOB_COMPRESSED,
        249,
        250,
        251,
    ):
        return code, metadata[at], at + 1
    return code, -1, at


def _packed(body: bytes, at: int) -> tuple[int, int]:
    first = body[at]
    if first < 251:
        return first, at + 1
    width = {252: 2, 253: 3, 254: 8}[first]
    return int.from_bytes(body[at + 1 : at + 1 + width], "little"), at + 1 + width


def _numbers(value: bytes) -> Iterator[int]:
    at = 0
    while at < len(value):
        number, at = _packed(value, at)
        yield number


def _strings(value: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(value):
        size, at = _packed(value, at)
        yield value[at : at + size]
        at += size
