"""How the copy asks for each column, and how what it gets becomes what the stream's decoder makes of the same value.

Pure: a column in, SQL or Arrow out. copy_read.py joins it to a connection. The type map is decode's: `codec(type)` says
the Arrow type, and wherever a value comes as text, that codec parses it. So there are two ways:

| column                        | asked for as      | becomes                                                 |
|-------------------------------|-------------------|---------------------------------------------------------|
| bool, integers, floats, bytea | itself, in binary | cast to the codec's type, which loses nothing           |
| date, timestamp, timestamptz  | itself, in binary | the same number, once it is within what the codec holds |
| text types, json, jsonb       | itself            | parsed by the codec                                     |
| numeric, uuid, time           | `::text`          | parsed by the codec                                     |
| anything else                 | `format('%s', …)` | parsed by the codec                                     |

Only where the cast to text is known to be the type's output function is it used: that of inet, of char(n) or of bool
is not. `format` calls the output function of any type, as pgoutput does. A column that the user wants as text is asked
for as text.

What does not fit comes back as the text that the stream would have sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.postgres.fitting import fitted, original
from penstock.decode.postgres.types.registry import codec
from penstock.model.table import Column
from penstock.model.type_map import TEXT
from penstock.source.postgres.statements import quoted

_FLOATS = frozenset({700, 701})
_DATE, _TIMESTAMP, _TIMESTAMPTZ = 1082, 1114, 1184
_BINARY: dict[int, pa.DataType] = {
    16: pa.bool_(),
    17: pa.binary(),
    20: pa.int64(),
    21: pa.int16(),
    23: pa.int32(),
    700: pa.float32(),
    701: pa.float64(),
    _DATE: pa.date32(),
    _TIMESTAMP: pa.timestamp("us"),
    _TIMESTAMPTZ: pa.timestamp("us", "UTC"),
}
_TEXT_AS_IT_IS = frozenset({19, 25, 114, 1042, 1043, 3802})  # name, text, json, bpchar, varchar, jsonb
_CAST_TO_TEXT = frozenset({1083, 1700, 2950})  # time, numeric, uuid

_DAY_MICROSECONDS = 86_400_000_000
_EPOCH_DAYS = 10_957  # from 1970 to 2000, where Postgres counts from
_FIRST_DAY = -719_162  # 0001-01-01; what is before it is BC
_END_MICROSECOND = 9_223_371_244_800_000_000  # 294247-01-01, the first year that 64 bits do not hold whole


@dataclass(frozen=True)
class Misfits:
    """Cells that the column's Arrow type cannot hold: their rows, and their texts as Postgres writes them."""

    rows: npt.NDArray[np.int64]
    texts: list[str]


def expression(column: Column) -> str:
    """Return what to select for the column."""
    name = quoted(column.name)
    oid = column.type.oid
    if _is_binary(column) or oid in _TEXT_AS_IT_IS:
        return name
    if oid in _CAST_TO_TEXT:
        return f"{name}::pg_catalog.text"
    # Not IS NULL, which is true of a row of nulls too.
    return f"CASE WHEN {name} IS DISTINCT FROM NULL THEN pg_catalog.format('%s', {name}) END"


def is_expected(column: Column, received: pa.DataType) -> bool:
    """Return whether the server sends the column as the type that its schema says."""
    plain = received.storage_type if isinstance(received, pa.BaseExtensionType) else received
    return bool(plain == (_BINARY[column.type.oid] if _is_binary(column) else pa.string()))


def converted(column: Column, received: pa.Array) -> tuple[pa.Array, Misfits | None]:
    """Return the column as the stream would give it: null where a value does not fit; and what those values are."""
    values = received.storage if isinstance(received.type, pa.BaseExtensionType) else received
    if not _is_binary(column):
        return _parsed(column, values.cast(pa.binary()))
    oid = column.type.oid
    if oid in _FLOATS:
        return _one_nan(values), None
    if oid == _DATE:
        return _days_within(values)
    if oid in (_TIMESTAMP, _TIMESTAMPTZ):
        return _moments_within(values, zone="+00" if oid == _TIMESTAMPTZ else "")
    return values.cast(codec(column.type).arrow_type), None


