"""Schemas whose columns are carried as the text that the source writes for a value: nothing is lost on the way.

`12.5` stays `12.5`, `infinity` stays, an array keeps its shape. Events that leave as text are rendered from it
(`render/`). Where a value must be compared or hashed as its type, `typed_values` parses the text. A dialect whose
source writes no texts leaves its types as they are.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.decode.dialect import dialect_of
from penstock.model.table import VERBATIM, ColumnType, TableSchema


@lru_cache(maxsize=1024)
def verbatim(schema: TableSchema) -> TableSchema:
    """Return the schema with every column carried as its source's text."""
    if not dialect_of(schema).writes_texts:
        return schema
    columns = tuple(replace(column, type=_verbatim(column.type)) for column in schema.columns)
    return replace(schema, columns=columns)


def without_texts(schema: TableSchema) -> TableSchema:
    """Return the schema as it was before `verbatim`."""
    columns = tuple(replace(column, type=typed(column.type)) for column in schema.columns)
    return schema if columns == schema.columns else replace(schema, columns=columns)


def is_verbatim(type: ColumnType) -> bool:
    return type.carried_as.startswith(VERBATIM)


def typed(type: ColumnType) -> ColumnType:
    """Return the type as it was before `verbatim`, with what the user chose for it."""
    return replace(type, carried_as=type.carried_as.removeprefix(VERBATIM)) if is_verbatim(type) else type


def typed_values(schema: TableSchema, type: ColumnType, texts: pa.Array) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """Return the values of texts of a verbatim type, and which texts do not fit that type: their values are null."""
    return dialect_of(schema).fitted(typed(type), texts.cast(pa.binary()))


def _verbatim(type: ColumnType) -> ColumnType:
    return type if is_verbatim(type) else replace(type, carried_as=VERBATIM + type.carried_as)
