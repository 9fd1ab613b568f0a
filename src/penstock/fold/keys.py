"""Encode keys as one comparable column, the same wherever they are computed.

The fold computes them from decoded rows, and a destination from the columns that it reads back from its own files. One
integer column is its number (int64). Anything else is one binary value: fixed-width parts as they are, and parts of
varying length, in a key of several columns, behind their length, so that ("a", "bc") and ("ab", "c") differ. The binary
form belongs to the column types: only keys of one table may be compared.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Octets = npt.NDArray[np.uint8]
_SIGN = np.uint64(1 << 63)
_HASHED_WORDS = 8  # of eight bytes each, from the end of a binary key: enough to spread keys over buckets


def encode_keys(columns: Sequence[pa.Array]) -> pa.Array:
    """Return one key a row. Raises ValueError for a null: a key has none."""
    plain = [_plain(column) for column in columns]
    if any(column.null_count for column in plain):
        raise ValueError("a key column holds a null")
    if len(plain) == 1 and pa.types.is_integer(plain[0].type):
        return plain[0].cast(pa.int64())
    if len(plain) == 1:
        return _part(plain[0])
    parts: list[pa.Array] = []
    for column in plain:
        part = _part(column)
        if _varies(column.type):
            parts.append(_fixed(_binary_lengths(part).astype(">u4")))
        parts.append(part)
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))


def decode_keys(keys: pa.Array, types: Sequence[pa.DataType]) -> list[pa.Array]:
    """Give back the columns that `encode_keys` made these keys of; `types` are theirs."""
    if len(types) == 1 and pa.types.is_integer(types[0]):
        return [keys.cast(types[0])]
    if len(types) == 1:
        return [_unpacked(types[0], keys)]
    octets = np.frombuffer(keys.buffers()[2] or b"", np.uint8) if len(keys) else np.empty(0, np.uint8)
    offsets, columns = _binary_offsets(keys), []
    at = offsets[:-1].copy()
    for type in types:
        if _varies(type):
            lengths = _gathered(octets, at, np.full(len(keys), 4)).view(">u4").astype(np.int64)
            at += 4
        else:
            lengths = np.full(len(keys), type.byte_width if pa.types.is_decimal(type) else 8)
        values = _gathered(octets, at, lengths)
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(values))]
        columns.append(_unpacked(type, pa.Array.from_buffers(pa.binary(), len(keys), buffers)))
        at += lengths
    return columns


def _gathered(octets: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> Octets:
    """Return so many octets from each place, one behind the other."""
    begins = np.cumsum(lengths) - lengths
    return octets[np.repeat(at - begins, lengths) + np.arange(int(lengths.sum()))]


def _unpacked(type: pa.DataType, part: pa.Array) -> pa.Array:
    """Return the values that `_part` made these bytes of."""
    if _varies(type):
        return part.cast(type)
    width = type.byte_width if pa.types.is_decimal(type) else 8
    lengths = np.full(len(part), width)
    octets = np.frombuffer(part.buffers()[2] or b"", np.uint8) if len(part) else np.empty(0, np.uint8)
    fixed = np.ascontiguousarray(_gathered(octets, _binary_offsets(part)[:-1], lengths))
    if pa.types.is_decimal(type):
        return pa.Array.from_buffers(type, len(part), [None, pa.py_buffer(fixed)])
    words = fixed.view(">u8").astype(np.uint64)
    if pa.types.is_floating(type):
        return pa.array(words.view(np.float64)).cast(type)
    numbers = pa.array((words ^ _SIGN).view(np.int64))
    if pa.types.is_boolean(type):
        return numbers.cast(pa.bool_())
    if pa.types.is_timestamp(type):
        return numbers.cast(pa.timestamp("us", type.tz)).cast(type)
    if pa.types.is_time64(type):
        return numbers.cast(pa.time64("us")).cast(type)
    return numbers.cast(pa.int32()).cast(type) if pa.types.is_date32(type) else numbers.cast(type)


def bucket_of(keys: pa.Array, buckets: int) -> npt.NDArray[np.int64]:
    """Return a bucket number for each encoded key, the same in every process."""
    if pa.types.is_integer(keys.type):
        hashed = _mixed(np.asarray(keys).astype(np.int64).view(np.uint64))
    else:
        hashed = _binary_hash(keys)
    return (hashed % np.uint64(buckets)).astype(np.int64)


def _plain(column: pa.Array) -> pa.Array:
    """Return one contiguous array of the types that decode makes, whatever a file reader made of them."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column


