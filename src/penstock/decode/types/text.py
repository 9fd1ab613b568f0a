"""Text, exactly as sent (char(n) with its padding), and whatever no other module serves.

Arrow checks that it is UTF-8: a database with encoding SQL_ASCII may send what is not.
See codec.py for the shape of these modules.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.decode.types.codec import TypeCodec
from penstock.model.table import ColumnType

OIDS = frozenset({18, 19, 25, 1042, 1043})  # "char", name, text, bpchar, varchar


def codec(type: ColumnType) -> TypeCodec:
    return _CODEC


def _parse(texts: pa.Array) -> pa.Array:
    return texts.cast(pa.string())


_CODEC = TypeCodec(pa.string(), _parse)
