"""The Arrow schema of a table's decoded rows: what decode makes, what fold hands on, what a destination creates.

Key columns are not nullable. All others are, whatever the source says: a cell may have to wait for its value.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.decode.types.registry import codec
from penstock.model.table import TableSchema


def arrow_schema(schema: TableSchema) -> pa.Schema:
    return pa.schema(
        [
            pa.field(column.name, codec(column.type).arrow_type, nullable=column.name not in schema.key)
            for column in schema.columns
        ]
    )
