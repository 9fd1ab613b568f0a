"""numeric as decimal128, exact by value. See codec.py for the shape of these modules.

| declared                                 | column                                              |
|------------------------------------------|-----------------------------------------------------|
| numeric(p, s), 0 <= s <= p <= 38         | decimal(p, s)                                       |
| numeric(p, s), s < 0 (since Postgres 15) | decimal(p - s, 0): the zeros are digits             |
| numeric(p, s), s > p                     | decimal(s, s)                                       |
| any of these with more than 38 digits    | decimal(38, s): the fraction whole, if s is 0 to 38 |
| numeric                                  | decimal(38, 18), or what the user chose             |

Iceberg's widest decimal has 38 digits. Values with more, NaN and the infinities fit none. How many zeros stand behind
a fraction is not kept: Postgres' own comparison does not see them either.

Arrow reads what has more than 38 digits, counted as if the whole scale stood behind the point, into a wrong number
without a word: texts that may have so many are counted first.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.postgres.types.codec import Mask, Served, TypeCodec, as_text
from penstock.model.table import ColumnType

NUMERIC = 1700
WIDEST = 38
UNBOUNDED = (38, 18)
_HEADER = 4  # Postgres adds the size of a varlena header to the modifier
_DECIMAL = re.compile(r"decimal\((\d{1,2}),\s*(\d{1,2})\)")
_NUMBER = r"^-?[0-9]+(\.[0-9]+)?$"


def codec(type: ColumnType) -> TypeCodec:
    precision, scale = decimal_of(type)
    return TypeCodec(pa.decimal128(precision, scale), _parser(precision, scale), _misfits_of(precision, scale))


def decimal_of(type: ColumnType) -> tuple[int, int]:
    """Precision and scale of the type's column."""
    if type.carried_as:
        return parse_decimal(type.carried_as)
    if type.modifier < _HEADER:
        return UNBOUNDED
    precision, scale = precision_and_scale(type.modifier)
    if scale < 0:
        return min(precision - scale, WIDEST), 0
    if scale > WIDEST:
        return UNBOUNDED
    return min(max(precision, scale), WIDEST), scale


def is_unbounded(type: ColumnType) -> bool:
    """Whether its declaration allows more digits than a decimal has."""
    if type.modifier < _HEADER:
        return True
    precision, scale = precision_and_scale(type.modifier)
    return max(precision, scale, precision - scale) > WIDEST


def parse_decimal(text: str) -> tuple[int, int]:
    """`decimal(p,s)` as numbers; ValueError says what is allowed."""
    found = _DECIMAL.fullmatch(text)
    precision, scale = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= precision <= WIDEST or scale > precision:
        raise ValueError(f"must be decimal(p,s) with 1 <= p <= {WIDEST} and 0 <= s <= p")
    return precision, scale


def precision_and_scale(modifier: int) -> tuple[int, int]:
    """The scale is an 11-bit signed number since Postgres 15; up to 14 it was at most 1,000, which reads the same."""
    packed = modifier - _HEADER
    return (packed >> 16) & 0xFFFF, ((packed & 0x7FF) ^ 0x400) - 0x400


def _parser(precision: int, scale: int) -> Callable[[pa.Array], pa.Array]:
    arrow_type = pa.decimal128(precision, scale)
    misfits = _misfits_of(precision, scale)

    def parse(texts: pa.Array) -> pa.Array:
        longest = pc.max(pc.binary_length(texts)).as_py()
        if longest is None or longest + scale <= WIDEST:
            return as_text(texts).cast(arrow_type)
        if misfits(texts).any():
            raise ValueError(f"not a number that {arrow_type} holds")
        return _without_zeros(as_text(texts)).cast(arrow_type)

    return parse


def _misfits_of(precision: int, scale: int) -> Callable[[pa.Array], Mask]:
    def misfits(texts: pa.Array) -> Mask:
        """Those that are no numbers, and those with too many digits before or behind the point."""
        strings = as_text(texts)
        numbers = pc.match_substring_regex(strings, _NUMBER)
        whole = pc.ascii_ltrim(pc.replace_substring_regex(strings, r"^-|\..*$", ""), "0")
        fraction = pc.ascii_rtrim(pc.replace_substring_regex(strings, r"^[^.]*\.?", ""), "0")
        fits = pc.and_(
            numbers,
            pc.and_(
                pc.less_equal(pc.binary_length(whole), precision - scale),
                pc.less_equal(pc.binary_length(fraction), scale),
            ),
        )
        return ~np.asarray(pc.fill_null(fits, True))

    return misfits


def _without_zeros(strings: pa.Array) -> pa.Array:
    return pc.replace_substring_regex(strings, r"\.0*$|(\.[0-9]*[1-9])0+$", r"\1")


SERVED = (
    Served(
        {"numeric": NUMERIC},
        codec,
        "decimal128(p, s); decimal128(38, 18) without a precision",
        "decimal(p, s); decimal(38, 18)",
        "every number that fits, by value",
        "NaN, ±Infinity, more digits than p or s; with a declared precision up to 38 NaN alone",
    ),
)
