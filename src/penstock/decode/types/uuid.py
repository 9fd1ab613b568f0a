"""uuid: its canonical 36 characters, as a string (Spark has no uuid type). The shape of these modules: codec.py."""

from __future__ import annotations

from penstock.decode.types import text
from penstock.decode.types.codec import TypeCodec
from penstock.model.table import ColumnType

OIDS = frozenset({2950})


def codec(type: ColumnType) -> TypeCodec:
    return text.codec(type)
