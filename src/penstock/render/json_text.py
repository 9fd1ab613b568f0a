"""Arrow columns as JSON texts, by kernels: no Python object per value.

A column becomes the JSON text of each of its values, and one join puts texts and the constants between them together,
so a row costs what its bytes cost. The values are those of `decode/json_values.py`, which says how each type is
written; a type that no kernel renders exactly goes through it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.json_escapes import NULL, base64_texts, quoted, quoted_text
from penstock.decode.json_values import json_values

# Arrow writes years 0000 to 9999 as ISO 8601 does; in microseconds
_FIRST_PLAIN_YEAR, _FIRST_LONG_YEAR = -62_167_219_200_000_000, 253_402_300_800_000_000
_DAY = 86_400_000_000
_PLAIN_SCALE = 6  # of decimals: Arrow writes small numbers of a larger one with an exponent


def json_texts(array: pa.Array) -> pa.Array:
    """Return the JSON text of each value; null where the value is null."""
    kind = array.type
    if pa.types.is_null(kind) or array.null_count == len(array):
        return pa.nulls(len(array), pa.string())
    if pa.types.is_boolean(kind):
        return pc.if_else(array, "true", "false")
    if pa.types.is_integer(kind):
        return array.cast(pa.string())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return quoted_text(array.cast(pa.string()))
    if pa.types.is_decimal(kind) and 0 <= kind.scale <= _PLAIN_SCALE:
        return quoted(array.cast(pa.string()))
    if pa.types.is_floating(kind):
        return _floats(array)
    if pa.types.is_timestamp(kind):
        return _moments(array)
    if pa.types.is_date(kind):
        return _days(array)
    if pa.types.is_binary(kind):
        return quoted(base64_texts(array))
    if pa.types.is_struct(kind):
        return _objects(array)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _lists(array)
    return _one_by_one(array)


class JsonRows:
    """JSON objects of many rows: constants and columns in turn, joined once."""

    def __init__(self) -> None:
        self._parts: list[str | pa.Array] = [""]

    def text(self, constant: str) -> JsonRows:
        """Append the same text to every row."""
        if isinstance(self._parts[-1], str):
            self._parts[-1] += constant
        else:
            self._parts.append(constant)
        return self

    def texts(self, column: pa.Array) -> JsonRows:
        """Append texts as they are, `null` where there is none."""
        self._parts.append(column)
        return self

    def value(self, value: Any) -> JsonRows:
        """Append a value: a column of them, or the same one in every row; a mapping is an object of such values."""
        if isinstance(value, Mapping):
            return self.object(value)
        if isinstance(value, pa.Array):
            return self.texts(json_texts(value))
        return self.text(json.dumps(value, ensure_ascii=False))

    def plain(self, column: pa.Array) -> JsonRows:
        """Append texts that are never null and need no escapes, in quotes: these go into the constants beside them."""
        return self.text('"').texts(column).text('"')

    def name(self, name: str, *, first: bool = False) -> JsonRows:
        """Append the name of an object's next member."""
        return self.text(("{" if first else ",") + json.dumps(name, ensure_ascii=False) + ":")

    def object(self, values: Mapping[str, Any]) -> JsonRows:
        for number, (name, value) in enumerate(values.items()):
            self.name(name, first=not number).value(value)
        return self.text("}" if values else "{}")

    def joined(self, rows: int) -> pa.Array:
        """Return the text of each row."""
        if len(self._parts) == 1:
            return pa.repeat(self._parts[0], rows)
        return pc.binary_join_element_wise(*self._parts, "", null_handling="replace", null_replacement=NULL)


def objects(columns: Mapping[str, pa.Array], rows: int) -> pa.Array:
    """Return a JSON object per row."""
    return JsonRows().object(columns).joined(rows)


def _floats(array: pa.Array) -> pa.Array:
    plain = array.cast(pa.string())
    plain = pc.if_else(pc.equal(plain, "-0"), "-0.0", plain)  # as a whole number it would lose its sign
    finite = pc.is_finite(array)
    if pc.all(finite).as_py():
        return plain
    words = pc.if_else(pc.is_nan(array), '"NaN"', pc.if_else(pc.greater(array, 0), '"Infinity"', '"-Infinity"'))
    return pc.if_else(finite, plain, words)


def _moments(array: pa.Array) -> pa.Array:
    """By way of whole numbers: with a time zone, Arrow would look the zone up for each value."""
    zone = array.type.tz
    numbers = array.cast(pa.timestamp("us", zone)).cast(pa.int64())
    bounds = pc.min_max(numbers).as_py()
    if bounds["min"] < _FIRST_PLAIN_YEAR or bounds["max"] >= _FIRST_LONG_YEAR:
        return _one_by_one(array)
    plain = numbers.cast(pa.timestamp("us")).cast(pa.string())
    iso = pc.replace_substring(pc.binary_replace_slice(plain, 10, 11, "T"), ".000000", "")
    return quoted(pc.binary_join_element_wise(iso, "Z", "") if zone is not None else iso)


def _days(array: pa.Array) -> pa.Array:
    days = array.cast(pa.date32())
    bounds = pc.min_max(days.cast(pa.int32())).as_py()
    if bounds["min"] < _FIRST_PLAIN_YEAR // _DAY or bounds["max"] >= _FIRST_LONG_YEAR // _DAY:
        return _one_by_one(array)
    return quoted(days.cast(pa.string()))


def _objects(array: pa.StructArray) -> pa.Array:
    """Render the rows that are there, and put them back among those that are null."""
    names = [field.name for field in array.type]
    if not array.null_count:
        return objects(dict(zip(names, array.flatten(), strict=True)), len(array))
    valid = np.asarray(array.is_valid())
    there = array.filter(pa.array(valid))
    rendered = objects(dict(zip(names, there.flatten(), strict=True)), len(there))
    return rendered.take(pa.array(np.cumsum(valid) - 1, mask=~valid))


def _lists(array: pa.Array) -> pa.Array:
    items = pc.fill_null(json_texts(array.flatten()), NULL)
    lengths = np.asarray(pc.fill_null(pc.list_value_length(array), 0))
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, items), ",")
    if array.null_count:
        joined = pc.if_else(array.is_valid(), joined, pa.scalar(None, pa.string()))
    return pc.binary_join_element_wise("[", joined, "]", "")


def _one_by_one(array: pa.Array) -> pa.Array:
    """For types that are rare or that kernels do not write exactly."""
    texts = [None if one is None else json.dumps(one, ensure_ascii=False) for one in json_values(array)]
    return pa.array(texts, pa.string())
