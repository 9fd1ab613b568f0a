"""Findings about each table: key, replica identity, partitions, row filters, rows before the slot. Part of check.py."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import psycopg

from penstock.model.table import TableId, TableSchema
from penstock.source.postgres.check_identity import check_generated, check_mode, check_row_filter
from penstock.source.postgres.check_partitions import check_partitions
from penstock.source.postgres.connect import Connection
from penstock.source.postgres.discover import describe
from penstock.source.postgres.finding import Finding
from penstock.source.postgres.publication import Publication
from penstock.source.postgres.slot import SlotState
from penstock.source.postgres.statements import quoted, quoted_list, quoted_table

_REFUSED = "while it is published like that, Postgres itself refuses UPDATE and DELETE on it"
_IDENTITY_WORDS = {"d": "DEFAULT", "f": "FULL", "n": "NOTHING"}


def check_tables(
    connection: Connection,
    schemas: Sequence[TableSchema],
    published_by: str,
    publication: Publication | None,
    slot: SlotState | None,
    wanted: Callable[[TableId], bool],
    modes: Callable[[TableId], Collection[str]],
) -> Iterator[Finding]:
    """`published_by` is the publication's name, also while there is none yet."""
    filters = _row_filters(connection, publication)
    for schema in schemas:
        table = schema.table
        yield from check_mode(schema, modes(table))
        if schema.by_row and "append" not in modes(table):
            if "clone" in modes(table):
                yield _by_row(connection, schema)
        elif not schema.key:
            yield _no_key(connection, schema, publication)
        elif schema.key and schema.identity == "nothing":
            yield Finding(
                "error",
                f"table {table} has REPLICA IDENTITY NOTHING: {_REFUSED}",
                f"ALTER TABLE {quoted_table(table)} REPLICA IDENTITY DEFAULT",
                table,
            )
        yield from _partitions(connection, schema)
        yield from check_partitions(connection, schema, publication)
        yield from check_generated(connection, schema, published_by)
        if table in filters:
            yield from check_row_filter(connection, schema)
            yield Finding(
                "note",
                f"table {table} is published with a row filter: only rows that satisfy it arrive",
                f"To follow all rows, publish it without WHERE ({filters[table]})",
                table,
            )
        new = slot is None or publication is None or not publication.covers(table)
        if new and has_rows(connection, table):
            yield Finding(
                "note",
                f"table {table} has rows from before the slot: `penstock run` copies them first",
                "",
                table,
            )
    yield from _unlogged(connection, wanted)


def has_rows(connection: Connection, table: TableId) -> bool:
    """Whether the table holds a row. Without the right to read it: whether it takes up space."""
    try:
        rows = connection.execute(f"SELECT EXISTS (SELECT 1 FROM {quoted_table(table)})".encode()).fetchall()
    except psycopg.errors.InsufficientPrivilege:
        rows = connection.execute(
            "SELECT coalesce(sum(pg_relation_size(relid)), 0) > 0 FROM (SELECT %(table)s::regclass AS relid"
            " UNION SELECT relid FROM pg_partition_tree(%(table)s::regclass) WHERE isleaf) r",
            {"table": quoted_table(table)},
        ).fetchall()
    return bool(rows[0][0])


def _no_key(connection: Connection, schema: TableSchema, publication: Publication | None) -> Finding:
    table = schema.table
    facts = describe(connection, schema.relation_id)
    published = {column.name for column in schema.columns}
    if facts is not None and facts.key and publication is not None:
        lost = [name for name in facts.key if name not in published]
        name, target = quoted(publication.name), quoted_table(table)
        columns = quoted_list([*lost, *(c.name for c in schema.columns)])
        return Finding(
            "error",
            f"table {table} is published without its key column {', '.join(lost)}: {_REFUSED}",
            f"ALTER PUBLICATION {name} DROP TABLE {target}; ALTER PUBLICATION {name} ADD TABLE {target} ({columns})",
            table,
        )
    refused = "" if schema.identity == "full" else f", and {_REFUSED}"
    return Finding(
        "error",
        f"table {table} has no key: inserts flow, but an UPDATE or DELETE makes it Errored{refused}",
        _key_statement(connection, schema),
        table,
    )


def _by_row(connection: Connection, schema: TableSchema) -> Finding:
    return Finding(
        "note",
        f"table {schema.table} has no key and REPLICA IDENTITY FULL: it is followed by its whole row. Postgres writes "
        "every old row to the WAL, the copy reads the table from one snapshot, and every row is hashed to be found; a "
        "key costs less",
        _key_statement(connection, schema),
        schema.table,
    )


