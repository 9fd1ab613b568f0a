"""Quote text for JSON by kernels: no Python object per value. Used by `postgres/json_cells.py` and `render/`."""

from __future__ import annotations

import base64

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

NULL = "null"
_BACKSLASH, _QUOTE, _FIRST_PRINTABLE = 0x5C, 0x22, 0x20
_SHORT_ESCAPES = {0x08: "\\b", 0x09: "\\t", 0x0A: "\\n", 0x0C: "\\f", 0x0D: "\\r"}
_BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_SMALL = 64  # so few values are encoded one by one


def quoted(texts: pa.Array) -> pa.Array:
    """Put quotes around texts that need no escapes."""
    return pc.binary_join_element_wise('"', texts, '"', "")


def quoted_text(texts: pa.Array) -> pa.Array:
    """Return each text as a JSON string."""
    return quoted(escaped(texts))


def escaped(texts: pa.Array) -> pa.Array:
    """Escape what JSON must not have in a text: one pass per character that occurs, mostly none."""
    octets = octets_of(texts)
    if (octets == _BACKSLASH).any():
        texts = pc.replace_substring(texts, "\\", "\\\\")
    if (octets == _QUOTE).any():
        texts = pc.replace_substring(texts, '"', '\\"')
    controls = octets < _FIRST_PRINTABLE
    if controls.any():
        for code in np.unique(octets[controls]).tolist():
            texts = pc.replace_substring(texts, chr(code), _SHORT_ESCAPES.get(code, f"\\u{code:04x}"))
    return texts


def octets_of(texts: pa.Array) -> npt.NDArray[np.uint8]:
    """Return the bytes of all values, end to end."""
    _, offset_buffer, data = texts.buffers()
    if data is None:
        return np.empty(0, np.uint8)
    offsets = np.frombuffer(offset_buffer, np.int32)
    return np.frombuffer(data, np.uint8)[offsets[texts.offset] : offsets[texts.offset + len(texts)]]


def base64_texts(values: pa.Array) -> pa.Array:
    """Return binary values in base64, null where they are null."""
    if len(values) <= _SMALL:
        encoded = [None if one is None else base64.b64encode(one).decode() for one in values.to_pylist()]
        return pa.array(encoded, pa.string())
    there = values.is_valid() if values.null_count else None
    values = pc.fill_null(values.cast(pa.binary()), b"")
    lengths = np.asarray(pc.binary_length(values)).astype(np.int64)
    octets = octets_of(values)
    groups = -(-lengths // 3)
    ends = np.cumsum(groups)
    padded = np.zeros(3 * int(ends[-1]), np.uint8)
    starts = np.cumsum(lengths) - lengths
    padded[np.arange(len(octets)) + np.repeat(3 * (ends - groups) - starts, lengths)] = octets
    three = padded.reshape(-1, 3)
    first, second, third = three[:, 0], three[:, 1], three[:, 2]
    coded = np.empty((len(three), 4), np.uint8)
    coded[:, 0] = _BASE64[first >> 2]
    coded[:, 1] = _BASE64[((first & 3) << 4) | (second >> 4)]
    coded[:, 2] = _BASE64[((second & 15) << 2) | (third >> 6)]
    coded[:, 3] = _BASE64[third & 63]
    coded[ends[lengths % 3 != 0] - 1, 3] = ord("=")
    coded[ends[lengths % 3 == 1] - 1, 2] = ord("=")
    offsets = np.concatenate([[0], 4 * ends]).astype(np.int32)
    texts = pa.Array.from_buffers(pa.string(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(coded)])
    return texts if there is None else pc.if_else(there, texts, pa.scalar(None, pa.string()))