def _varies(type: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(type)
        or pa.types.is_binary(type)
        or pa.types.is_large_string(type)
        or pa.types.is_large_binary(type)
    )


def _part(column: pa.Array) -> pa.Array:
    """Return one column's values as bytes, equal if and only if the values are."""
    type = column.type
    if _varies(type):
        return column.cast(pa.binary())
    if pa.types.is_decimal128(type) or pa.types.is_decimal256(type):
        return _fixed(_buffer_of(column, np.dtype(f"V{type.byte_width}")))
    if pa.types.is_floating(type):
        numbers = np.asarray(column.cast(pa.float64())) + 0.0  # makes -0.0 into 0.0
        numbers[np.isnan(numbers)] = np.nan
        return _fixed(numbers.view(np.uint64).astype(">u8"))
    if pa.types.is_timestamp(type):
        column = column.cast(pa.timestamp("us", type.tz)).cast(pa.int64())
    elif pa.types.is_time64(type):
        column = column.cast(pa.time64("us")).cast(pa.int64())
    elif pa.types.is_date32(type):
        column = column.cast(pa.int32())
    elif pa.types.is_boolean(type):
        column = column.cast(pa.uint8())
    elif not pa.types.is_integer(type):
        raise ValueError(f"a column of type {type} cannot be part of a key")
    return _fixed((np.asarray(column.cast(pa.int64())).view(np.uint64) ^ _SIGN).astype(">u8"))


def _buffer_of(column: pa.Array, dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
    if len(column) == 0:
        return np.empty(0, dtype)
    return np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * dtype.itemsize)


def _fixed(values: npt.NDArray[np.generic]) -> pa.Array:
    """Return values of one width as a BinaryArray over their own memory."""
    offsets = np.arange(len(values) + 1, dtype=np.int64) * values.itemsize
    if offsets[-1] > np.iinfo(np.int32).max:
        raise ValueError("more than 2 GiB of keys in one array")
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(values).view(np.uint8))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def _binary_offsets(column: pa.Array) -> npt.NDArray[np.int64]:
    if len(column) == 0:
        return np.zeros(1, np.int64)
    offsets = np.frombuffer(column.buffers()[1], np.int32)
    return offsets[column.offset : column.offset + len(column) + 1].astype(np.int64)


def _binary_lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    return np.diff(_binary_offsets(column))


def _mixed(hashed: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser: neighbours end up far apart."""
    hashed = (hashed ^ (hashed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashed = (hashed ^ (hashed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashed ^ (hashed >> np.uint64(31))


def _binary_hash(keys: pa.Array) -> npt.NDArray[np.uint64]:
    keys = keys.cast(pa.binary())
    offsets = _binary_offsets(keys)
    lengths = np.diff(offsets)
    hashed = _mixed(lengths.astype(np.uint64))
    data = keys.buffers()[2] if len(keys) else None
    if data is None or lengths.max() == 0:
        return hashed
    octets = np.frombuffer(data, np.uint8)
    for word in range(min(_HASHED_WORDS, -(-int(lengths.max()) // 8))):
        rest = lengths - 8 * word
        rows = np.flatnonzero(rest > 0)
        ends = offsets[1:][rows] - 8 * word
        value = np.zeros(len(rows), np.uint64)
        for back in range(8):
            octet = octets[np.maximum(ends - 1 - back, 0)].astype(np.uint64)
            value |= np.where(rest[rows] > back, octet, np.uint64(0)) << np.uint64(8 * back)
        hashed[rows] = _mixed(hashed[rows] ^ value)
    return hashed
