"""date, time, timestamp and timestamptz in Postgres' ISO style. See codec.py for the shape of these modules.

| type        | column                  | because                                                           |
|-------------|-------------------------|-------------------------------------------------------------------|
| date        | date32                  |                                                                   |
| timestamp   | timestamp[us]           | timestamp_ntz in Spark                                            |
| timestamptz | timestamp[us, UTC]      | the session's TimeZone is UTC, so the offset is +00               |
| time        | time64[us]              | string at a destination without a time of day                     |

interval and timetz are text: no Arrow type holds months, days and microseconds apart, or a time with its offset.
Infinities and years before Christ fit no column, and 24:00:00, a time in Postgres, fits no time64.
Arrow reads years of four digits only. Later ones are read by numpy, up to 294246, the last whole year that 64 bits of
microseconds hold (Postgres goes to 294276).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.postgres.types import text
from penstock.decode.postgres.types.codec import Mask, Served, TypeCodec, as_text
from penstock.decode.postgres.types.text import as_sent
from penstock.model.table import ColumnType
from penstock.model.type_map import TEXT

TIME = 1083
_FAR_DATE = r"^[0-9]{5,7}-[0-9]{2}-[0-9]{2}$"
_FAR_TIMESTAMP = r"^[0-9]{5,6}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
_NEVER = r"(infinity| BC)$"
_LAST_YEAR = {"D": 5_881_579, "us": 294_246}  # the last whole one; numpy wraps around in silence


def _parser(arrow_type: pa.DataType, far: str, unit: str, suffix: str) -> Callable[[pa.Array], pa.Array]:
    def parse(texts: pa.Array) -> pa.Array:
        strings = as_text(texts)
        try:
            return strings.cast(arrow_type)
        except pa.ArrowInvalid:
            strings = texts.cast(pa.string())  # the pattern needs UTF-8
            is_far = pc.fill_null(pc.match_substring_regex(strings, far), False)
            if not pc.any(is_far).as_py():
                raise
        near = pc.if_else(is_far, pa.scalar(None, pa.string()), strings).cast(arrow_type)
        return pc.replace_with_mask(near, is_far, moments_of(strings.filter(is_far).to_pylist()))

    def moments_of(values: list[str]) -> pa.Array:
        if any(int(value.partition("-")[0]) > _LAST_YEAR[unit] for value in values):
            raise ValueError(f"a year after {_LAST_YEAR[unit]}")
        moments = np.array([value.removesuffix(suffix) for value in values], f"datetime64[{unit}]").astype(np.int64)
        return pa.array(moments, pa.int64()).cast(pa.int32() if unit == "D" else pa.int64()).cast(arrow_type)

    return parse


def _misfits(texts: pa.Array) -> Mask:
    never = pc.match_substring_regex(as_text(texts), _NEVER)
    return np.asarray(pc.fill_null(never, False))


def _temporal(arrow_type: pa.DataType, far: str, unit: str, suffix: str = "") -> Callable[[ColumnType], TypeCodec]:
    made = TypeCodec(arrow_type, _parser(arrow_type, far, unit, suffix), _misfits)
    return lambda type: made


def _parse_times(texts: pa.Array) -> pa.Array:
    """By way of a moment of the first day: Arrow reads no times of day."""
    moments = pc.binary_join_element_wise("1970-01-01 ", as_text(texts), "").cast(pa.timestamp("us"))
    return moments.cast(pa.int64()).cast(pa.time64("us"))


_TIMES = TypeCodec(pa.time64("us"), _parse_times)


def _time(type: ColumnType) -> TypeCodec:
    return text.codec(type) if type.held_as == TEXT else _TIMES


_EXACT = "every value, to the microsecond"
_RESCUED = "±infinity, years before Christ, years after 294246"

SERVED = (
    Served(
        {"date": 1082},
        _temporal(pa.date32(), _FAR_DATE, "D"),
        "date32",
        "date",
        "every value",
        "±infinity, years before Christ",
    ),
    Served(
        {"timestamp": 1114},
        _temporal(pa.timestamp("us"), _FAR_TIMESTAMP + "$", "us"),
        "timestamp[us]",
        "timestamp",
        _EXACT,
        _RESCUED,
    ),
    Served(
        {"timestamptz": 1184},
        _temporal(pa.timestamp("us", "UTC"), _FAR_TIMESTAMP + r"\+00$", "us", "+00"),
        "timestamp[us, UTC]",
        "timestamptz",
        _EXACT,
        _RESCUED,
    ),
    Served(
        {"time": TIME},
        _time,
        "time64[us]",
        "string",
        "every value, to the microsecond; as a string its text, 24:00:00 too",
        "24:00:00, where it is a time64",
    ),
    as_sent(("timetz", 1266), exact="its text: 24:00:00, microseconds, and its offset"),
    as_sent(("interval", 1186), exact="its text: months, days and microseconds apart"),
)
