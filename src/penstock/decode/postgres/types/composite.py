"""Composites as structs of what their fields are. See codec.py for the shape of these modules.

A composite that is NULL and one whose fields all are NULL differ, here as in Postgres' text. When one field does not
fit, the whole composite does not: it is rescued as its text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa

from penstock.decode.postgres.types.codec import TypeCodec

_FIELD = re.compile(rb'((?:[^",()\\]|"(?:[^"\\]|\\.|"")*"|\\.)*)([,)])', re.DOTALL)
_QUOTED = re.compile(rb'"((?:[^"\\]|\\.|"")*)"', re.DOTALL)
_ESCAPED = re.compile(rb'\\(.)|"(")', re.DOTALL)


def struct_codec(fields: Sequence[tuple[str, TypeCodec]]) -> TypeCodec:
    children = [pa.field(name, one.arrow_type) for name, one in fields]
    arrow_type = pa.struct(children)

    def parse(texts: pa.Array) -> pa.Array:
        columns: list[list[bytes | None]] = [[] for _ in fields]
        for text in texts.to_pylist():
            values: Sequence[bytes | None] = [None] * len(fields) if text is None else split(text)
            if len(values) != len(fields):
                raise ValueError(f"not a row of {len(fields)} fields")
            for column, value in zip(columns, values, strict=True):
                column.append(value)
        arrays = [one.parse(pa.array(column, pa.binary())) for (_, one), column in zip(fields, columns, strict=True)]
        mask = texts.is_null() if texts.null_count else None
        return pa.StructArray.from_arrays(arrays, fields=children, mask=mask)

    return TypeCodec(arrow_type, parse)


def split(text: bytes) -> list[bytes | None]:
    if text[:1] != b"(":
        raise ValueError("not a row")
    found: list[bytes | None] = []
    position, end = 1, b","
    while end == b",":
        match = _FIELD.match(text, position)
        if match is None:
            raise ValueError("not a row")
        part, end = match.groups()
        found.append(_value(part) if part else None)
        position = match.end()
    if position != len(text):
        raise ValueError("it goes on after its last field")
    return found


def _value(part: bytes) -> bytes:
    if b'"' not in part and b"\\" not in part:
        return part
    return _QUOTED.sub(lambda quoted: _ESCAPED.sub(rb"\1\2", quoted[1]), part)
