"""Values of Arrow as JSON has them, without loss: for records that leave as text.

| value              | in JSON                                                                         |
|--------------------|---------------------------------------------------------------------------------|
| truth, whole, text | as they are                                                                     |
| floating           | a number; "NaN", "Infinity", "-Infinity" for what JSON has no number for        |
| decimal            | text with all its digits: a JSON number may lose some                           |
| date, time, moment | ISO 8601, whatever the year; a moment of the time line ends in Z                |
| binary             | base64                                                                          |
| list, struct       | an array, an object                                                             |
| map                | an object; its keys are text                                                    |
"""

from __future__ import annotations

import base64
import math
from datetime import date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

DAYS_TO_2000 = 10_957
DAYS_IN_400_YEARS = 146_097


def json_values(array: pa.Array) -> list[Any]:
    """Return what `json.dumps` takes, one item per value; None for null."""
    kind = array.type
    if pa.types.is_struct(kind):
        inner = [json_values(field) for field in array.flatten()]
        names = [field.name for field in kind]
        valid = array.is_valid().to_pylist()
        return [
            {name: values[row] for name, values in zip(names, inner, strict=True)} if there else None
            for row, there in enumerate(valid)
        ]
    if pa.types.is_map(kind):
        keys, items = [key_text(key) for key in json_values(array.keys)], json_values(array.items)
        return [None if span is None else dict(zip(keys[span], items[span], strict=True)) for span in _spans(array)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        items = json_values(array.values)
        return [None if span is None else items[span] for span in _spans(array)]
    return _plain_values(array)


def key_text(key: Any) -> str:
    return key if isinstance(key, str) else "null" if key is None else str(key)


def day_text(days: int) -> str:
    """Return days since 1970. The calendar repeats every 400 years, so any year is computed as one near 2000."""
    cycles, rest = divmod(days - DAYS_TO_2000, DAYS_IN_400_YEARS)
    near = date(2000, 1, 1) + timedelta(days=rest)
    return f"{near.year + 400 * cycles:04}-{near:%m-%d}"


def moment_text(microseconds: int) -> str:
    days, rest = divmod(microseconds, 86_400_000_000)
    return f"{day_text(days)}T{(datetime.min + timedelta(microseconds=rest)).time().isoformat()}"


def float_value(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _spans(array: pa.Array) -> list[slice | None]:
    """Where each list has its items among those of all; None for null. A list that is null may have a span too."""
    offsets = array.offsets.to_pylist()
    valid = array.is_valid().to_pylist()
    return [slice(offsets[row], offsets[row + 1]) if there else None for row, there in enumerate(valid)]


def _plain_values(array: pa.Array) -> list[Any]:
    kind = array.type
    if pa.types.is_date(kind):
        days = array.cast(pa.date32()).cast(pa.int32()).to_pylist()
        return [None if value is None else day_text(value) for value in days]
    if pa.types.is_timestamp(kind):
        zone = "Z" if kind.tz is not None else ""
        moments = array.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()).to_pylist()
        return [None if value is None else moment_text(value) + zone for value in moments]
    values = array.to_pylist()
    if pa.types.is_float32(kind):  # the shortest text that is this number, and no digits of its nearest float64
        return [None if value is None else float_value(float(str(np.float32(value)))) for value in values]
    if pa.types.is_floating(kind):
        return [None if value is None else float_value(value) for value in values]
    if pa.types.is_decimal(kind):
        return [None if value is None else f"{value:f}" for value in values]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return [None if value is None else base64.b64encode(value).decode() for value in values]
    if pa.types.is_time(kind):
        return [None if value is None else value.isoformat() for value in values]
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind) or _is_text(kind):
        return list(values)
    raise ValueError(f"no JSON for {kind}")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
