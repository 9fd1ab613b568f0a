"""Compute the figures of a file that Iceberg's manifests keep: counts, sizes, and bounds by which readers skip files.

They come from the Arrow columns while these are written, batch after batch, so that no file is opened again and no Java
is called. The result is the JSON that Iceberg's ContentFileParser reads. Bounds of text and bytes are cut to 16, as
Iceberg does. Lists, maps and structs have sizes only.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

MOST_COLUMNS_WITH_BOUNDS = 100  # as Iceberg infers metrics by default
LONGEST_BOUND = 16


class Metrics:
    """Collect over the batches of one file. `exact` keeps bounds uncut: delete files are matched by them."""

    def __init__(self, fields: list[tuple[int, pa.DataType]], *, exact: bool = False) -> None:
        self._fields = fields
        self._exact = exact
        self._rows = 0
        self._nulls = [0] * len(fields)
        self._nans = [0] * len(fields)
        self._lower: list[Any] = [None] * len(fields)
        self._upper: list[Any] = [None] * len(fields)

    def add(self, rows: pa.Table) -> None:
        self._rows += rows.num_rows
        for number, (_, type) in enumerate(self._fields):
            if pa.types.is_nested(type):
                continue
            column = rows.column(number)
            self._nulls[number] += column.null_count
            if pa.types.is_floating(type):
                self._nans[number] += pc.sum(pc.is_nan(column)).as_py() or 0
            if number < MOST_COLUMNS_WITH_BOUNDS:
                self._widen(number, pc.min_max(column))

    def _widen(self, number: int, bounds: pa.StructScalar) -> None:
        low, high = _plain(bounds["min"]), _plain(bounds["max"])
        if low is None or low != low:  # nothing but nulls, nothing but NaN
            return
        before_low, before_high = self._lower[number], self._upper[number]
        self._lower[number] = low if before_low is None else min(low, before_low)
        self._upper[number] = high if before_high is None else max(high, before_high)

    def as_json(self, column_sizes: dict[int, int]) -> dict[str, Any]:
        ids = [field_id for field_id, _ in self._fields]
        plain = [number for number, (_, type) in enumerate(self._fields) if not pa.types.is_nested(type)]
        lower, upper = {}, {}
        for number, (field_id, type) in enumerate(self._fields):
            if self._lower[number] is None:
                continue
            encode = _encoder(type)
            low, high = self._lower[number], self._upper[number]
            if not self._exact and isinstance(low, bytes):
                low, high = _cut_low(low, type), _cut_high(high, type)
            if pa.types.is_floating(type):
                low, high = (-0.0 if low == 0 else low), (0.0 if high == 0 else high)
            lower[field_id] = encode(low).hex()
            if high is not None:
                upper[field_id] = encode(high).hex()
        floats = [number for number, (_, type) in enumerate(self._fields) if pa.types.is_floating(type)]
        return {
            "record-count": self._rows,
            "column-sizes": _map(column_sizes),
            "value-counts": _map({ids[number]: self._rows for number in plain}),
            "null-value-counts": _map({ids[number]: self._nulls[number] for number in plain}),
            "nan-value-counts": _map({ids[number]: self._nans[number] for number in floats}),
            "lower-bounds": _map(lower),
            "upper-bounds": _map(upper),
        }


def _map(entries: dict[int, Any]) -> dict[str, list[Any]]:
    return {"keys": list(entries), "values": list(entries.values())}


def _plain(scalar: pa.Scalar) -> Any:
    """Return a value that Python compares as Iceberg does: text as UTF-8, dates and timestamps as numbers."""
    if not scalar.is_valid:
        return None
    if pa.types.is_string(scalar.type) or pa.types.is_binary(scalar.type):
        return scalar.as_buffer().to_pybytes()
    if pa.types.is_temporal(scalar.type):
        return scalar.value
    return scalar.as_py()


def _encoder(type: pa.DataType) -> Callable[[Any], bytes]:
    """Iceberg's single-value serialisation."""
    if pa.types.is_string(type) or pa.types.is_binary(type):
        return lambda value: bytes(value)
    if pa.types.is_decimal(type):
        scale = type.scale
        return lambda value: _unscaled(value, scale)
    layout = {
        pa.bool_(): "<?",
        pa.int32(): "<i",
        pa.date32(): "<i",
        pa.int64(): "<q",
        pa.float32(): "<f",
        pa.float64(): "<d",
    }.get(type, "<q")  # timestamps
    return lambda value: struct.pack(layout, value)


def _unscaled(value: Decimal, scale: int) -> bytes:
    sign, digits, exponent = value.as_tuple()
    number = int("".join(map(str, digits))) * 10 ** (int(exponent) + scale)
    unscaled: int = -number if sign else number
    return unscaled.to_bytes((unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1, "big", signed=True)


def _cut_low(value: bytes, type: pa.DataType) -> bytes:
    if pa.types.is_string(type):
        return value.decode()[:LONGEST_BOUND].encode()
    return value[:LONGEST_BOUND]


def _cut_high(value: bytes, type: pa.DataType) -> bytes | None:
    """Return the shortest greater value of that length; None when there is none, which means: no bound."""
    if pa.types.is_string(type):
        text = value.decode()
        if len(text) <= LONGEST_BOUND:
            return value
        for end in range(LONGEST_BOUND, 0, -1):
            following = ord(text[end - 1]) + 1
            if 0xD800 <= following <= 0xDFFF:
                following = 0xE000
            if following <= 0x10FFFF:
                return (text[: end - 1] + chr(following)).encode()
        return None
    if len(value) <= LONGEST_BOUND:
        return value
    for end in range(LONGEST_BOUND, 0, -1):
        if value[end - 1] < 0xFF:
            return value[: end - 1] + bytes([value[end - 1] + 1])
    return None
