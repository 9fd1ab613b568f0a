"""Which module of this folder serves a source type. A type that none of them names is its text.

To add a family: write its module, name it in `_FAMILIES`.

Used by `decode/schema.py` (the column's type) and `decode/columns.py` (its values).
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.decode.types import binary, boolean, floating, integer, json, numeric, temporal, text, uuid
from penstock.decode.types.codec import TypeCodec
from penstock.model.table import ColumnType

_FAMILIES = (binary, boolean, floating, integer, json, numeric, temporal, text, uuid)
_BY_OID: dict[int, Callable[[ColumnType], TypeCodec]] = {
    oid: family.codec for family in _FAMILIES for oid in family.OIDS
}


def codec(type: ColumnType) -> TypeCodec:
    return _BY_OID.get(type.oid, text.codec)(type)
