"""Encode whole rows as one comparable column, for tables without a key: the same wherever they are computed.

The fold computes them from decoded rows, and a destination from the columns that it reads back from its own files. A
row's key is the SHA-256 of its canonical form: 32 bytes, whatever the row. Different rows have different keys, for
nobody has ever found two texts with the same SHA-256. Rows are equal when the destination stores the same for them:
NULL equals NULL, all NaNs are one, -0.0 and 0.0 differ, numbers of one column are equal by value, and a rescued cell is
its text. The form does not change when a column is widened. Neighbour: `keys`, for tables with a key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.rescue import entries

DIGEST = 32
_ROWS_AT_ONCE = 1 << 13
_BYTES_AT_ONCE = 256 << 20
_NO_SEPARATOR = pa.scalar(b"", pa.binary())

Octets = npt.NDArray[np.uint8]


def encode_rows(rows: pa.Table, rescued: pa.Array | None = None) -> pa.Array:
    """Make one key per row, from all columns in their order.

    `rescued` has RESCUED_TYPE, and entries under the names of the columns.
    """
    if rows.num_columns == 0:
        raise ValueError("a table without columns has no rows that could be compared")
    digests: list[bytes] = []
    begin = 0
    for piece in _pieces(rows):
        cells = None if rescued is None else rescued.slice(begin, piece.num_rows)
        digests.append(_digests(_joined([*piece.columns, _rescued_texts(piece, cells)])))
        begin += piece.num_rows
    offsets = np.arange(rows.num_rows + 1, dtype=np.int64) * DIGEST
    if offsets[-1] > np.iinfo(np.int32).max:
        raise ValueError("more than 2 GiB of keys in one array")
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(b"".join(digests))]
    return pa.Array.from_buffers(pa.binary(), rows.num_rows, buffers)


def _pieces(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield runs of rows whose canonical forms fit one array."""
    left = rows.to_batches(max_chunksize=_ROWS_AT_ONCE)[::-1]
    while left:
        piece = left.pop()
        if piece.num_rows > 1 and piece.nbytes > _BYTES_AT_ONCE:
            half = piece.num_rows // 2
            left += [piece.slice(half), piece.slice(0, half)]
        else:
            yield piece


def _rescued_texts(piece: pa.RecordBatch, rescued: pa.Array | None) -> pa.Array:
    """Return what was rescued of each row: the places of the columns, each with its text, in the columns' order."""
    texts = [b""] * piece.num_rows
    if rescued is not None and rescued.null_count < len(rescued):
        places = {name: place for place, name in enumerate(piece.schema.names)}
        found = [
            (row, places[name], text.encode())
            for row, name, text in zip(*entries(rescued), strict=True)
            if name in places
        ]
        for row, place, text in sorted(found):
            texts[row] += place.to_bytes(4) + len(text).to_bytes(4) + text
    return pa.array(texts, pa.binary())


def _digests(forms: pa.Array) -> bytes:
    if len(forms) == 0:
        return b""
    sha256, data = hashlib.sha256, memoryview(forms.buffers()[2])
    return b"".join([sha256(data[start:end]).digest() for start, end in pairwise(_offsets(forms).tolist())])


def _joined(columns: Sequence[pa.Array]) -> pa.Array:
    """Return the canonical form of each row: a block of the same width for all, then the values of varying length."""
    blocks: list[Octets] = []
    parts: list[pa.Array] = []
    for column in columns:
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        there = np.asarray(column.is_valid())
        blocks.append(there.astype(np.uint8).reshape(-1, 1))
        fixed = _fixed(column)
        if fixed is not None:
            fixed[~there] = 0
            blocks.append(fixed)
        else:
            part = _varying(column)
            parts.append(part)
            blocks.append(np.diff(_offsets(part)).astype(">u4").view(np.uint8).reshape(-1, 4))
    block = np.ascontiguousarray(np.concatenate(blocks, axis=1))
    offsets = np.arange(len(block) + 1, dtype=np.int32) * np.int32(block.shape[1])
    begin = pa.Array.from_buffers(pa.binary(), len(block), [None, pa.py_buffer(offsets), pa.py_buffer(block)])
    return pc.binary_join_element_wise(begin, *parts, _NO_SEPARATOR) if parts else begin


def _fixed(column: pa.Array) -> Octets | None:
    """Return values of one width, a row of octets each; None when they vary in length. What is null may be anything."""
    type = column.type
    if pa.types.is_decimal128(type) or pa.types.is_decimal256(type):
        width = type.byte_width
        start = column.offset * width
        octets = np.frombuffer(column.buffers()[1], np.uint8)[start : start + width * len(column)]
        return octets.reshape(-1, width).copy()
    if pa.types.is_floating(type):
        numbers = np.asarray(pc.fill_null(column.cast(pa.float64()), 0.0)).copy()
        numbers[np.isnan(numbers)] = np.nan
        return numbers.view(np.uint8).reshape(-1, 8)
    if pa.types.is_timestamp(type):
        column = column.cast(pa.timestamp("us", type.tz)).cast(pa.int64())
    elif pa.types.is_time64(type):
        column = column.cast(pa.time64("us")).cast(pa.int64())
    elif pa.types.is_date32(type):
        column = column.cast(pa.int32())
    elif not (pa.types.is_integer(type) or pa.types.is_boolean(type)):
        return None
    return np.asarray(pc.fill_null(column.cast(pa.int64()), 0)).copy().view(np.uint8).reshape(-1, 8)


def _varying(column: pa.Array) -> pa.Array:
    """Return values of any length as bytes; b"" where they are null, which the block tells apart."""
    type = column.type
    if pa.types.is_map(type):
        return _varying(column.cast(pa.list_(pa.struct([("key", type.key_type), ("value", type.item_type)]))))
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        forms = _joined([column.flatten()])
        lengths = np.asarray(pc.fill_null(pc.list_value_length(column), 0)).astype(np.int64)
        ends = np.concatenate([[0], np.cumsum(lengths)])
        offsets = _offsets(forms)[ends].astype(np.int32)
        return pa.Array.from_buffers(pa.binary(), len(column), [None, pa.py_buffer(offsets), forms.buffers()[2]])
    if pa.types.is_struct(type):
        return _joined(column.flatten())
    try:
        return pc.fill_null(column.cast(pa.binary()), b"")
    except pa.ArrowNotImplementedError as error:
        raise ValueError(f"a column of type {type} cannot be compared") from error


def _offsets(values: pa.Array) -> npt.NDArray[np.int64]:
    if len(values) == 0:
        return np.zeros(1, np.int64)
    offsets = np.frombuffer(values.buffers()[1], np.int32)
    return offsets[values.offset : values.offset + len(values) + 1].astype(np.int64)
