"""Schemas whose columns are carried as the text that the source writes for a value: nothing is lost on the way.

`12.5` stays `12.5`, `infinity` stays, an array keeps its shape. Events that leave as text are rendered from it
(`render/`). Where a value must be compared or hashed as its type, `typed_values` parses the text. A dialect whose
source writes no texts leaves its types as they are.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.decode.dialect import dialect_of
from penstock.model.table import VERBATIM, ColumnType, TableSchema
from penstock.model.type_map import AS_WRITTEN, TEXT


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


def comparable(schema: TableSchema) -> TableSchema:
    """Return the schema with types in which values can be compared, where a destination takes only their texts."""
    dialect = dialect_of(schema)

    def of(type: ColumnType) -> ColumnType:
        bare = replace(type, held_as="")
        return type if type.held_as != TEXT else replace(bare, held_as=dialect.held_as(bare, AS_WRITTEN))

    columns = tuple(replace(column, type=of(column.type)) for column in schema.columns)
    return schema if columns == schema.columns else replace(schema, columns=columns)


def comparable_rows(schema: TableSchema, rows: pa.Table, names: Collection[str]) -> pa.Table:
    """Return rows of the schema with values that can be compared in the named columns; null where a text fits none."""
    typed_schema = comparable(schema)
    for column in typed_schema.columns:
        place = rows.schema.get_field_index(column.name)
        if column.name in names and place >= 0 and column != schema.column(column.name):
            texts = rows.column(place).combine_chunks().cast(pa.binary())
            values, _ = dialect_of(schema).fitted(column.type, texts)
            rows = rows.set_column(place, pa.field(column.name, values.type), values)
    return rows


def _verbatim(type: ColumnType) -> ColumnType:
    return type if is_verbatim(type) else replace(type, carried_as=VERBATIM + type.carried_as)
