"""Which of a column's texts its type can hold, and those that it cannot, as they were sent."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.postgres.types.codec import Mask, TypeCodec


def fitted(codec: TypeCodec, texts: pa.Array) -> tuple[pa.Array, Mask]:
    """Return the values of those texts that fit, null for the others, and which those others are."""
    misfits: Mask = np.zeros(len(texts), np.bool_) if codec.misfits is None else codec.misfits(texts)
    likely = texts if not misfits.any() else pc.if_else(pa.array(misfits), pa.scalar(None, texts.type), texts)
    pieces: list[pa.Array] = []
    ranges = [(0, len(texts))]
    while ranges:
        low, high = ranges.pop()
        try:
            pieces.append(codec.parse(likely[low:high]))
        except ValueError:
            if high - low == 1:
                misfits[low] = True
                pieces.append(pa.nulls(1, codec.arrow_type))
            else:
                middle = (low + high) // 2
                ranges += [(middle, high), (low, middle)]
    return pa.concat_arrays(pieces), misfits


def original(text: bytes) -> str:
    r"""Return it as it was sent; what is no UTF-8, whole, as Postgres writes bytea: `\x` and hexadecimal digits."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return "\\x" + text.hex()