def _key_statement(connection: Connection, schema: TableSchema) -> str:
    """What gives the table a key, from what it has: a primary key or unique index that only needs naming."""
    rows = connection.execute(
        """
        SELECT c.relname, x.indisprimary, x.indimmediate, k.conname,
               (SELECT array_agg(a.attname::text ORDER BY p.place)
                FROM unnest((x.indkey::int2[])[0:x.indnkeyatts - 1]) WITH ORDINALITY AS p (attnum, place)
                JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = p.attnum)
        FROM pg_index x
        JOIN pg_class c ON c.oid = x.indexrelid
        LEFT JOIN pg_constraint k ON k.conindid = x.indexrelid AND k.contype IN ('p', 'u')
        WHERE x.indrelid = %s AND x.indisunique AND x.indisvalid AND x.indpred IS NULL AND x.indexprs IS NULL
          AND NOT EXISTS (SELECT 1 FROM pg_attribute a WHERE a.attrelid = x.indrelid AND NOT a.attnotnull
                          AND a.attnum = ANY ((x.indkey::int2[])[0:x.indnkeyatts - 1]))
        ORDER BY x.indisprimary DESC, x.indimmediate DESC, x.indnkeyatts, c.relname
        """,
        (schema.relation_id,),
    ).fetchall()
    alter = f"ALTER TABLE {quoted_table(schema.table)}"
    for index, primary, immediate, constraint, columns in rows:
        if primary and immediate:
            return f"{alter} REPLICA IDENTITY DEFAULT"
        if immediate:
            return f"{alter} REPLICA IDENTITY USING INDEX {quoted(index)}"
        if primary:
            return f"{alter} DROP CONSTRAINT {quoted(constraint)}, ADD PRIMARY KEY ({quoted_list(columns)})"
    names = {column.name for column in schema.columns}
    new = next(name for name in ("id", "row_id", "penstock_row_id") if name not in names)
    return (
        f"{alter} ADD PRIMARY KEY (…) with the columns that identify a row; if there are none: "
        f"{alter} ADD COLUMN {quoted(new)} bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
    )


def _partitions(connection: Connection, schema: TableSchema) -> Iterator[Finding]:
    """A partition's own replica identity decides what is sent of its rows; it does not follow its root's."""
    rows = connection.execute(
        """
        SELECT n.nspname, c.relname, root.relreplident::text,
               (SELECT ic.relname FROM pg_index x JOIN pg_class ic ON ic.oid = x.indexrelid
                WHERE x.indrelid = c.oid AND root_index.indexrelid IN (SELECT pg_partition_ancestors(x.indexrelid)))
        FROM pg_partition_tree(%s::oid::regclass) t
        JOIN pg_class c ON c.oid = t.relid
        JOIN pg_namespace n ON n.oid = c.relnamespace
        JOIN pg_class root ON root.oid = %s
        LEFT JOIN pg_index root_index ON root_index.indrelid = root.oid AND root_index.indisreplident
        WHERE t.isleaf AND c.oid <> root.oid AND c.relreplident <> root.relreplident
        ORDER BY 1, 2
        """,
        (schema.relation_id, schema.relation_id),
    ).fetchall()
    if not rows:
        return
    statements = []
    for namespace, name, identity, index in rows[:3]:
        word = _IDENTITY_WORDS.get(identity) or f"USING INDEX {quoted(index or '…')}"
        statements.append(f"ALTER TABLE {quoted(namespace, name)} REPLICA IDENTITY {word}")
    more = f"; and so on for {len(rows) - 3} more" if len(rows) > 3 else ""
    yield Finding(
        "warning",
        f"{len(rows)} partition(s) of {schema.table} have another replica identity than their root",
        "; ".join(statements) + more,
        schema.table,
    )


def _row_filters(connection: Connection, publication: Publication | None) -> dict[TableId, str]:
    if publication is None or connection.info.server_version < 150000:
        return {}
    rows = connection.execute(
        "SELECT schemaname, tablename, rowfilter FROM pg_publication_tables"
        " WHERE pubname = %s AND rowfilter IS NOT NULL",
        (publication.name,),
    ).fetchall()
    return {TableId(schema, name): row_filter for schema, name, row_filter in rows}


def _unlogged(connection: Connection, wanted: Callable[[TableId], bool]) -> Iterator[Finding]:
    rows = connection.execute(
        "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.relkind = 'r' AND c.relpersistence = 'u' AND NOT c.relispartition ORDER BY 1, 2"
    ).fetchall()
    for table in (TableId(*row) for row in rows):
        if wanted(table):
            yield Finding(
                "warning",
                f"table {table} is unlogged: Postgres writes no changes of it, so it is left out",
                f"ALTER TABLE {quoted_table(table)} SET LOGGED",
                table,
            )
