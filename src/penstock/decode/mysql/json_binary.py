"""MySQL's binary JSON as the very text that SELECT gives for it. MariaDB has no such type: its JSON is text.

A document is a byte for its type and a value. Objects and arrays have a table of entries at their beginning; small
values stand in the entry itself. Any byte that makes no sense is a ValueError, never a wrong text.
"""

from __future__ import annotations

import base64
import struct

import pyarrow as pa

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL = range(5)
_DOUBLE, _STRING, _OPAQUE = 11, 12, 15
_NUMBERS = {5: "<h", 6: "<H", 7: "<i", 8: "<I", 9: "<q", 10: "<Q"}
_INLINED = (_LITERAL, 5, 6)
_INLINED_LARGE = (*_INLINED, 7, 8)
_LITERALS = ("null", "true", "false")
_DECIMAL, _TIMESTAMP, _DATE, _TIME, _DATETIME = 246, 7, 10, 11, 12
_MOST_DEPTH = 200  # MySQL allows 100
_ESCAPES = {code: f"\\u{code:04x}" for code in range(32)}
_ESCAPES |= {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\"}
_DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


def json_texts(documents: pa.Array) -> pa.Array:
    """Return the text of each document; null where it is null. ValueError when one cannot be read."""
    try:
        texts = [None if one is None else json_text(one) for one in documents.to_pylist()]
    except (IndexError, struct.error) as error:
        raise ValueError("a JSON document ends before its values") from error
    return pa.array(texts, pa.string())


def json_text(document: bytes) -> str:
    return _value(document, document[0], 1, 0) if document else "null"


def _value(document: bytes, kind: int, at: int, depth: int) -> str:
    if depth > _MOST_DEPTH:
        raise ValueError("a JSON document is too deep")
    if kind <= _LARGE_ARRAY:
        return _container(document, kind, at, depth)
    if kind == _LITERAL:
        return _LITERALS[document[at]]
    if kind in _NUMBERS:
        return str(struct.unpack_from(_NUMBERS[kind], document, at)[0])
    if kind == _DOUBLE:
        return double_text(struct.unpack_from("<d", document, at)[0])
    if kind == _STRING:
        size, at = _size(document, at)
        return _quoted(_slice(document, at, size).decode())
    if kind == _OPAQUE:
        return _opaque(document, at)
    raise ValueError(f"a JSON document has a value of type {kind}, which is not known")


def _container(document: bytes, kind: int, base: int, depth: int) -> str:
    large = kind in (_LARGE_OBJECT, _LARGE_ARRAY)
    width, word, inlined = (4, "<I", _INLINED_LARGE) if large else (2, "<H", _INLINED)
    (count,) = struct.unpack_from(word, document, base)
    if count * (width + 1) > len(document):
        raise ValueError("a JSON document ends before its entries")
    at = base + 2 * width
    keys: list[str] = []
    if kind in (_SMALL_OBJECT, _LARGE_OBJECT):
        for _ in range(count):
            offset, size = struct.unpack_from(word + "H", document, at)
            keys.append(_quoted(_slice(document, base + offset, size).decode()))
            at += width + 2
    values: list[str] = []
    for number in range(count):
        entry = at + number * (width + 1)
        inner = document[entry]
        place = entry + 1 if inner in inlined else base + struct.unpack_from(word, document, entry + 1)[0]
        values.append(_value(document, inner, place, depth + 1))
    if kind in (_SMALL_OBJECT, _LARGE_OBJECT):
        return "{" + ", ".join(f"{key}: {value}" for key, value in zip(keys, values, strict=True)) + "}"
    return "[" + ", ".join(values) + "]"


def _slice(document: bytes, at: int, size: int) -> bytes:
    found = document[at : at + size]
    if len(found) != size:
        raise ValueError("a JSON document ends before its values")
    return found


def _size(document: bytes, at: int) -> tuple[int, int]:
    size = shift = 0
    while shift < 35:
        byte = document[at]
        at += 1
        size |= (byte & 127) << shift
        if byte < 128:
            return size, at
        shift += 7
    raise ValueError("a JSON document has a length that is none")


def _opaque(document: bytes, at: int) -> str:
    kind = document[at]
    size, at = _size(document, at + 1)
    body = _slice(document, at, size)
    if kind == _DECIMAL:
        return _decimal_text(body)
    if kind not in (_TIMESTAMP, _DATE, _TIME, _DATETIME):
        return f'"base64:type{kind}:{base64.b64encode(body).decode()}"'
    (packed,) = struct.unpack("<q", body)
    micro, clock = abs(packed) & 0xFFFFFF, abs(packed) >> 24
    second, minute = clock & 63, clock >> 6 & 63
    if kind == _TIME:
        sign = "-" if packed < 0 else ""
        return f'"{sign}{clock >> 12 & 1023:02d}:{minute:02d}:{second:02d}.{micro:06d}"'
    days = clock >> 17
    date = f"{(days >> 5) // 13:04d}-{(days >> 5) % 13:02d}-{days & 31:02d}"
    if kind == _DATE:
        return f'"{date}"'
    return f'"{date} {clock >> 12 & 31:02d}:{minute:02d}:{second:02d}.{micro:06d}"'


def _decimal_text(body: bytes) -> str:
    precision, scale, content = body[0], body[1], bytearray(body[2:])
    negative = not content[0] & 128
    content[0] ^= 128
    if negative:
        content = bytearray(byte ^ 255 for byte in content)
    whole = precision - scale
    groups = ([whole % 9] if whole % 9 else []) + [9] * (whole // 9)
    fraction = [9] * (scale // 9) + ([scale % 9] if scale % 9 else [])
    at, digits = 0, list[str]()
    for group in (*groups, *fraction):
        digits.append(str(int.from_bytes(_slice(bytes(content), at, _DIGIT_BYTES[group]), "big")).zfill(group))
        at += _DIGIT_BYTES[group]
    left = "".join(digits[: len(groups)]).lstrip("0") or "0"
    right = "".join(digits[len(groups) :])
    return ("-" if negative else "") + left + (f".{right}" if right else "")


def double_text(value: float) -> str:
    """Write a number as MySQL does: the shortest digits, in fixed notation from 1e-15 to below 1e15."""
    mantissa, _, exponent = repr(value).partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits = whole + ("" if fraction == "0" else fraction)
    figures = digits.lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(digits) - len(figures))
    figures = figures.rstrip("0")
    if not figures:
        return sign + "0.0"
    if not -14 <= point <= 15:
        rest = f".{figures[1:]}" if len(figures) > 1 else ""
        return f"{sign}{figures[0]}{rest}e{point - 1}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{figures}"
    if point >= len(figures):
        return f"{sign}{figures}{'0' * (point - len(figures))}.0"
    return f"{sign}{figures[:point]}.{figures[point:]}"


def _quoted(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'
