"""The table of types: which module of this folder serves a source type. A type that none of them names is its text.

To add a family: write its module, name it in `_FAMILIES`; `python -m penstock.decode.postgres.types.page` then writes
the table that docs/types.md shows.

Used by `decode/schema.py` (the column's type), `columns.py` and the copy (its values).
"""

from __future__ import annotations

from functools import lru_cache

from penstock.decode.postgres.types import (
    binary,
    boolean,
    floating,
    hstore,
    integer,
    json,
    numeric,
    plain,
    temporal,
    text,
    uuid,
)
from penstock.decode.postgres.types.array import list_codec
from penstock.decode.postgres.types.codec import Served, TypeCodec
from penstock.decode.postgres.types.composite import struct_codec
from penstock.model.table import VERBATIM, ColumnType
from penstock.model.type_map import TEXT

_FAMILIES = (boolean, integer, floating, numeric, text, binary, temporal, uuid, json, plain, hstore)
TABLE: tuple[Served, ...] = tuple(line for family in _FAMILIES for line in family.SERVED)
_BY_OID = {oid: line for line in TABLE for oid in line.types.values() if oid}
_OF_EXTENSIONS = {name: line for line in TABLE for name, oid in line.types.items() if not oid}
_FIRST_OF_USERS = 16384  # below it are the types that every server has


@lru_cache(maxsize=4096)
def codec(type: ColumnType) -> TypeCodec:
    """ValueError for a choice that the type does not allow."""
    if TEXT in (type.carried_as, type.held_as) or type.carried_as.startswith(VERBATIM):
        return text.codec(type)
    if type.carried_as and type.oid != numeric.NUMERIC:
        raise ValueError(f"{type.carried_as} is for numeric, not for {type.name}")
    if type.kind == "array" and type.element is not None:
        return list_codec(codec(type.element), type.delimiter)
    if type.kind == "composite" and type.fields:
        return struct_codec([(name, codec(field)) for name, field in type.fields])
    line = served(type)
    return text.codec(type) if line is None else line.codec(type)


def served(type: ColumnType) -> Served | None:
    """Return the line of the table for a type that is neither an array nor a composite; None: it is its text."""
    if type.kind == "base" and type.oid >= _FIRST_OF_USERS:
        return _OF_EXTENSIONS.get(type.name)
    return _BY_OID.get(type.oid)
