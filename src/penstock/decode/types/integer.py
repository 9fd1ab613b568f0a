"""int2, int4, int8. Iceberg has no 16-bit integer, so int2 is int32. See codec.py for the shape of these modules."""

from __future__ import annotations

import pyarrow as pa

from penstock.decode.types.codec import TypeCodec, cast_codec
from penstock.model.table import ColumnType

_INT8, _INT2, _INT4 = 20, 21, 23
_CODECS = {_INT2: cast_codec(pa.int32()), _INT4: cast_codec(pa.int32()), _INT8: cast_codec(pa.int64())}

OIDS = frozenset(_CODECS)


def codec(type: ColumnType) -> TypeCodec:
    return _CODECS[type.oid]
