"""Values as text: what a column that is carried as text holds, and what events are rendered from. And back again.

| type                     | text                                                                              |
|--------------------------|-----------------------------------------------------------------------------------|
| integers, year, bit      | digits                                                                            |
| decimal                  | every digit of its scale                                                          |
| float, double            | the shortest digits that are this number                                          |
| date, datetime           | as SELECT writes them, also those that are no dates (`0000-00-00`)                |
| timestamp                | the same, in UTC                                                                  |
| binary, blob, geometry   | hexadecimal digits, as HEX() writes them                                          |
| uuid, inet4, inet6, time | as SELECT writes them                                                             |
| anything else            | the text that it is                                                               |

The text of a value is made of its typed value, so it is the same whether the value came by the stream or by the copy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.mysql.types import DATETIME2, FLOAT, TIMESTAMP2
from penstock.decode.reader import Mask, Places
from penstock.model.table import ColumnType

_SECONDS = 19  # characters of a moment before its fraction
_PLAIN_SCALE = 6  # of decimals: Arrow writes small numbers of a larger one with an exponent


def written(type: ColumnType, values: pa.Array, misfits: Places, texts: list[str]) -> pa.Array:
    """Return the text of each value.

    `misfits` are places whose value is null because its text, in `texts`, fits no value.
    """
    made = _written(type, values)
    if len(misfits):
        mask = np.zeros(len(made), np.bool_)
        mask[misfits] = True
        made = pc.replace_with_mask(made, pa.array(mask), pa.array(texts, pa.string()))
    return made


def _written(type: ColumnType, values: pa.Array) -> pa.Array:
    kind = values.type
    if pa.types.is_string(kind):
        return values
    if pa.types.is_binary(kind):
        return pa.array([None if one is None else one.hex().upper() for one in values.to_pylist()], pa.string())
    if pa.types.is_timestamp(kind):
        length = _SECONDS + (type.modifier + 1 if type.modifier > 0 else 0)
        moments = values.cast(pa.int64()).view(pa.timestamp("us")) if kind.tz is not None else values
        return pc.utf8_slice_codeunits(moments.cast(pa.string()), 0, length)
    if pa.types.is_decimal(kind) and kind.scale > _PLAIN_SCALE:
        return pa.array([None if one is None else format(one, "f") for one in values.to_pylist()], pa.string())
    if pa.types.is_floating(kind):
        return pc.replace_substring(values.cast(pa.string()), "e+", "e")
    return values.cast(pa.string())


def likely(type: ColumnType, texts: pa.Array) -> pa.Array:
    """Return texts of values, written here or by another database, as those that a SELECT gives (binary)."""
    binary = texts.cast(pa.binary())
    if type.oid in (DATETIME2, TIMESTAMP2):
        strings = binary.cast(pa.string())
        return pc.replace_substring_regex(strings, r"(\+00(:00)?|Z)$", "").cast(pa.binary())
    return binary


def octets(texts: pa.Array) -> tuple[pa.Array, Mask]:
    r"""Return the bytes of hexadecimal digits, perhaps behind `\x` or `0x`, and which texts are none."""
    found: list[bytes | None] = []
    failed = np.zeros(len(texts), np.bool_)
    for place, text in enumerate(texts.to_pylist()):
        value: bytes | None = None
        if text is not None:
            digits = text[2:] if text[:2] in (b"\\x", b"0x") else text
            try:
                value = bytes.fromhex(digits.decode("ascii"))
            except ValueError:
                failed[place] = True
        found.append(value)
    return pa.array(found, pa.binary()), failed


def truths(texts: pa.Array) -> tuple[pa.Array, Mask]:
    """Return truth values, which only columns that penstock adds have."""
    words: dict[Any, bool] = dict.fromkeys((b"t", b"true", b"1"), True) | dict.fromkeys((b"f", b"false", b"0"), False)
    given = texts.to_pylist()
    failed = np.array([one is not None and one not in words for one in given], np.bool_)
    return pa.array([words.get(one) for one in given], pa.bool_()), failed


def is_number(type: ColumnType) -> bool:
    """Return whether the text of the type's values is a number that JSON has too."""
    return type.oid in _NUMBERS


_NUMBERS = frozenset({1, 2, 3, 8, 9, 13, 16, FLOAT, 5})
