"""Render query results as tables, JSON and CSV. Arrow in, text out.

JSON: one array of objects with JSON's own values. A map is an object, whose keys are text. Decimals are strings (a JSON
number may lose digits), as are times (ISO 8601); binary is hexadecimal, and floats that JSON has no number for are
"NaN", "Infinity", "-Infinity".
CSV: NULL is an empty field, an empty string is "".
"""

from __future__ import annotations

import io
import json
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyarrow import csv
from rich.table import Table
from rich.text import Text

from penstock.decode.json_values import day_text, float_value, moment_text

NULL = Text("null", style="dim")


def as_table(answer: pa.Table) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for field in answer.schema:
        table.add_column(field.name, justify="right" if _is_number(field.type) else "left", overflow="fold")
    columns = [_values(column) for column in answer.columns]
    for row in zip(*columns, strict=True):
        table.add_row(*(NULL if value is None else Text(_cell(value)) for value in row))
    return table


def as_json(answer: pa.Table) -> str:
    columns = [[_native(value) for value in _values(column)] for column in answer.columns]
    rows = [dict(zip(answer.column_names, row, strict=True)) for row in zip(*columns, strict=True)]
    if not rows:
        return "[]"
    return "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]"


def as_csv(answer: pa.Table) -> str:
    columns = []
    for column in answer.columns:
        values = _plain(column)
        if not _is_number(column.type) and not pa.types.is_boolean(column.type):
            values = pa.array([None if v is None else _cell(v) for v in _values(column)], pa.string())
        columns.append(values)
    sink = io.BytesIO()
    csv.write_csv(pa.table(columns, names=answer.column_names), sink)
    return sink.getvalue().decode()


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return times as ISO text, also those of years that neither Python nor Arrow can write."""
    kind = column.type
    if pa.types.is_date(kind):
        days = column.cast(pa.date32()).cast(pa.int32()).to_pylist()
        texts = [None if value is None else day_text(value) for value in days]
    elif pa.types.is_timestamp(kind):
        zone = "Z" if kind.tz is not None else ""
        moments = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()).to_pylist()
        texts = [None if value is None else moment_text(value) + zone for value in moments]
    else:
        return column
    return pa.chunked_array([texts], pa.string())


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Python's values, with maps as dictionaries wherever they are."""
    plain = _plain(column)
    return [_with_maps(value, plain.type) for value in plain.to_pylist()]


def _with_maps(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {_cell(_with_maps(key, kind.key_type)): _with_maps(inner, kind.item_type) for key, inner in value}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [_with_maps(inner, kind.value_type) for inner in value]
    if pa.types.is_struct(kind):
        return {field.name: _with_maps(value[field.name], field.type) for field in kind}
    return value


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _cell(value: Any) -> str:
    native = _native(value)
    return native if isinstance(native, str) else json.dumps(native, ensure_ascii=False)


def _native(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float_value(value)
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, timedelta):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _native(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_native(inner) for inner in value]
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
