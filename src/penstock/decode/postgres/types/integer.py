"""int2, int4, int8, and the server's own unsigned numbers. See codec.py for the shape of these modules.

oid, xid and cid have 32 bits without a sign, so they are int64. int2 is int32 at a destination without int16.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.decode.postgres.types.codec import Served, TypeCodec, cast_codec
from penstock.model.table import ColumnType

INT2 = 21
_SHORT, _INT, _LONG = cast_codec(pa.int16()), cast_codec(pa.int32()), cast_codec(pa.int64())


def _short(type: ColumnType) -> TypeCodec:
    return _INT if type.held_as == "int32" else _SHORT


def _int(type: ColumnType) -> TypeCodec:
    return _INT


def _long(type: ColumnType) -> TypeCodec:
    return _LONG


SERVED = (
    Served({"int2": INT2}, _short, "int16", "int", "every value"),
    Served({"int4": 23}, _int, "int32", "int", "every value"),
    Served({"int8": 20}, _long, "int64", "long", "every value"),
    Served({"oid": 26, "xid": 28, "cid": 29}, _long, "int64", "long", "every value"),
)
