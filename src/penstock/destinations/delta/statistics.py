"""What a data file holds, in figures, as Delta's log keeps them: rows, nulls, and bounds by which readers skip files.

Computed from the Arrow columns while they are written. The result is the text of Delta's `stats`. A bound that readers
might take for tighter than it is stays out: of columns with NaN, of infinite numbers, of moments beyond the year 9999.
Text is cut, and moments are rounded to milliseconds, both outwards.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

MOST_COLUMNS_WITH_BOUNDS = 32  # as Delta has it by default
LONGEST_BOUND = 32
_LAST = "\U0010ffff"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = date(1970, 1, 1)
_FIRST_MOMENT, _LAST_MOMENT = -62135596800_000_000, 253402300799_999_000  # microseconds: years 1 to 9999


class Statistics:
    """Collect over the batches of one file. Columns go by the names that the file has for them."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._rows = 0
        self._nulls = [0] * len(schema)
        self._low: list[Any] = [None] * len(schema)
        self._high: list[Any] = [None] * len(schema)
        self._bounded = [_has_bounds(field.type) for field in schema][:MOST_COLUMNS_WITH_BOUNDS]

    def add(self, rows: pa.Table) -> None:
        self._rows += rows.num_rows
        for number in range(len(self._schema)):
            column = rows.column(number)
            self._nulls[number] += column.null_count
            if number < len(self._bounded) and self._bounded[number]:
                self._widen(number, column)

    def _widen(self, number: int, column: pa.ChunkedArray) -> None:
        type = self._schema.field(number).type
        if pa.types.is_floating(type) and pc.any(pc.is_nan(column)).as_py():
            self._bounded[number] = False  # for Spark, NaN is greater than every number
            return
        bounds = pc.min_max(column)
        if not bounds["min"].is_valid:
            return
        low, high = _plain(bounds["min"]), _plain(bounds["max"])
        before = self._low[number] is not None
        self._low[number] = min(low, self._low[number]) if before else low
        self._high[number] = max(high, self._high[number]) if before else high

    def text(self) -> str:
        low, high = {}, {}
        for number, bounded in enumerate(self._bounded):
            if not bounded or self._low[number] is None:
                continue
            field = self._schema.field(number)
            least, most = _low_text(self._low[number], field.type), _high_text(self._high[number], field.type)
            if least is not None and most is not None:
                low[field.name], high[field.name] = least, most
        plain = [n for n, field in enumerate(self._schema) if not pa.types.is_nested(field.type)]
        nulls = {self._schema.field(number).name: str(self._nulls[number]) for number in plain}
        parts = {"minValues": low, "maxValues": high, "nullCount": nulls}
        figures = ",".join(f'"{name}":{_object(values)}' for name, values in parts.items())
        return f'{{"numRecords":{self._rows},{figures},"tightBounds":true}}'


@lru_cache(maxsize=1 << 14)
def records_in(stats: str) -> int:
    """Return the number of rows that `stats` says. KeyError if it does not."""
    return int(json.loads(stats)["numRecords"])


@lru_cache(maxsize=1 << 12)
def with_dead_rows(stats: str, records: int) -> str:
    """Return the `stats` of a file with a deletion vector: bounds are not tight, and the number of rows is there."""
    told = json.loads(stats, parse_float=Decimal) if stats else {}
    return _dumped({"numRecords": records, **told, "tightBounds": False})


def _dumped(value: Any) -> str:
    """Write JSON, with decimals digit by digit."""
    if isinstance(value, dict):
        return _object({key: _dumped(one) for key, one in value.items()})
    if isinstance(value, list):
        return f"[{','.join(map(_dumped, value))}]"
    return format(value, "f") if isinstance(value, Decimal) else json.dumps(value)


def _object(texts: dict[str, str]) -> str:
    return "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in texts.items()) + "}"


def _has_bounds(type: pa.DataType) -> bool:
    return not (pa.types.is_nested(type) or pa.types.is_binary(type) or pa.types.is_boolean(type))


def _plain(scalar: pa.Scalar) -> Any:
    """Return a value that Python compares as Spark does: text as UTF-8, dates and timestamps as numbers."""
    if pa.types.is_string(scalar.type):
        return scalar.as_buffer().to_pybytes()
    return scalar.value if pa.types.is_temporal(scalar.type) else scalar.as_py()


def _low_text(value: Any, type: pa.DataType) -> str | None:
    if pa.types.is_string(type):
        return json.dumps(value.decode()[:LONGEST_BOUND])
    if pa.types.is_timestamp(type):
        return _moment(value - value % 1000, type)
    return _number_or_day(value, type)


def _high_text(value: Any, type: pa.DataType) -> str | None:
    if pa.types.is_string(type):
        text = value.decode()
        if len(text) <= LONGEST_BOUND:
            return json.dumps(text)
        return None if text[LONGEST_BOUND] == _LAST else json.dumps(text[:LONGEST_BOUND] + _LAST)
    if pa.types.is_timestamp(type):
        return _moment(value + -value % 1000, type)
    return _number_or_day(value, type)


def _number_or_day(value: Any, type: pa.DataType) -> str | None:
    if pa.types.is_date(type):
        try:
            return json.dumps((_DAY + timedelta(days=value)).isoformat())
        except OverflowError:
            return None
    if isinstance(value, Decimal):
        return format(value, "f")
    return json.dumps(value) if math.isfinite(value) else None


def _moment(microseconds: int, type: pa.DataType) -> str | None:
    if not _FIRST_MOMENT <= microseconds <= _LAST_MOMENT:
        return None
    text = (_EPOCH + timedelta(microseconds=microseconds)).replace(tzinfo=None).isoformat(timespec="milliseconds")
    return json.dumps(f"{text}Z" if type.tz else text)
