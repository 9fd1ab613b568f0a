"""Read the rows that repair a table: those that differed, again from the source in a newer snapshot.

For a run that brings the table to exactly that snapshot's position and commits them there (runtime/pins.py): keys that
the source has are upserted, all others deleted, however often the lake has them.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.control.verify.compare import Difference
from penstock.decode.dialect import dialect_of
from penstock.decode.rescue import RESCUED
from penstock.decode.schema import arrow_schema
from penstock.errors import TableError
from penstock.fold.keys import encode_keys
from penstock.fold.net_effect import NetEffect
from penstock.model.table import TableSchema
from penstock.source.snapshot_contract import TableReader


def net_effect(reader: TableReader, differences: Sequence[Difference], *, statement_timeout: float) -> NetEffect:
    """Return what makes these keys of the table what they are in the source's snapshot."""
    schema = reader.schema
    wanted = keys_of(schema, differences)
    batches = reader.rows_by_key(wanted, statement_timeout=statement_timeout)
    found = pa.concat_tables(
        [arrow_schema(schema).empty_table(), *(pa.Table.from_batches([batch]) for batch in batches)],
        promote_options="default",
    )
    rows = found.select(arrow_schema(schema).names)
    touched = encoded(wanted, schema)
    return NetEffect(
        truncated=False,
        upserts=rows,
        upsert_keys=encoded(rows, schema),
        touched_keys=pc.unique(touched),
        fetches=(),
        changes=len(touched),
        last_commit_time=0,
        rescued=pa.concat_arrays(found[RESCUED].chunks) if RESCUED in found.column_names else None,
    )


def keys_of(schema: TableSchema, differences: Sequence[Difference]) -> pa.Table:
    """Return the keys' columns as decode makes them: a difference has them as text, as the source writes them."""
    fields = arrow_schema(schema)
    columns = []
    for number, name in enumerate(schema.key):
        texts = pa.array([one.key_text[number].encode() for one in differences], pa.binary())
        try:
            columns.append(dialect_of(schema).parsed(schema.column(name).type, texts))
        except ValueError as error:
            raise TableError(
                f"table {schema.table}: the lake has a key that its source's type cannot have: {error}",
                "Copy it again with `penstock resync`",
            ) from error
    return pa.Table.from_arrays(columns, schema=pa.schema([fields.field(name) for name in schema.key]))


def encoded(rows: pa.Table, schema: TableSchema) -> pa.Array:
    return encode_keys([rows[name].combine_chunks() for name in schema.key])
