"""Postgres' own text of a value as JSON, by kernels. Called by `render/` through the dialect.

| type                  | in JSON                                                                                |
|-----------------------|----------------------------------------------------------------------------------------|
| bool                  | true, false                                                                            |
| integers, oid         | a number                                                                               |
| float4, float8        | a number, digit for digit; "NaN", "Infinity", "-Infinity" for what JSON has no number for |
| numeric               | text, digit for digit: a JSON number may lose some                                     |
| json, jsonb           | the JSON itself; line breaks between its parts become spaces                           |
| bytea                 | base64                                                                                 |
| timestamp, -tz        | ISO 8601 with T and, for timestamptz, Z; `infinity` and years BC stay as they are      |
| arrays                | an array of what its elements are, nested as it is; as text if it does not begin at 1  |
| composites, hstore    | an object                                                                              |
| anything else         | its text                                                                               |

With `raw`, moments, composites, hstore and arrays of several dimensions are their text: what faucet's readers expect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.json_escapes import NULL, base64_texts, octets_of, quoted, quoted_text
from penstock.decode.postgres.types import composite, hstore
from penstock.decode.postgres.types.registry import codec
from penstock.model.table import ColumnType

Render = Callable[[pa.Array], pa.Array]

_BOOL, _BYTEA, _NUMERIC, _JSON, _JSONB, _TIMESTAMP, _TIMESTAMPTZ = 16, 17, 1700, 114, 3802, 1114, 1184
_WHOLE = {20, 21, 23, 26, 28, 29}
_FLOATING = {700, 701}
_NO_ESCAPES = {1082, 1083, 1266, 1186, 2950, 869, 650, 829, 774, 1560, 1562}  # digits, letters and signs alone
_LINE_BREAKS = ("\n", "\r", "\t")
_NO_NUMBER = r"^(NaN|-?Infinity)$"
_BRACES = r"^(\[|\{\{)"
_TOKEN = re.compile(rb'"((?:[^"\\]|\\.)*)"|([{}])|([^"\\{}]+)', re.DOTALL)
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)


def json_texts(type: ColumnType, texts: pa.Array, *, raw: bool = False) -> pa.Array:
    """Return the JSON of each text (a string array); null where it is null."""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), pa.string())
    return _renderer(type, raw)(texts)


@lru_cache(maxsize=4096)
def _renderer(type: ColumnType, raw: bool) -> Render:
    if type.carried_as == "text":
        return quoted_text
    if type.kind == "array" and type.element is not None:
        return _arrays(_renderer(type.element, raw), type.delimiter.encode(), raw)
    if type.kind == "composite" and type.fields:
        return quoted_text if raw else _objects([(name, _renderer(one, raw)) for name, one in type.fields])
    if type.kind == "base" and type.name == "hstore":
        return quoted_text if raw else _hstores
    if type.kind != "base":
        return quoted_text
    return _of_base(type.oid, raw)


def _of_base(oid: int, raw: bool) -> Render:
    if oid in _WHOLE:
        return lambda texts: texts
    if oid in _FLOATING:
        return _floats
    if oid in (_JSON, _JSONB):
        return _documents
    if oid in (_TIMESTAMP, _TIMESTAMPTZ):
        return quoted if raw else _moments if oid == _TIMESTAMP else _zoned_moments
    if oid == _BOOL:
        return lambda texts: pc.if_else(pc.equal(texts, "t"), "true", "false")
    if oid == _BYTEA:
        return lambda texts: quoted(base64_texts(codec(ColumnType(_BYTEA, "bytea")).parse(texts.cast(pa.binary()))))
    return quoted if oid == _NUMERIC or oid in _NO_ESCAPES else quoted_text


def _floats(texts: pa.Array) -> pa.Array:
    signed = pc.equal(texts, "-0")
    if pc.any(signed).as_py():
        texts = pc.if_else(signed, "-0.0", texts)  # as a whole number it would lose its sign
    octets = octets_of(texts)
    if not ((octets == ord("N")) | (octets == ord("I"))).any():
        return texts
    odd = pc.match_substring_regex(texts, _NO_NUMBER)
    return pc.if_else(odd, quoted(texts), texts)


def _documents(texts: pa.Array) -> pa.Array:
    """JSON has control characters between its parts only: inside of strings they are escaped."""
    octets = octets_of(texts)
    for character in _LINE_BREAKS if (octets < ord(" ")).any() else ():
        texts = pc.replace_substring(texts, character, " ")
    return texts


def _moments(texts: pa.Array) -> pa.Array:
    return _iso(texts, lambda some: pc.replace_substring(some, " ", "T"))


def _zoned_moments(texts: pa.Array) -> pa.Array:
    """Return moments as text. The session's time zone is UTC, so the offset is +00."""
    return _iso(texts, lambda some: pc.replace_substring(pc.replace_substring(some, " ", "T"), "+00", "Z"))


def _iso(texts: pa.Array, write: Render) -> pa.Array:
    """Leave `infinity` and years before Christ, recognised by their letters, as they are."""
    if not (octets_of(texts) > ord("9")).any():
        return quoted(write(texts))
    return quoted(pc.if_else(pc.match_substring_regex(texts, "[A-Za-z]"), texts, write(texts)))


