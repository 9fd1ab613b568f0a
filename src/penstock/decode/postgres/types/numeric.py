"""numeric as a decimal, exact by value. See codec.py for the shape of these modules.

| declared                                 | decoded as                              | in at most 38 digits      |
|------------------------------------------|-----------------------------------------|---------------------------|
| numeric(p, s), 0 <= s <= p               | decimal(p, s)                           | decimal(38, s) if p > 38, |
| numeric(p, s), s < 0 (since Postgres 15) | decimal(p - s, 0): the zeros are digits | the fraction whole; as    |
| numeric(p, s), s > p                     | decimal(s, s)                           | numeric if s > 38         |
| any of these with more than 76 digits    | its text                                |                           |
| numeric                                  | its text, or what the user chose        | decimal(38, 18), or that  |

Up to 38 digits it is a decimal128, up to 76 a decimal256. The last column is a destination whose type map has 38 digits
(`TypeMap.digits`) and decimal(38, 18) for any number. NaN and the infinities fit no decimal. How many zeros stand
behind a fraction is not kept: Postgres' own comparison does not see them either.

Arrow reads what has too many digits, counted as if the whole scale stood behind the point, into a wrong number without
a word: texts that may have so many are counted first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.choices import CHOSEN_DIGITS, parse_decimal
from penstock.decode.postgres.types import text
from penstock.decode.postgres.types.codec import Mask, Served, TypeCodec, as_text
from penstock.model.table import ColumnType
from penstock.model.type_map import MOST_DIGITS, TEXT, TypeMap

NUMERIC = 1700
NARROW = 38  # digits of a decimal128
_HEADER = 4  # Postgres adds the size of a varlena header to the modifier
_NUMBER = r"^-?[0-9]+(\.[0-9]+)?$"


def codec(type: ColumnType) -> TypeCodec:
    decimal = decimal_of(type)
    if decimal is None:
        return text.codec(type)
    return TypeCodec(_arrow_type(*decimal), _parser(*decimal), _misfits_of(*decimal))


def decimal_of(type: ColumnType) -> tuple[int, int] | None:
    """Return precision and scale of the type's column; None when it is text."""
    given = type.carried_as or type.held_as
    if given:
        return None if given == TEXT else parse_decimal(given)
    declared = _declared(type)
    return declared if declared is not None and declared[0] <= MOST_DIGITS else None


def held_as(type: ColumnType, types: TypeMap) -> str:
    """Return what becomes of the type at a destination with these types."""
    declared = _declared(type)
    if declared is not None and declared[0] <= types.digits:
        return ""
    if types.any_number == TEXT:
        return "" if decimal_of(replace(type, carried_as="", held_as="")) is None else TEXT
    if declared is None or declared[1] > types.digits:
        return types.any_number
    return f"decimal({types.digits},{declared[1]})"


def is_unbounded(type: ColumnType) -> bool:
    """Whether its declaration allows more digits than a choice has."""
    if type.modifier < _HEADER:
        return True
    precision, scale = precision_and_scale(type.modifier)
    return max(precision, scale, precision - scale) > CHOSEN_DIGITS


def _declared(type: ColumnType) -> tuple[int, int] | None:
    """Precision and scale of the decimal that holds all that the declaration allows; None without a declaration."""
    if type.modifier < _HEADER:
        return None
    precision, scale = precision_and_scale(type.modifier)
    return (precision - scale, 0) if scale < 0 else (max(precision, scale), scale)


def precision_and_scale(modifier: int) -> tuple[int, int]:
    """Unpack a modifier.

    The scale is an 11-bit signed number since 15; up to 14 it was at most 1,000, which reads the same.
    """
    packed = modifier - _HEADER
    return (packed >> 16) & 0xFFFF, ((packed & 0x7FF) ^ 0x400) - 0x400


def _arrow_type(precision: int, scale: int) -> pa.DataType:
    return pa.decimal128(precision, scale) if precision <= NARROW else pa.decimal256(precision, scale)


def _parser(precision: int, scale: int) -> Callable[[pa.Array], pa.Array]:
    arrow_type = _arrow_type(precision, scale)
    most_digits = NARROW if precision <= NARROW else MOST_DIGITS
    misfits = _misfits_of(precision, scale)

    def parse(texts: pa.Array) -> pa.Array:
        longest = pc.max(pc.binary_length(texts)).as_py()
        if longest is None or longest + scale <= most_digits:
            return as_text(texts).cast(arrow_type)
        if misfits(texts).any():
            raise ValueError(f"not a number that {arrow_type} holds")
        return _without_zeros(as_text(texts)).cast(arrow_type)

    return parse


def _misfits_of(precision: int, scale: int) -> Callable[[pa.Array], Mask]:
    def misfits(texts: pa.Array) -> Mask:
        """Return those that are no numbers, and those with too many digits before or behind the point."""
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
        "decimal128(p, s); decimal256(p, s) from 39 digits; string without a precision",
        "decimal(p, s); decimal(38, s); decimal(38, 18)",
        "every number that fits, by value",
        "NaN, ±Infinity, more digits than p or s; with a declared precision that the column has, NaN alone",
    ),
)
