"""Findings about what Postgres sends of a table's rows: replica identity and mode, row filters, generated columns.

Part of check.py. docs/source-postgres.md has the table of identities and modes that this follows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from penstock.model.table import TableSchema
from penstock.source.finding import Finding
from penstock.source.postgres.connect import Connection
from penstock.source.postgres.statements import quoted, quoted_table

_LARGE = """
    SELECT attname::text FROM pg_attribute
    WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped AND attlen = -1 AND attstorage <> 'p' ORDER BY attnum
"""
_GENERATED = """
    SELECT attname::text, attgenerated::text FROM pg_attribute
    WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped AND attgenerated <> '' ORDER BY attnum
"""
_SENT_SINCE = 180000


def check_mode(schema: TableSchema, modes: Collection[str]) -> Iterator[Finding]:
    """Report what a mode needs of the identity beyond what every table needs."""
    table = schema.table
    if not schema.key and "history" in modes:
        yield Finding(
            "error",
            f"table {table} has no key, and mode history needs one: without it, no version follows another",
            f"ALTER TABLE {quoted_table(table)} ADD PRIMARY KEY (…) with the columns that identify a row; or choose "
            "another mode",
            table,
        )
    if "events" in modes and schema.identity != "full":
        yield Finding(
            "note",
            f"table {table}, mode events: before an UPDATE or DELETE Postgres sends the key only, not the row",
            f"ALTER TABLE {quoted_table(table)} REPLICA IDENTITY FULL",
            table,
        )


def check_row_filter(connection: Connection, schema: TableSchema) -> Iterator[Finding]:
    """Of a table that is published with a row filter."""
    if schema.identity == "full":
        return
    published = {column.name for column in schema.columns} - set(schema.key)
    large = [name for (name,) in connection.execute(_LARGE, (schema.relation_id,)) if name in published]
    if large:
        yield Finding(
            "warning",
            f"table {schema.table} is published with a row filter: of a row that an UPDATE brings into it Postgres "
            f"does not send large values that stay as they are ({', '.join(large)}), and the table becomes Errored",
            f"ALTER TABLE {quoted_table(schema.table)} REPLICA IDENTITY FULL",
            schema.table,
        )


def check_generated(connection: Connection, schema: TableSchema, publication: str) -> Iterator[Finding]:
    published = {column.name for column in schema.columns}
    rows = connection.execute(_GENERATED, (schema.relation_id,)).fetchall()
    unsent = [name for name, kind in rows if name not in published and kind == "s"]
    virtual = [name for name, kind in rows if kind == "v"]
    if unsent:
        alter = f"ALTER PUBLICATION {quoted(publication)} SET (publish_generated_columns = stored)"
        fix = f"{alter}; then `penstock resync` the table"
        if connection.info.server_version < _SENT_SINCE:
            fix = "Postgres sends them from 18 on; compute them at the destination"
        what = f"table {schema.table}: generated columns are not sent, so they are left out: {', '.join(unsent)}"
        yield Finding("note", what, fix, schema.table)
    if virtual:
        what = f"table {schema.table}: virtual generated columns are stored nowhere, so they are left out: "
        yield Finding("note", what + ", ".join(virtual), "Compute them at the destination", schema.table)
