"""numeric(p, s) with 0 <= s <= p <= 38 is decimal128(p, s). Any other numeric, as one without precision, is its text.

Iceberg's widest decimal has 38 digits, and a column without precision may hold 131,072 of them: only text keeps those.
NaN fits no decimal. See codec.py for the shape of these modules.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.decode.types import text
from penstock.decode.types.codec import TypeCodec, cast_codec
from penstock.model.table import ColumnType

OIDS = frozenset({1700})

WIDEST = 38
_HEADER = 4  # Postgres adds the size of a varlena header to the modifier


def codec(type: ColumnType) -> TypeCodec:
    if type.modifier < _HEADER:
        return text.codec(type)
    precision, scale = precision_and_scale(type.modifier)
    if 0 <= scale <= precision <= WIDEST:
        return cast_codec(pa.decimal128(precision, scale))
    return text.codec(type)


def precision_and_scale(modifier: int) -> tuple[int, int]:
    """The scale is an 11-bit signed number since Postgres 15; up to 14 it was at most 1,000, which reads the same."""
    packed = modifier - _HEADER
    return (packed >> 16) & 0xFFFF, ((packed & 0x7FF) ^ 0x400) - 0x400