def _is_binary(column: Column) -> bool:
    return column.type.oid in _BINARY and not column.type.carried_as and column.type.held_as != TEXT


def _parsed(column: Column, texts: pa.Array) -> tuple[pa.Array, Misfits | None]:
    one = codec(column.type)
    try:
        return one.parse(texts), None
    except ValueError:
        values, misfits = fitted(one, texts)
    rows = np.flatnonzero(misfits)
    return values, Misfits(rows, [original(text) for text in texts.take(pa.array(rows)).to_pylist()])


def _one_nan(values: pa.Array) -> pa.Array:
    """Text knows one NaN; arithmetic makes others, with a sign or a payload, and keys are compared by their bytes."""
    is_nan = pc.is_nan(values)
    if not pc.any(is_nan).as_py():
        return values
    return pc.if_else(is_nan, pa.scalar(float("nan"), values.type), values)


def _days_within(values: pa.Array) -> tuple[pa.Array, Misfits | None]:
    days = values.cast(pa.int32())
    return _within(values, days, pc.less(days, _FIRST_DAY), _date_text)


def _moments_within(values: pa.Array, zone: str) -> tuple[pa.Array, Misfits | None]:
    moments = values.cast(pa.int64())
    outside = pc.or_(pc.less(moments, _FIRST_DAY * _DAY_MICROSECONDS), pc.greater_equal(moments, _END_MICROSECOND))
    return _within(values, moments, outside, lambda moment: _moment_text(moment, zone))


def _within(
    values: pa.Array, numbers: pa.Array, outside: pa.Array, text_of: Callable[[int], str]
) -> tuple[pa.Array, Misfits | None]:
    if not pc.any(outside).as_py():
        return values, None
    outside = pc.fill_null(outside, False)
    texts = [text_of(number) for number in numbers.filter(outside).to_pylist()]
    return pc.if_else(outside, pa.scalar(None, values.type), values), Misfits(np.flatnonzero(outside), texts)


def _date_text(days: int) -> str:
    """`days` since 1970 as the driver gives them: counted from 2000 by the server, and wrapped around at 32 bits."""
    since_2000 = _wrapped(days - _EPOCH_DAYS, 32)
    if since_2000 in (2**31 - 1, -(2**31)):
        return "infinity" if since_2000 > 0 else "-infinity"
    day, era = _calendar_day(since_2000 + _EPOCH_DAYS)
    return day + era


def _moment_text(microseconds: int, zone: str) -> str:
    since_2000 = _wrapped(microseconds - _EPOCH_DAYS * _DAY_MICROSECONDS, 64)
    if since_2000 in (2**63 - 1, -(2**63)):
        return "infinity" if since_2000 > 0 else "-infinity"
    days, rest = divmod(since_2000, _DAY_MICROSECONDS)
    day, era = _calendar_day(days + _EPOCH_DAYS)
    seconds, fraction = divmod(rest, 1_000_000)
    time = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{day} {time}{f'.{fraction:06}'.rstrip('0') if fraction else ''}{zone}{era}"


def _calendar_day(days: int) -> tuple[str, str]:
    """Return a day since 1970 as Postgres writes it, and its era."""
    text = str(np.datetime64(days, "D"))
    year, month, day = text.removeprefix("-").removeprefix("+").split("-")
    astronomical = -int(year) if text.startswith("-") else int(year)
    era = " BC" if astronomical <= 0 else ""
    return f"{astronomical if astronomical > 0 else 1 - astronomical:04}-{month}-{day}", era


def _wrapped(number: int, bits: int) -> int:
    half = 1 << (bits - 1)
    return (number + half) % (2 * half) - half
