"""Canonical text of values (model/row_digest.py) of this source, made here from what a SELECT gives.

The server cannot make all of them in SQL: it has no function for the bits of a floating-point number. So rows are read
as the copy reads them, and the texts are made of their typed values: as Spark makes them of the lake's types
(control/verify/canonical_types.py). A cell that does not fit its type is the text that was rescued.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.mysql.texts import written
from penstock.decode.mysql.values import from_texts
from penstock.model.table import ColumnType

_US = "\x1f"
_FRACTION = r"\.?0+$"


def canonical_texts(type: ColumnType, selected: pa.Array, *, wide: bool = False) -> pa.Array:
    """Return the text of each value; null for NULL. `wide`: a FLOAT is compared as a DOUBLE."""
    found = from_texts(type, selected)
    values = found.values.cast(pa.float64()) if wide and pa.types.is_float32(found.values.type) else found.values
    made = _texts(type, values)
    if len(found.misfits):
        mask = np.zeros(len(made), np.bool_)
        mask[found.misfits] = True
        made = pc.replace_with_mask(made, pa.array(mask), pa.array(found.texts, pa.string()))
    return made


def shown_texts(type: ColumnType, selected: pa.Array, canonical: pa.Array) -> pa.Array:
    """Return what an operator is shown: numbers in place of their bits."""
    values = from_texts(type, selected).values
    return values.cast(pa.string()) if pa.types.is_floating(values.type) else canonical


def row_texts(columns: Sequence[pa.Array], count: int) -> list[str]:
    """Return the text of each row."""
    if not columns:
        return [""] * count
    parts = []
    for column in columns:
        text = column
        if pc.any(pc.match_substring(column, _US)).as_py():
            text = pc.replace_substring(column, _US, _US + _US)
        parts.append(pc.fill_null(pc.binary_join_element_wise(text, f"{_US},", ""), f"{_US}-"))
    joined: list[str] = pc.binary_join_element_wise(*parts, "").to_pylist()
    return joined


def digests(texts: Sequence[str]) -> list[str]:
    return [hashlib.md5(text.encode(), usedforsecurity=False).hexdigest() for text in texts]


def _texts(type: ColumnType, values: pa.Array) -> pa.Array:
    kind = values.type
    if pa.types.is_floating(kind):
        whole = pa.int32() if kind == pa.float32() else pa.int64()
        return values.view(whole).cast(pa.string())
    if pa.types.is_binary(kind):
        return pc.binary_join_element_wise("\\x", pc.utf8_lower(written(type, values, _NOWHERE, [])), "")
    if pa.types.is_decimal(kind):
        texts = written(type, values, _NOWHERE, [])
        return pc.replace_substring_regex(texts, _FRACTION, "") if kind.scale else texts
    if pa.types.is_timestamp(kind):
        moments = pc.replace_substring_regex(_moments(values), _FRACTION, "")
        return pc.binary_join_element_wise(moments, "+00", "") if kind.tz is not None else moments
    return values.cast(pa.string())


_NOWHERE = np.empty(0, np.int64)


def _moments(values: pa.Array) -> pa.Array:
    return values.cast(pa.int64()).view(pa.timestamp("us")).cast(pa.string())
