"""The Arrow schema of a table's decoded rows: what decode makes, what fold hands on, what a destination creates.

Key columns are not nullable. All others are, whatever the source says: a cell may have to wait for its value.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.decode.dialect import dialect_of
from penstock.decode.rescue import RESCUED
from penstock.errors import ColumnNotCarried
from penstock.model.table import Column, TableSchema


def arrow_schema(schema: TableSchema) -> pa.Schema:
    """ColumnNotCarried when a column cannot be one of the destination's."""
    return pa.schema([_field(schema, column) for column in schema.columns])


def _field(schema: TableSchema, column: Column) -> pa.Field:
    dialect = dialect_of(schema)
    if column.name == RESCUED:
        raise ColumnNotCarried(
            f"table {schema.table}: its column {RESCUED} has the name under which penstock keeps values that fit "
            "nowhere else",
            f"Rename the column, or leave it out: {dialect.leave_out(schema.table)}",
        )
    try:
        arrow_type = dialect.arrow_type(column.type)
    except ValueError as unfit:
        raise ColumnNotCarried(
            f'table {schema.table}: column "{column.name}" cannot be carried as chosen under `types:`: {unfit}',
            dialect.choice_help(),
        ) from unfit
    return pa.field(column.name, arrow_type, nullable=column.name not in schema.key)
