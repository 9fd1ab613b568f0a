"""hstore as a map of strings, NULLs among its values. See codec.py for the shape of these modules.

An hstore's keys are unique and have no order of their own; they stand in the order in which Postgres writes them.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa

from penstock.decode.postgres.types.codec import Served, TypeCodec
from penstock.model.table import ColumnType

_STRING = rb'"((?:[^"\\]|\\.)*)"'
_PAIR = re.compile(_STRING + rb"=>(?:" + _STRING + rb"|NULL)(?:, |$)", re.DOTALL)
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)


def codec(type: ColumnType) -> TypeCodec:
    return _CODEC


def _parse(texts: pa.Array) -> pa.Array:
    offsets = np.zeros(len(texts) + 1, np.int32)
    keys: list[bytes] = []
    values: list[bytes | None] = []
    for number, text in enumerate(texts.to_pylist(), start=1):
        position = 0
        while text and position < len(text):
            match = _PAIR.match(text, position)
            if match is None:
                raise ValueError("not an hstore")
            key, value = match.groups()
            keys.append(_ESCAPED.sub(rb"\1", key))
            values.append(None if value is None else _ESCAPED.sub(rb"\1", value))
            position = match.end()
        offsets[number] = len(keys)
    pairs = (pa.array(part, pa.binary()).cast(pa.string()) for part in (keys, values))
    mask = texts.is_null() if texts.null_count else None
    return pa.MapArray.from_arrays(pa.array(offsets), *pairs, mask=mask)


_CODEC = TypeCodec(pa.map_(pa.string(), pa.string()), _parse)

SERVED = (
    Served({"hstore": 0}, codec, "map<string, string>", "map<string, string>", "every key and value, NULL values too"),
)
