"""Cells of row images, and texts of the copy, into typed Arrow columns. One value is the same by either way.

`from_image` reads the binlog's bytes, `from_texts` what SELECT writes in the text protocol under the expressions of
`select_expression`. Both give the column with null where a value does not fit, and the texts of those that do not:
impossible dates, which MySQL allows (`2024-00-00`). Everything else fits its type.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.mysql.charsets import decoded
from penstock.decode.mysql.json_binary import json_texts
from penstock.decode.mysql.packed import WIDTHS, named_texts, unpacked
from penstock.decode.mysql.rows import Cells, view
from penstock.decode.mysql.texts import likely, written
from penstock.decode.mysql.texts import octets as read_octets
from penstock.decode.mysql.texts import truths as read_truths
from penstock.decode.mysql.types import (
    BIT,
    BLOB_COMPRESSED,
    DATE,
    DATETIME2,
    DIGIT_BYTES,
    DOUBLE,
    ENUM,
    FLOAT,
    GEOMETRY,
    INTEGERS,
    JSON,
    MOST_DIGITS,
    NEWDECIMAL,
    SET,
    STRING,
    TIME2,
    TIMESTAMP2,
    VARCHAR_COMPRESSED,
    YEAR,
    arrow_type,
    is_unsigned,
)
from penstock.decode.reader import Mask, Octets, Places
from penstock.model.table import ColumnType

DAY = 86_400_000_000
LAST_YEAR, LAST_HOUR = 9999, 838  # the latter of a TIME


@dataclass(frozen=True)
class Typed:
    """A column; `misfits` are the places of values that are null in it because they do not fit, with their texts."""

    values: pa.Array
    misfits: Places
    texts: list[str]


def from_image(type: ColumnType, octets: Octets, cells: Cells) -> Typed:
    """Read one column of some images. ValueError when bytes are no value of the type."""
    plain = _plain(type)
    return _carried(type, plain, _typed(*_read(plain, octets, cells)))


def from_texts(type: ColumnType, texts: pa.Array) -> Typed:
    """Read one column of a copy. `texts` is binary, null for NULL."""
    plain = _plain(type)
    return _carried(type, plain, _parsed(plain, texts))


def from_written(type: ColumnType, texts: pa.Array) -> Typed:
    """Read values of texts that `texts.written` made, or that another database has of them.

    A text that cannot be read is a misfit. `texts` is binary, null for NULL.
    """
    if type.carried_as or type.held_as == "text":
        return _typed(texts.cast(pa.string()), None, [])
    target = arrow_type(type)
    if pa.types.is_binary(target) or pa.types.is_boolean(target):
        values, failed = read_octets(texts) if pa.types.is_binary(target) else read_truths(texts)
        return _typed(values, failed, _strings(texts) if failed.any() else [])
    return _parsed_by_halves(type, likely(type, texts))


def _parsed_by_halves(type: ColumnType, texts: pa.Array) -> Typed:
    try:
        return _parsed(type, texts)
    except ValueError:
        if len(texts) == 1:
            return Typed(pa.nulls(1, arrow_type(type)), np.zeros(1, np.int64), _strings(texts))
    middle = len(texts) // 2
    first, second = (_parsed_by_halves(type, half) for half in (texts[:middle], texts[middle:]))
    misfits = np.concatenate([first.misfits, second.misfits + middle])
    return Typed(pa.concat_arrays([first.values, second.values]), misfits, [*first.texts, *second.texts])


def _strings(texts: pa.Array) -> list[str]:
    return ["" if one is None else one.decode(errors="backslashreplace") for one in texts.to_pylist()]


def _carried(type: ColumnType, plain: ColumnType, found: Typed) -> Typed:
    """Return the values as text, if that is how the column is carried."""
    if not type.carried_as and type.held_as != "text":
        return found
    return Typed(written(plain, found.values, found.misfits, found.texts), np.empty(0, np.int64), [])


def select_expression(type: ColumnType, name: str) -> str:
    """Return what to SELECT, so that the text is exact: a FLOAT is written with six digits, a BIT as bytes."""
    if type.oid == FLOAT:
        return f"CAST({name} AS DOUBLE)"
    return f"{name} + 0" if type.oid == BIT else name


def _plain(type: ColumnType) -> ColumnType:
    """Return the type as the source has it, whatever was chosen for it."""
    return replace(type, carried_as="", held_as="")


def _typed(values: pa.Array, misfit: Mask | None, texts: list[str]) -> Typed:
    if misfit is None or not misfit.any():
        return Typed(values, np.empty(0, np.int64), [])
    places = np.flatnonzero(misfit)
    return Typed(values, places, [texts[place] for place in places.tolist()])


# -- the binlog's bytes ------------------------------------------------------------------------------------------------


def _read(type: ColumnType, octets: Octets, cells: Cells) -> tuple[pa.Array, Mask | None, list[str]]:
    code, null = type.oid, cells.null
    start = np.where(null, 0, cells.start)  # any place that there is
    if code in INTEGERS:
        return _integers(type, octets, start, null), None, []
    if code in (FLOAT, DOUBLE):
        number = view(octets, "<f4" if code == FLOAT else "<f8")[start]
        return pa.array(number, mask=null), None, []
    if code == YEAR:
        year = octets[start].astype(np.int32)
        return pa.array(np.where(year == 0, 0, year + 1900).astype(np.int32), mask=null), None, []
    if code == DATE:
        return _dates(octets, start, null)
    if code in (DATETIME2, TIMESTAMP2):
        return _moments(type, octets, start, null)
    if code == TIME2:
        return _times(type, octets, start, null), None, []
    if code == NEWDECIMAL:
        return _decimals(type, octets, start, null), None, []
    if code == BIT:
        number = _big_endian(octets, start, (type.modifier + 7) // 8)
        if type.modifier < 64:
            _require(number >> np.uint64(type.modifier) == 0, null, "a bit beyond its length is set")
        return _unsigned(number, null) if type.modifier == 64 else _signed(number, null), None, []
    if code in (ENUM, SET):
        return _labels(type, _little_endian(octets, start, type.modifier), null), None, []
    values = _bytes(octets, cells)
    if code == JSON:
        return json_texts(values), None, []
    if code in (BLOB_COMPRESSED, VARCHAR_COMPRESSED):
        values = unpacked(values)
    if type.name in WIDTHS:
        return named_texts(type.name, values), None, []
    if type.charset == "binary" or code == GEOMETRY:
        return (_filled(values, type.modifier) if code == STRING else values), None, []
    return decoded(values, type.charset), None, []


def _integers(type: ColumnType, octets: Octets, start: Places, null: Mask) -> pa.Array:
    width = INTEGERS[type.oid][1]
    if width == 8:
        if is_unsigned(type):
            return _unsigned(view(octets, "<u8")[start], null)
        return pa.array(view(octets, "<i8")[start], mask=null)
    number = _little_endian(octets, start, width).astype(np.int64)
    if not is_unsigned(type):
        number = np.where(number >= 1 << 8 * width - 1, number - (1 << 8 * width), number)
    return pa.array(number, mask=null).cast(arrow_type(_plain(type)))


def _little_endian(octets: Octets, start: Places, width: int) -> np.ndarray:
    whole = view(octets, "<u8")[start]
    return whole if width == 8 else whole & np.uint64((1 << 8 * width) - 1)


def _big_endian(octets: Octets, start: Places, width: int) -> np.ndarray:
    whole = view(octets, ">u8")[start].astype(np.uint64)
    return whole if width == 8 else whole >> np.uint64(64 - 8 * width)


def _signed(number: np.ndarray, null: Mask) -> pa.Array:
    return pa.array(number.astype(np.int64), mask=null)


def _unsigned(number: np.ndarray, null: Mask) -> pa.Array:
    return _decimal_array(number.astype(np.uint64), np.zeros(len(number), np.int64), null, pa.decimal128(20, 0))


def _decimal_array(low: np.ndarray, high: np.ndarray, null: Mask, type: pa.DataType) -> pa.Array:
    halves = np.empty((len(low), 2), np.uint64)
    halves[:, 0], halves[:, 1] = low, high.view(np.uint64)
    valid = pa.array(~null).buffers()[1] if null.any() else None
    return pa.Array.from_buffers(type, len(low), [valid, pa.py_buffer(halves)])


def _require(holds: np.ndarray, null: Mask, why: str) -> None:
    """Raise ValueError for what a server never writes: it is damage."""
    if not (holds | null).all():
        raise ValueError(why)


def _is_clock(hour: np.ndarray, minute: np.ndarray, second: np.ndarray, micro: np.ndarray, *, hours: int) -> Mask:
    found: Mask = (hour <= hours) & (minute <= 59) & (second <= 59) & (micro <= 999_999)
    return found


def _fraction(octets: Octets, start: Places, digits: int) -> np.ndarray:
    """Return microseconds, of which as many bytes are there as the digits need."""
    size = (digits + 1) // 2
    if size == 0:
        return np.zeros(len(start), np.int64)
    micros: np.ndarray = _big_endian(octets, start, size).astype(np.int64) * 100 ** (3 - size)
    return micros


def _dates(octets: Octets, start: Places, null: Mask) -> tuple[pa.Array, Mask, list[str]]:
    number = _little_endian(octets, start, 3).astype(np.int64)
    year, month, day = number >> 9, number >> 5 & 15, number & 31
    _require(year <= LAST_YEAR, null, "its year has five digits")
    days, misfit = _days(year, month, day)
    misfit &= ~null
    values = pa.array(days.astype(np.int32), mask=null | misfit).view(pa.date32())
    return values, misfit, _date_texts(misfit, year, month, day)


def _days(year: np.ndarray, month: np.ndarray, day: np.ndarray) -> tuple[np.ndarray, Mask]:
    """Return days since 1970, and which dates do not exist. Years from 1 on."""
    exists = (year > 0) & (month > 0) & (month < 13) & (day > 0)
    months = np.where(exists, (year - 1970) * 12 + month - 1, 0).astype("datetime64[M]")
    first = months.astype("datetime64[D]")
    length = ((months + 1).astype("datetime64[D]") - first).astype(np.int64)
    exists &= day <= length
    return first.astype(np.int64) + np.where(exists, day, 1) - 1, ~exists


def _date_texts(misfit: Mask, year: np.ndarray, month: np.ndarray, day: np.ndarray) -> list[str]:
    if not misfit.any():
        return []
    parts = zip(year.tolist(), month.tolist(), day.tolist(), strict=True)
    return [f"{y:04d}-{m:02d}-{d:02d}" for y, m, d in parts]


def _moments(type: ColumnType, octets: Octets, start: Places, null: Mask) -> tuple[pa.Array, Mask | None, list[str]]:
    digits = max(type.modifier, 0)
    if type.oid == TIMESTAMP2:
        seconds = view(octets, ">u4")[start].astype(np.int64)
        fraction = _fraction(octets, start + 4, digits)
        _require(fraction <= 999_999, null, "its fraction is a second or more")
        micros = seconds * 1_000_000 + fraction
        misfit = (seconds == 0) & ~null
        values = pa.array(micros, mask=null | misfit).view(pa.timestamp("us", "UTC"))
        text = "0000-00-00 00:00:00" + ("." + "0" * digits if digits else "")
        return values, misfit, [text] * len(start) if misfit.any() else []
    packed = _big_endian(octets, start, 5).astype(np.int64) - 0x8000000000
    clock, date = packed & 0x1FFFF, packed >> 17
    year, month, day = (date >> 5) // 13, (date >> 5) % 13, date & 31
    fraction = _fraction(octets, start + 5, digits)
    hour, minute, second = clock >> 12, clock >> 6 & 63, clock & 63
    sound = (packed >= 0) & (year <= LAST_YEAR) & _is_clock(hour, minute, second, fraction, hours=23)
    _require(sound, null, "its time of day does not exist")
    days, misfit = _days(year, month, day)
    misfit &= ~null
    seconds = hour * 3600 + minute * 60 + second
    values = pa.array(days * DAY + seconds * 1_000_000 + fraction, mask=null | misfit).view(pa.timestamp("us"))
    dates = _date_texts(misfit, year, month, day)
    times = _clock_texts(hour, minute, second, fraction, digits) if dates else []
    return values, misfit, [f"{date} {time}" for date, time in zip(dates, times, strict=True)]


def _clock_texts(hour: np.ndarray, minute: np.ndarray, second: np.ndarray, micro: np.ndarray, digits: int) -> list[str]:
    parts = zip(hour.tolist(), minute.tolist(), second.tolist(), micro.tolist(), strict=True)
    if not digits:
        return [f"{h:02d}:{m:02d}:{s:02d}" for h, m, s, _ in parts]
    return [f"{h:02d}:{m:02d}:{s:02d}." + f"{f:06d}"[:digits] for h, m, s, f in parts]


def _times(type: ColumnType, octets: Octets, start: Places, null: Mask) -> pa.Array:
    digits = max(type.modifier, 0)
    size = (digits + 1) // 2
    packed = _big_endian(octets, start, 3 + size).astype(np.int64) - (0x800000 << 8 * size)
    number = np.abs(packed)
    clock, micro = number >> 8 * size, (number & (1 << 8 * size) - 1) * 100 ** (3 - size if size else 0)
    hour, minute, second = clock >> 12, clock >> 6 & 63, clock & 63
    _require(_is_clock(hour, minute, second, micro, hours=LAST_HOUR), null, "it is no time")
    texts = _clock_texts(hour, minute, second, micro, digits)
    signed = ["-" + text if negative else text for text, negative in zip(texts, (packed < 0).tolist(), strict=True)]
    return pa.array(signed, pa.string(), mask=null)


def _decimals(type: ColumnType, octets: Octets, start: Places, null: Mask) -> pa.Array:
    """Read digits in groups of nine, big-endian; the first bit is the sign, and negative ones are inverted."""
    precision, scale = type.modifier >> 8, type.modifier & 255
    whole = precision - scale
    negative = octets[start] & 0x80 == 0
    groups: list[tuple[int, int]] = [(DIGIT_BYTES[whole % 9], whole % 9)] if whole % 9 else []
    groups += [(4, 9)] * (whole // 9 + scale // 9)
    groups += [(DIGIT_BYTES[scale % 9], scale % 9)] if scale % 9 else []
    small = precision <= 18
    total: Any = np.zeros(len(start), np.int64 if small else object)
    at, first = start, True
    for size, digits in groups:
        number = _big_endian(octets, at, size)
        if first:
            number = number ^ np.uint64(1 << 8 * size - 1)
            first = False
        number = np.where(negative, number ^ np.uint64((1 << 8 * size) - 1), number)
        _require(number < 10**digits, null, "a decimal has more digits than it can have")
        total = total * 10**digits + (number.astype(np.int64) if small else number.astype(object))
        at = at + size
    total = np.where(negative, -total, total)
    if precision > MOST_DIGITS:
        texts = [_decimal_text(int(one), scale) for one in total.tolist()]
        return pa.array(texts, pa.string(), mask=null)
    kind = pa.decimal128(precision, scale)
    if small:
        return _decimal_array(total.view(np.uint64), np.where(total < 0, -1, 0), null, kind)
    content = b"".join(int(one).to_bytes(16, "little", signed=True) for one in np.where(null, 0, total).tolist())
    halves = np.frombuffer(content, np.uint64).reshape(-1, 2)
    return _decimal_array(halves[:, 0], halves[:, 1].view(np.int64), null, kind)


def _decimal_text(number: int, scale: int) -> str:
    digits = str(abs(number)).rjust(scale + 1, "0")
    sign = "-" if number < 0 else ""
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}" if scale else f"{sign}{digits}"


def _labels(type: ColumnType, number: np.ndarray, null: Mask) -> pa.Array:
    if type.oid == ENUM:
        if (number[~null] > len(type.labels)).any():
            raise ValueError("an enum's number has no label")
        return pa.array(["", *type.labels], pa.string()).take(pa.array(number.astype(np.int64), mask=null))
    if len(type.labels) < 64:
        _require(number >> np.uint64(len(type.labels)) == 0, null, "a set's number has a bit without a label")
    distinct, places = np.unique(number, return_inverse=True)
    texts = [
        ",".join(label for bit, label in enumerate(type.labels) if int(one) >> bit & 1) for one in distinct.tolist()
    ]
    return pa.array(texts, pa.string()).take(pa.array(places, mask=null))


def _bytes(octets: Octets, cells: Cells) -> pa.Array:
    count = len(cells.start)
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0:-1:2], offsets[1::2] = cells.start, cells.end
    offsets[-1] = cells.end[-1] if count else 0
    both = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(octets)])
    even = np.arange(0, 2 * count, 2, dtype=np.int32)
    return both.take(pa.array(even, mask=cells.null if cells.null.any() else None))


def _filled(values: pa.Array, size: int) -> pa.Array:
    """BINARY(n) is written without the zeros at its end."""
    if pc.all(pc.equal(pc.binary_length(values), size)).as_py() in (True, None):
        return values
    return pa.array([None if one is None else one.ljust(size, b"\0") for one in values.to_pylist()], pa.binary())


# -- texts of a SELECT -------------------------------------------------------------------------------------------------


def _parsed(type: ColumnType, texts: pa.Array) -> Typed:
    target, code = arrow_type(type), type.oid
    if pa.types.is_binary(target):
        return _typed(texts, None, [])
    strings = texts.cast(pa.string())
    if pa.types.is_string(target):
        return _typed(strings, None, [])
    if code in (DATE, DATETIME2, TIMESTAMP2):
        return _parsed_dates(strings, target)
    if code == FLOAT:
        return _typed(strings.cast(pa.float64()).cast(pa.float32(), safe=False), None, [])
    return _typed(strings.cast(target), None, [])


def _parsed_dates(strings: pa.Array, target: pa.DataType) -> Typed:
    never = np.asarray(pc.fill_null(pc.match_substring_regex(strings, r"^0000|^\d{4}-00|^\d{4}-\d{2}-00"), False))
    fitting = pc.if_else(pa.array(never), pa.scalar(None, pa.string()), strings) if never.any() else strings
    if pa.types.is_timestamp(target) and target.tz is not None:
        values = fitting.cast(pa.timestamp("us")).cast(pa.int64()).view(target)
    else:
        try:
            values = fitting.cast(target)
        except pa.ArrowInvalid:
            return _parsed_one_by_one(strings, target)
    return _typed(values, never, ["" if one is None else one for one in strings.to_pylist()] if never.any() else [])


def _parsed_one_by_one(strings: pa.Array, target: pa.DataType) -> Typed:
    """Find impossible dates by trying each: `2023-02-31`, which a server takes under ALLOW_INVALID_DATES."""
    misfit = np.zeros(len(strings), np.bool_)
    texts = ["" if one is None else one for one in strings.to_pylist()]
    for place, text in enumerate(texts):
        if text:
            try:
                pa.array([text]).cast(target)
                misfit[place] = text.startswith("0000")
            except pa.ArrowInvalid:
                misfit[place] = True
    fitting = pc.if_else(pa.array(misfit), pa.scalar(None, pa.string()), strings)
    return _typed(fitting.cast(target), misfit, texts)
