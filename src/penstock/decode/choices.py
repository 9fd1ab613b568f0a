"""What users choose for columns and types (`types:`), put into a schema and taken out again: `carried_as`.

`chosen` is the one place where choices are applied: by the driver, to every schema that comes from the catalogue or
from the log, before anybody decodes under it.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.decode.dialect import Choices, dialect_of
from penstock.model.table import ColumnType, TableSchema


def chosen(schema: TableSchema, choices: Choices) -> TableSchema:
    """The schema with the choices in its types."""
    return dialect_of(schema).chosen(schema, choices)


def unchosen(schema: TableSchema) -> TableSchema:
    """The schema as the source has it, without anybody's choices."""
    columns = tuple(replace(column, type=_bare(column.type)) for column in schema.columns)
    return schema if columns == schema.columns else replace(schema, columns=columns)


def _bare(type: ColumnType) -> ColumnType:
    element = None if type.element is None else _bare(type.element)
    return replace(type, element=element, fields=tuple((name, _bare(one)) for name, one in type.fields), carried_as="")