def _arrays(element: Render, delimiter: bytes, raw: bool) -> Render:
    def render(texts: pa.Array) -> pa.Array:
        odd = pc.match_substring_regex(texts, _BRACES)
        if not pc.any(odd).as_py():
            return _lists(texts, element, delimiter)
        mask = pc.fill_null(odd, False)
        shaped = texts.filter(mask)
        written = quoted_text(shaped) if raw else _nested(shaped, element, delimiter)
        plain = _lists(pc.if_else(mask, pa.scalar(None, pa.string()), texts), element, delimiter)
        return pc.replace_with_mask(plain, mask, written)

    return render


def _lists(texts: pa.Array, element: Render, delimiter: bytes) -> pa.Array:
    """Return arrays of one dimension: the elements of all are rendered together."""
    offsets = np.zeros(len(texts) + 1, np.int32)
    found: list[bytes | None] = []
    for number, text in enumerate(texts.cast(pa.binary()).to_pylist(), start=1):
        if text is not None:
            found += [one for one in _tokens(text, delimiter) if not isinstance(one, str)]
        offsets[number] = len(found)
    items = pc.fill_null(_rendered(element, found), NULL)
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), items), ",")
    if texts.null_count:
        joined = pc.if_else(texts.is_valid(), joined, pa.scalar(None, pa.string()))
    return pc.binary_join_element_wise("[", joined, "]", "")


def _nested(texts: pa.Array, element: Render, delimiter: bytes) -> pa.Array:
    """Return arrays of several dimensions; one that does not begin at 1 is its text."""
    shapes: list[list[bytes | str | None] | None] = []
    found: list[bytes | None] = []
    for text in texts.cast(pa.binary()).to_pylist():
        tokens = None if text.startswith(b"[") else _tokens(text, delimiter)
        shapes.append(tokens)
        found += [one for one in tokens or () if not isinstance(one, str)]
    items = iter(pc.fill_null(_rendered(element, found), NULL).to_pylist())
    written = [
        None if tokens is None else _closed([one if isinstance(one, str) else next(items) for one in tokens])
        for tokens in shapes
    ]
    return pc.coalesce(pa.array(written, pa.string()), quoted_text(texts))


def _closed(parts: Sequence[str]) -> str:
    """Braces as brackets, with commas between what stands beside each other."""
    written: list[str] = []
    for part in parts:
        if written and part != "}" and written[-1] != "[":
            written.append(",")
        written.append("[" if part == "{" else "]" if part == "}" else part)
    return "".join(written)


def _tokens(text: bytes, delimiter: bytes) -> list[bytes | str | None]:
    """Elements of an array's text in order (None: NULL), and as `{` and `}` where its dimensions begin and end."""
    found: list[bytes | str | None] = []
    for quoted_part, brace, plain in _TOKEN.findall(text):
        if brace:
            found.append(brace.decode())
        elif plain:
            parts = [part for part in plain.split(delimiter) if part]
            found += [None if part == b"NULL" else part for part in parts]
        else:
            found.append(_ESCAPED.sub(rb"\1", quoted_part))
    return found


def _rendered(element: Render, texts: list[bytes | None]) -> pa.Array:
    values = pa.array(texts, pa.binary()).cast(pa.string())
    return pa.nulls(len(values), pa.string()) if values.null_count == len(values) else element(values)


def _objects(fields: Sequence[tuple[str, Render]]) -> Render:
    names = [quoted_text(pa.array([name]))[0].as_py() for name, _ in fields]

    def render(texts: pa.Array) -> pa.Array:
        columns: list[list[bytes | None]] = [[] for _ in fields]
        for text in texts.cast(pa.binary()).to_pylist():
            values: Sequence[bytes | None] = [None] * len(fields) if text is None else composite.split(text)
            if len(values) != len(fields):
                return quoted_text(texts)  # of another version of the type: as it is
            for column, value in zip(columns, values, strict=True):
                column.append(value)
        parts: list[str | pa.Array] = []
        for number, (name, (_, one), column) in enumerate(zip(names, fields, columns, strict=True)):
            parts += [("," if number else "{") + name + ":", pc.fill_null(_rendered(one, column), NULL)]
        made = pc.binary_join_element_wise(*parts, "}", "")
        return pc.if_else(texts.is_valid(), made, pa.scalar(None, pa.string())) if texts.null_count else made

    return render


def _hstores(texts: pa.Array) -> pa.Array:
    maps = hstore.codec(ColumnType(0, "hstore")).parse(texts.cast(pa.binary()))
    keys, items = quoted_text(maps.keys), maps.items
    values = pc.fill_null(quoted_text(items), NULL)
    pairs = pc.binary_join_element_wise(keys, values, ":")
    joined = pc.binary_join(pa.ListArray.from_arrays(maps.offsets, pairs), ",")
    if texts.null_count:
        joined = pc.if_else(texts.is_valid(), joined, pa.scalar(None, pa.string()))
    return pc.binary_join_element_wise("{", joined, "}", "")
