"""Rows of random bytes in columns of every type: each value is read as its bytes say, or its row alone is refused."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.decode.dialect import read
from penstock.decode.mysql.packed import WIDTHS
from penstock.decode.mysql.types import (
    BIT,
    BLOB,
    BLOB_COMPRESSED,
    DATE,
    DATETIME2,
    DOUBLE,
    ENUM,
    FLOAT,
    GEOMETRY,
    INTEGERS,
    JSON,
    LONG,
    NEWDECIMAL,
    SET,
    STRING,
    TIME2,
    TIMESTAMP2,
    VARCHAR,
    VARCHAR_COMPRESSED,
    YEAR,
    column_type,
    fixed_width,
    is_unsigned,
    length_bytes,
)
from penstock.decode.rescue import Into, Rescued
from penstock.decode.undecodable import Undecodable
from penstock.model.change import INSERT, RawChanges
from penstock.model.table import ColumnType, TableId, TableSchema
from penstock.source.mysql.catalogue import FoundColumn, schema_of
from penstock.source.mysql.row_pile import RowPile

ROWS = 40
LABELS = ("a", "é", "c")
TYPES = [
    column_type(LONG, -1),
    *(column_type(code, -1, unsigned=sign) for code in INTEGERS for sign in (False, True)),
    *(column_type(code, -1) for code in (FLOAT, DOUBLE, DATE, YEAR)),
    *(column_type(code, digits) for code in (DATETIME2, TIMESTAMP2, TIME2) for digits in (0, 1, 3, 6)),
    *(column_type(NEWDECIMAL, precision << 8 | scale) for precision, scale in ((5, 2), (18, 0), (38, 38), (65, 30))),
    *(column_type(BIT, bits) for bits in (1, 9, 64)),
    column_type(ENUM, 1, charset="utf8mb4", labels=LABELS),
    column_type(SET, 1, charset="utf8mb4", labels=LABELS),
    *(
        column_type(VARCHAR, 60, charset=name)
        for name in ("utf8mb4", "latin1", "sjis", "ujis", "utf16", "swe7", "ascii")
    ),
    *(column_type(STRING, 300, charset=name) for name in ("utf8mb4", "binary", "ucs2", "gbk", "cp1251")),
    *(column_type(BLOB, width, charset="binary") for width in (1, 2, 3, 4)),
    column_type(JSON, 4),
    column_type(GEOMETRY, 4),
    column_type(VARCHAR_COMPRESSED, 61, charset="utf8mb4"),
    column_type(BLOB_COMPRESSED, 2, charset="binary"),
    *(ColumnType(STRING, name, width, charset="binary") for name, width in WIDTHS.items()),
]


def schema() -> TableSchema:
    columns = [FoundColumn(f"c{number}", type, nullable=number > 0) for number, type in enumerate(TYPES)]
    return schema_of(TableId("shop", "t"), columns, ["c0"])


def random_value(type: ColumnType, chosen: random.Random) -> bytes:
    """Return bytes of a length that the type allows."""
    width = fixed_width(type)
    if width is not None:
        return bytes(chosen.choices((0, 1, 0x7F, 0x80, 0xFF, chosen.randrange(256)), k=width))
    size = chosen.choice([0, 1, 2, 3, 5, 8, 16, 30])
    if chosen.random() < 0.5:
        value = "aé€𝄞漢ｱ\0"[: chosen.randrange(8)].encode(chosen.choice(["utf-8", "utf-16-be", "utf-16-le"]))
    else:
        value = bytes(chosen.choices(range(256), k=size))
    value = value[: type.modifier] if type.oid == STRING else value
    return len(value).to_bytes(length_bytes(type), "little") + value


def random_row(number: int, chosen: random.Random) -> list[bytes | None]:
    row: list[bytes | None] = [struct.pack("<i", number)]
    row += [None if chosen.random() < 0.1 else random_value(type, chosen) for type in TYPES[1:]]
    return row


def expected(type: ColumnType) -> Callable[[bytes], Any] | None:
    """Return how the type's bytes are read, by Python's own means; None for types that this says nothing of."""
    if type.oid in INTEGERS:
        return lambda value: int.from_bytes(value, "little", signed=not is_unsigned(type))
    if type.oid in (FLOAT, DOUBLE):
        return lambda value: struct.unpack("<f" if type.oid == FLOAT else "<d", value)[0]
    if type.oid == YEAR:
        return lambda value: 1900 + value[0] if value[0] else 0
    if type.oid == BIT and type.modifier == 64:
        return lambda value: int.from_bytes(value, "big")
    if type.oid == VARCHAR and type.charset in ("utf8mb4", "utf16"):
        return lambda value: value[1:].decode("utf-8" if type.charset == "utf8mb4" else "utf-16-be")
    if type.oid == BLOB:
        return lambda value: value[type.modifier :]
    return None


def test_random_rows_of_every_type_are_read_exactly_or_refused_one_by_one(full: bool) -> None:
    table, chosen, seen = schema(), random.Random(11), 0
    for batch in range(1_000 if full else 5):
        rows = [random_row(number, chosen) for number in range(ROWS)]
        pile = RowPile(table)
        for number, row in enumerate(rows):
            nulls = sum(1 << place for place, value in enumerate(row) if value is None)
            image = nulls.to_bytes((len(TYPES) + 7) // 8, "little") + b"".join(value or b"" for value in row)
            pile.add(INSERT, image, (batch + 1, number << 32, batch + 1, 1, 0))
        captured = pile.slice()
        assert captured is not None
        assert captured.batch.num_rows == ROWS, "lengths are right, so every row is found"
        images = read(RawChanges(table, captured.batch)).images(np.arange(ROWS))
        for place, type in enumerate(TYPES):
            sound = np.arange(ROWS)
            rescued = Rescued()
            try:
                values = images.values(place, Into(rescued, f"c{place}", 0), sound)
            except Undecodable as found:
                sound = np.setdiff1d(sound, found.rows)
                values = images.values(place, Into(rescued, f"c{place}", 0), sound)
            values.validate(full=True)
            plain = values.cast(pa.string()) if pa.types.is_decimal(values.type) else values
            if pa.types.is_temporal(values.type):
                plain = values.cast(pa.int32() if pa.types.is_date32(values.type) else pa.int64())
            convert = expected(type)
            for at, value in zip(sound.tolist(), plain.to_pylist(), strict=True):
                given = rows[at][place]
                if given is None:
                    assert value is None, (type, at)
                elif convert is not None:
                    value = int(value) if pa.types.is_decimal(values.type) else value
                    assert same(value, convert(given)), (type, given, value)
            if convert is not None:
                assert all(not readable(convert, rows[at][place]) for at in set(range(ROWS)) - set(sound.tolist()))
            seen += len(sound)
    assert seen > 0.6 * (5 * ROWS * len(TYPES))


def same(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, float) and math.isnan(wanted):
        return math.isnan(value)
    return bool(value == wanted)


def readable(convert: Callable[[bytes], Any], value: bytes | None) -> bool:
    if value is None:
        return True
    try:
        convert(value)
    except UnicodeDecodeError:
        return False
    return True
