"""float4 and float8. NaN and both infinities fit. See codec.py for the shape of these modules."""

from __future__ import annotations

import pyarrow as pa

from penstock.decode.types.codec import TypeCodec, cast_codec
from penstock.model.table import ColumnType

_FLOAT4, _FLOAT8 = 700, 701
_CODECS = {_FLOAT4: cast_codec(pa.float32()), _FLOAT8: cast_codec(pa.float64())}

OIDS = frozenset(_CODECS)


def codec(type: ColumnType) -> TypeCodec:
    return _CODECS[type.oid]
