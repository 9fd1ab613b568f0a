"""Conditions that select rows by their keys, through the primary key's index where the key's types allow it.

A literal is written so that every session reads the same value in it, whatever its settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from penstock.decode.mysql.packed import WIDTHS
from penstock.decode.mysql.texts import written
from penstock.decode.mysql.types import (
    BLOB,
    DATE,
    DATETIME2,
    INTEGERS,
    NEWDECIMAL,
    STRING,
    TIMESTAMP2,
    VARCHAR,
    YEAR,
)
from penstock.model.table import ColumnType, TableSchema

_LITERAL = re.compile(r"-?\d+(\.\d+)?|'[0-9a-f :.-]*'|(_utf8mb4 )?X'[0-9A-Fa-f]*'")
AT_ONCE = 1000  # keys of a statement
_NUMBERS = frozenset({*INTEGERS, NEWDECIMAL, YEAR})
_MOMENTS = frozenset({DATE, DATETIME2, TIMESTAMP2})
_TEXTS = frozenset({VARCHAR, STRING, BLOB})


def key_conditions(schema: TableSchema, keys: pa.Table) -> Iterator[str]:
    """Yield conditions that select these keys' rows, and perhaps others.

    A collation may find texts equal that are not the same. Keys of other types are looked for among all rows.
    """
    types = [schema.column(name).type for name in schema.key]
    if not all(type.oid in _NUMBERS | _MOMENTS | _TEXTS and not type.carried_as for type in types):
        yield "TRUE"
        return
    columns = [
        [_literal(type, one) for one in _texts(type, keys[name].combine_chunks())]
        for type, name in zip(types, schema.key, strict=True)
    ]
    rows = [f"({', '.join(row)})" for row in zip(*columns, strict=True)]
    names = ", ".join("`" + name.replace("`", "``") + "`" for name in schema.key)
    for first in range(0, len(rows), AT_ONCE):
        yield f"({names}) IN ({', '.join(rows[first : first + AT_ONCE])})"


def _texts(type: ColumnType, values: pa.Array) -> list[str]:
    texts: list[str] = written(type, values, np.empty(0, np.int64), []).to_pylist()
    return texts


def _literal(type: ColumnType, text: str) -> str:
    if type.oid in _NUMBERS:
        return text
    if type.oid in _MOMENTS:
        return f"'{text}'"
    if type.charset == "binary":
        return f"X'{text}'"
    return f"_utf8mb4 X'{text.encode().hex()}'"


def is_literal(text: str) -> bool:
    """Return whether a text is one of the literals that this module writes."""
    return _LITERAL.fullmatch(text) is not None


def can_be_cut(type: ColumnType) -> bool:
    """Return whether `literal_of` knows the type, so that a table can be cut where its first key column changes."""
    return not type.carried_as and (type.oid in _NUMBERS | _MOMENTS | _TEXTS)


def shown_for_literal(type: ColumnType, name: str) -> str:
    """Return SQL that gives a column's value as `literal_of` takes it."""
    if type.oid in _NUMBERS | _MOMENTS or type.name in WIDTHS:
        return f"CAST({name} AS CHAR)"
    return f"HEX({name})" if type.charset == "binary" else f"HEX(CONVERT({name} USING utf8mb4))"


def literal_of(type: ColumnType, text: str) -> str:
    if type.oid in _NUMBERS:
        return text
    if type.oid in _MOMENTS or type.name in WIDTHS:
        return f"'{text}'"
    return f"X'{text}'" if type.charset == "binary" else f"_utf8mb4 X'{text}'"
