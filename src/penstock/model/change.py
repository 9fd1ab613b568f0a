"""Define raw changes: how row changes of one table under one schema travel from capture to decode.

A raw batch is an Arrow record batch of RAW_SCHEMA, in stream order, all of one relation and one schema version.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.model.table import TableSchema

INSERT, UPDATE, DELETE, TRUNCATE = b"IUDT"

RAW_SCHEMA = pa.schema(
    [
        pa.field("commit_position", pa.uint64(), nullable=False),  # of its transaction
        pa.field("ordinal", pa.uint64(), nullable=False),  # place in its transaction, from 0
        pa.field("change_position", pa.uint64(), nullable=False),  # where the change itself stands in the source's log
        pa.field("transaction", pa.uint64(), nullable=False),  # the number by which its source knows it
        pa.field("commit_time", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("op", pa.uint8(), nullable=False),  # INSERT, UPDATE, DELETE, TRUNCATE
        pa.field("data", pa.binary(), nullable=False),  # the source's message, byte for byte
    ]
)


@dataclass(frozen=True)
class RawChanges:
    """Raw batches of one table under one schema version, in stream order."""

    schema: TableSchema
    batch: pa.RecordBatch
