"""Texts in the character set of their column, as the server converts them to UTF-8.

What a set does not define is a question mark for each character, because that is what a SELECT gives, and the copy with
it. Python's codecs differ from the server's in a few characters, which `charset_tables` has.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.json_escapes import octets_of
from penstock.decode.mysql.charset_tables import BYTES, EXCEPTIONS

UTF8 = frozenset({"utf8mb4", "utf8mb3", "utf8"})
_ASCII = "".join(map(chr, range(128)))
_TABLES = {name: upper if len(upper) == 256 else _ASCII + upper for name, upper in BYTES.items()}
_WIDE = {"utf16": "utf_16_be", "utf16le": "utf_16_le", "utf32": "utf_32_be"}
_CODECS = {
    "big5": "big5",
    "cp932": "cp932",
    "eucjpms": "euc_jp",
    "euckr": "cp949",
    "gb2312": "gb2312",
    "gbk": "gbk",
    "sjis": "shift_jis",
    "ujis": "euc_jp",
}
_HALF_WIDTH = frozenset({"cp932", "sjis"})  # have characters of one byte from 0xA1 to 0xDF
_EUC = frozenset({"eucjpms", "ujis"})
_USER_DEFINED = {0: 0xE000, 0x8F0000: 0xE3AC}  # where EUC's own blocks begin in Unicode, by their prefix

CHARSETS = frozenset({*UTF8, *_TABLES, *_WIDE, *_CODECS, "ucs2", "binary"})


def decoded(values: pa.Array, charset: str) -> pa.Array:
    """Return the texts of a column. ValueError where bytes are none of the character set."""
    if charset in UTF8:
        return values.cast(pa.string())
    if charset not in _WIDE and charset not in ("ucs2", "swe7") and not (octets_of(values) >= 128).any():
        return values.cast(pa.string())
    distinct = pc.dictionary_encode(values)
    decode = _decoder(charset)
    texts = [None if one is None else decode(one) for one in distinct.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(distinct.indices)


def decoded_text(value: bytes, charset: str) -> str:
    """Return one text. ValueError where the bytes are none of the character set."""
    return value.decode() if charset in UTF8 else _decoder(charset)(value)


def _decoder(charset: str) -> Callable[[bytes], str]:
    table = _TABLES.get(charset)
    if table is not None:
        return lambda value: codecs.charmap_decode(value, "strict", table)[0]
    if charset in _WIDE:
        return lambda value: value.decode(_WIDE[charset])
    if charset == "ucs2":
        return _ucs2
    codec = _CODECS.get(charset)
    if codec is None:
        raise ValueError(f"character set {charset}")
    exceptions = _exceptions(charset)
    return lambda value: _characters(value, charset, codec, exceptions)


def _ucs2(value: bytes) -> str:
    """Decode UCS-2. It has no surrogate pairs: each half is a character that does not exist."""
    if len(value) % 2:
        raise ValueError("a text of ucs2 has an odd number of bytes")
    codes = np.frombuffer(value, ">u2").astype(np.uint32)
    codes[(codes >= 0xD800) & (codes < 0xE000)] = ord("?")
    return codes.astype("<u4").tobytes().decode("utf_32_le")


def _exceptions(charset: str) -> Mapping[int, str]:
    found = _KNOWN.get(charset)
    if found is None:
        runs = EXCEPTIONS.get(charset, {})
        found = {first + place: text for first, run in runs.items() for place, text in enumerate(run)}
        _KNOWN[charset] = found
    return found


_KNOWN: dict[str, dict[int, str]] = {}


def _characters(value: bytes, charset: str, codec: str, exceptions: Mapping[int, str]) -> str:
    made: list[str] = []
    at = 0
    while at < len(value):
        size = _size(value[at], charset)
        character = value[at : at + size]
        if len(character) < size:
            raise ValueError(f"a text of {charset} ends within a character")
        at += size
        code = int.from_bytes(character, "big")
        text = exceptions.get(code) or _user_defined(code, charset)
        if not text:
            try:
                text = character.decode(codec)
            except UnicodeDecodeError:
                text = "?"
        made.append(text)
    return "".join(made)


def _size(first: int, charset: str) -> int:
    if first < 0x80 or (charset in _HALF_WIDTH and 0xA1 <= first <= 0xDF):
        return 1
    if charset in _EUC:
        return 3 if first == 0x8F else 2
    return 2


def _user_defined(code: int, charset: str) -> str:
    prefix, row, cell = code & 0xFF0000, code >> 8 & 0xFF, code & 0xFF
    if charset not in _EUC or prefix not in _USER_DEFINED or not (0xF5 <= row <= 0xFE and 0xA1 <= cell <= 0xFE):
        return ""
    return chr(_USER_DEFINED[prefix] + (row - 0xF5) * 94 + cell - 0xA1)
