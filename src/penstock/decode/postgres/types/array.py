"""Arrays of one dimension as lists of what their elements are. See codec.py for the shape of these modules.

Postgres does not fix an array's dimensions: a column may hold `{1,2}`, `{{1,2},{3,4}}` and `[0:1]={1,2}`. A list says
the first of them. Arrays of more dimensions, and those that do not begin at 1, do not fit: flattened or counted from
another number they would be other values.

Elements are cut out one by one, then parsed all at once by their own codec.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.postgres.types.codec import Mask, TypeCodec, as_text

_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)
_NOT_A_LIST = r"^(\[|\{\{)"


def list_codec(element: TypeCodec, delimiter: str = ",") -> TypeCodec:
    arrow_type = pa.list_(pa.field("element", element.arrow_type))
    elements_of = _splitter(delimiter.encode())

    def parse(texts: pa.Array) -> pa.Array:
        offsets = np.zeros(len(texts) + 1, np.int32)
        elements: list[bytes | None] = []
        for number, text in enumerate(texts.to_pylist(), start=1):
            if text is not None:
                elements += elements_of(text)
            offsets[number] = len(elements)
        values = element.parse(pa.array(elements, pa.binary()))
        mask = texts.is_null() if texts.null_count else None
        return pa.ListArray.from_arrays(pa.array(offsets), values, arrow_type, mask=mask)

    return TypeCodec(arrow_type, parse, _misfits)


def _misfits(texts: pa.Array) -> Mask:
    return np.asarray(pc.fill_null(pc.match_substring_regex(as_text(texts), _NOT_A_LIST), False))


def _splitter(delimiter: bytes) -> Callable[[bytes], list[bytes | None]]:
    """Return the elements of one array's text. Postgres quotes an element that could be taken for something else."""
    between = re.escape(delimiter)
    one = re.compile(rb'(?:"((?:[^"\\]|\\.)*)"|([^"\\{}\s' + between + rb"][^\"\\{}" + between + rb"]*))", re.DOTALL)

    def split(text: bytes) -> list[bytes | None]:
        if len(text) < 2 or text[:1] != b"{" or text[-1:] != b"}":
            raise ValueError("not an array of one dimension that begins at 1")
        inside = text[1:-1]
        if not inside:
            return []
        if b'"' not in inside:
            if b"{" in inside or b"\\" in inside or b"}" in inside:
                raise ValueError("not an array of one dimension")
            return [None if part == b"NULL" else part for part in inside.split(delimiter)]
        found: list[bytes | None] = []
        position = 0
        while True:
            match = one.match(inside, position)
            if match is None:
                raise ValueError("not an array of one dimension")
            quoted, plain = match.groups()
            if quoted is not None:
                found.append(_ESCAPED.sub(rb"\1", quoted))
            else:
                found.append(None if plain == b"NULL" else plain)
            position = match.end()
            if position == len(inside):
                return found
            if inside[position : position + 1] != delimiter:
                raise ValueError("its elements are not parted as they should be")
            position += 1

    return split
