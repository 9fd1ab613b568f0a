r"""bytea as `\x…`, the form that `bytea_output=hex` makes. See codec.py for the shape of these modules.

The prefix has two characters and every byte has two digits, so the texts laid end to end are pairs of characters: each
pair is looked up once, and the pairs that are prefixes are left out.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.decode.postgres.types.codec import Served, TypeCodec
from penstock.model.table import ColumnType

_NO_DIGIT = 0xFF
_DIGIT: npt.NDArray[np.uint8] = np.full(256, _NO_DIGIT, np.uint8)
for _characters in (b"0123456789abcdef", b"0123456789ABCDEF"):
    _DIGIT[np.frombuffer(_characters, np.uint8)] = np.arange(16, dtype=np.uint8)


def codec(type: ColumnType) -> TypeCodec:
    return _CODEC


def _parse(texts: pa.Array) -> pa.Array:
    count = len(texts)
    _, offset_buffer, data = texts.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[texts.offset : texts.offset + count + 1].astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    characters = np.frombuffer(data, np.uint8)[first:last] if data is not None else np.empty(0, np.uint8)
    offsets -= first
    lengths = np.diff(offsets)
    present = ~np.asarray(texts.is_null())
    if np.any(lengths[~present] != 0) or np.any(lengths[present] < 2) or np.any(lengths % 2 != 0):
        raise ValueError("not of the form \\x and an even number of digits")
    prefixes = offsets[:-1][present]
    if np.any(characters[prefixes] != ord("\\")) or np.any(characters[prefixes + 1] != ord("x")):
        raise ValueError("does not begin with \\x")
    is_byte = np.ones(len(characters) // 2, np.bool_)
    is_byte[prefixes // 2] = False
    digits = _DIGIT[characters.reshape(-1, 2)[is_byte]]
    if np.any(digits == _NO_DIGIT):
        raise ValueError("not hexadecimal")
    octets = (digits[:, 0] << 4) | digits[:, 1]
    starts = np.zeros(count + 1, np.int32)
    np.cumsum(np.where(present, lengths // 2 - 1, 0), out=starts[1:])
    mask = None if texts.null_count == 0 else pa.array(present).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), count, [mask, pa.py_buffer(starts), pa.py_buffer(octets)])


_CODEC = TypeCodec(pa.binary(), _parse)

SERVED = (Served({"bytea": 17}, codec, "binary", "binary", "every byte"),)
