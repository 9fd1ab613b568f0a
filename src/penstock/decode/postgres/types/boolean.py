"""bool: `t` and `f`. See codec.py for the shape of these modules."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.postgres.types.codec import Served, TypeCodec
from penstock.model.table import ColumnType


def codec(type: ColumnType) -> TypeCodec:
    return _CODEC


def _parse(texts: pa.Array) -> pa.Array:
    true = pc.equal(texts, pa.scalar(b"t", pa.binary()))
    known = pc.or_(true, pc.equal(texts, pa.scalar(b"f", pa.binary())))
    if pc.any(pc.invert(known)).as_py():
        raise ValueError("neither t nor f")
    return true


_CODEC = TypeCodec(pa.bool_(), _parse)

SERVED = (Served({"bool": 16}, codec, "bool", "boolean", "both values"),)
