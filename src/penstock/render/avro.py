"""Arrow columns in Avro's binary encoding, by kernels: no Python object per value.

A record is its fields one behind the other. A nullable field is a union of null and its type: the byte 00 for null, or
02 and the value. So one join whose nulls are replaced by 00 writes a whole record.

| Arrow               | Avro                                       |
|---------------------|--------------------------------------------|
| bool                | boolean                                    |
| int8 to int32, date | int (date: logical type date)              |
| int64               | long                                       |
| timestamp           | long, timestamp-micros; local-timestamp-micros without a zone |
| float, double       | float, double                              |
| decimal             | bytes, decimal                             |
| string              | string                                     |
| binary              | bytes                                      |
| list                | array of nullable items                    |
| map                 | map of nullable values                     |
| struct              | record of nullable fields                  |
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Schema = dict[str, Any] | str
EMPTY = pa.scalar(b"", pa.binary())
NULL, VALUE = b"\x00", b"\x02"  # which branch of a union follows
_BAD = re.compile(r"[^A-Za-z0-9_]")


def avro_name(name: str) -> str:
    """Return a name that Avro allows: other characters are `_`, and a digit does not come first."""
    made = _BAD.sub("_", name)
    return f"_{made}" if not made or made[0].isdigit() else made


def avro_type(kind: pa.DataType, name: str) -> Schema:
    """Return the schema of an Arrow type. `name` is for the records in it."""
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_integer(kind):
        return "long" if kind.bit_width > 32 else "int"
    if pa.types.is_floating(kind):
        return "double" if kind.bit_width > 32 else "float"
    if pa.types.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pa.types.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros" if kind.tz else "local-timestamp-micros"}
    if pa.types.is_date(kind):
        return {"type": "int", "logicalType": "date"}
    if pa.types.is_binary(kind):
        return "bytes"
    if pa.types.is_list(kind):
        return {"type": "array", "items": ["null", avro_type(kind.value_type, name)]}
    if pa.types.is_map(kind):
        return {"type": "map", "values": ["null", avro_type(kind.item_type, name)]}
    if pa.types.is_struct(kind):
        return record(name, [(field.name, avro_type(field.type, f"{name}_{avro_name(field.name)}")) for field in kind])
    return "string"


def record(name: str, fields: Sequence[tuple[str, Schema]]) -> Schema:
    """Return a record whose fields may be null."""
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": avro_name(field), "type": ["null", kind], "default": None} for field, kind in fields],
    }


def values(array: pa.Array) -> pa.Array:
    """Return the encoding of each value, without a union around it; null where the value is null."""
    kind = array.type
    if array.null_count == len(array):
        return pa.nulls(len(array), pa.binary())
    if pa.types.is_boolean(kind):
        return _like(array, _fixed(np.asarray(pc.fill_null(array, False).cast(pa.uint8()))))
    if pa.types.is_floating(kind):
        return _like(array, _fixed(np.asarray(pc.fill_null(array, 0))))
    if pa.types.is_timestamp(kind):
        return _numbers(array.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()))
    if pa.types.is_date(kind):
        return _numbers(array.cast(pa.date32()).cast(pa.int32()))
    if pa.types.is_integer(kind):
        return _numbers(array)
    if pa.types.is_decimal(kind):
        return _like(array, _decimals(array))
    if pa.types.is_map(kind):
        return _maps(array)
    if pa.types.is_list(kind):
        return _lists(array)
    if pa.types.is_struct(kind):
        return _records(array)
    octets = array.cast(pa.binary())
    lengths = np.asarray(pc.fill_null(pc.binary_length(octets), 0)).astype(np.int64)
    return pc.binary_join_element_wise(varints(lengths), octets, EMPTY)


def union_parts(column: pa.Array) -> list[bytes | pa.Array]:
    """Return a nullable field as parts for `joined`, whose nulls are written there."""
    if column.null_count == len(column):
        return [NULL]
    return [VALUE, values(column)] if not column.null_count else [_nullable(column)]


def joined(parts: Sequence[bytes | pa.Array], rows: int) -> pa.Array:
    """Join constants and columns, row by row. A null in a column is the union's null."""
    merged: list[bytes | pa.Array] = []
    for part in parts:
        if isinstance(part, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += part
        else:
            merged.append(part)
    if len(merged) == 1 and isinstance(merged[0], bytes):
        return pa.array([merged[0]], pa.binary()).take(pa.array(np.zeros(rows, np.int32)))
    ready = [pa.scalar(part, pa.binary()) if isinstance(part, bytes) else part for part in merged]
    return pc.binary_join_element_wise(*ready, EMPTY, null_handling="replace", null_replacement=NULL)


def varints(numbers: npt.NDArray[np.int64]) -> pa.Array:
    """Return numbers in zigzag, seven bits per byte, the last byte without its high bit."""
    zigzag = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    count, top = len(numbers), int(zigzag.max()) if len(numbers) else 0
    width = max(1, -(-top.bit_length() // 7))
    if width == 1:
        return _fixed(zigzag.astype(np.uint8))
    octets = np.empty((count, width), np.uint8)
    lengths = np.ones(count, np.int32)
    for place in range(width):
        shifted = zigzag >> np.uint64(7 * place)
        more = shifted > np.uint64(0x7F)
        octets[:, place] = (shifted & np.uint64(0x7F)).astype(np.uint8) | (more.view(np.uint8) << 7)
        lengths += more
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    packed = octets.reshape(-1) if offsets[-1] == octets.size else octets[np.arange(width) < lengths[:, None]]
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(packed)])


def _numbers(array: pa.Array) -> pa.Array:
    return _like(array, varints(np.asarray(pc.fill_null(array.cast(pa.int64()), 0))))


def _nullable(array: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(pa.scalar(VALUE, pa.binary()), values(array), EMPTY)


def _records(array: pa.StructArray) -> pa.Array:
    if not array.null_count:
        return joined([part for column in array.flatten() for part in union_parts(column)], len(array))
    valid = np.asarray(array.is_valid())
    there = pa.StructArray.from_arrays(array.filter(pa.array(valid)).flatten(), fields=list(array.type))
    return _records(there).take(pa.array(np.cumsum(valid) - 1, mask=~valid))


def _lists(array: pa.Array) -> pa.Array:
    return _blocks(array, pc.fill_null(_nullable(array.flatten()), NULL), pc.list_value_length(array))


def _maps(array: pa.Array) -> pa.Array:
    """Keys are strings; a map is a list of pairs."""
    pairs = pa.ListArray.from_arrays(array.offsets, pa.StructArray.from_arrays([array.keys, array.items], ["k", "v"]))
    flat = pairs.flatten()
    keys, items = values(flat.field(0).cast(pa.string())), pc.fill_null(_nullable(flat.field(1)), NULL)
    counts = np.where(np.asarray(array.is_valid()), np.diff(np.asarray(array.offsets)), 0)
    return _blocks(array, pc.binary_join_element_wise(keys, items, EMPTY), pa.array(counts))


def _blocks(array: pa.Array, items: pa.Array, counts: pa.Array) -> pa.Array:
    """Return each value's items as one block, and the empty one that ends it. An empty value is the latter alone."""
    lengths = np.asarray(pc.fill_null(counts, 0)).astype(np.int64)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    content = pc.binary_join(pa.ListArray.from_arrays(offsets, items), EMPTY)
    ends = pa.array([b"", NULL], pa.binary()).take(pa.array((lengths > 0).astype(np.int8)))
    return _like(array, pc.binary_join_element_wise(varints(lengths), content, ends, EMPTY))


def _decimals(array: pa.Array) -> pa.Array:
    """Write all bytes of the type, the highest first: longer than need be, and the same number."""
    width = array.type.byte_width  # 16, or 32 from 39 digits
    raw = np.frombuffer(array.buffers()[1], np.uint8)
    raw = raw[width * array.offset : width * (array.offset + len(array))].reshape(-1, width)
    made = np.empty((len(array), width + 1), np.uint8)
    made[:, 0], made[:, 1:] = 2 * width, raw[:, ::-1]
    return _fixed(made.view(f"V{width + 1}").reshape(-1))


def _fixed(column: npt.NDArray[Any]) -> pa.Array:
    offsets = np.arange(len(column) + 1, dtype=np.int32) * column.itemsize
    data = pa.py_buffer(np.ascontiguousarray(column).view(np.uint8))
    return pa.Array.from_buffers(pa.binary(), len(column), [None, pa.py_buffer(offsets), data])


def _like(array: pa.Array, made: pa.Array) -> pa.Array:
    return made if not array.null_count else pc.if_else(array.is_valid(), made, pa.scalar(None, pa.binary()))
