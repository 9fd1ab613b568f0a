"""float4 and float8. NaN and both infinities fit. See codec.py for the shape of these modules."""

from __future__ import annotations

import pyarrow as pa

from penstock.decode.postgres.types.codec import Served, TypeCodec, cast_codec
from penstock.model.table import ColumnType

_FLOAT, _DOUBLE = cast_codec(pa.float32()), cast_codec(pa.float64())
_EXACT = "every bit, NaN, infinities and -0 too; Postgres' text knows one NaN"


def _float(type: ColumnType) -> TypeCodec:
    return _FLOAT


def _double(type: ColumnType) -> TypeCodec:
    return _DOUBLE


SERVED = (
    Served({"float4": 700}, _float, "float", "float", _EXACT),
    Served({"float8": 701}, _double, "double", "double", _EXACT),
)
