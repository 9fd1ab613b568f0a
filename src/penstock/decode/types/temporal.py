"""date, time, timestamp and timestamptz in Postgres' ISO style. See codec.py for the shape of these modules.

| type        | column                  | because                                                           |
|-------------|-------------------------|-------------------------------------------------------------------|
| date        | date32                  |                                                                   |
| timestamp   | timestamp[us]           | timestamp_ntz in Spark                                            |
| timestamptz | timestamp[us, UTC]      | the session's TimeZone is UTC, so the offset is +00               |
| time        | string                  | Spark can't read Iceberg's time, and 24:00:00 is a time in Postgres |

timetz is not served here: it is its text like any unknown type. Infinities and years before Christ fit no column.
Arrow reads years of four digits only. Later ones are read by numpy, up to 294246, the last whole year that 64 bits of
microseconds hold (Postgres goes to 294276).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.types import text
from penstock.decode.types.codec import TypeCodec, as_text
from penstock.model.table import ColumnType

_DATE, _TIME, _TIMESTAMP, _TIMESTAMPTZ = 1082, 1083, 1114, 1184

_FAR_DATE = r"^[0-9]{5,7}-[0-9]{2}-[0-9]{2}$"
_FAR_TIMESTAMP = r"^[0-9]{5,6}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
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


def _temporal(arrow_type: pa.DataType, far: str, unit: str, suffix: str = "") -> TypeCodec:
    return TypeCodec(arrow_type, _parser(arrow_type, far, unit, suffix))


_CODECS = {
    _DATE: _temporal(pa.date32(), _FAR_DATE, "D"),
    _TIME: text.codec(ColumnType(_TIME, "time")),
    _TIMESTAMP: _temporal(pa.timestamp("us"), _FAR_TIMESTAMP + "$", "us"),
    _TIMESTAMPTZ: _temporal(pa.timestamp("us", "UTC"), _FAR_TIMESTAMP + r"\+00$", "us", "+00"),
}

OIDS = frozenset(_CODECS)


def codec(type: ColumnType) -> TypeCodec:
    return _CODECS[type.oid]
