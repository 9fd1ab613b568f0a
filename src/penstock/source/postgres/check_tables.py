"""Findings about each table: key, replica identity, partitions, row filters, rows before the slot. Part of check.py."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import psycopg

from penstock.model.table import TableId, TableSchema
from penstock.source.finding import Finding
from penstock.source.postgres.check_identity import check_generated, check_mode, check_row_filter
from penstock.source.postgres.check_partitions import check_partitions
from penstock.source.postgres.connect import Connection
from penstock.source.postgres.discover import describe
from penstock.source.postgres.partition_tree import leaves_of
from penstock.source.postgres.publication import Member, Publication, Publications
from penstock.source.postgres.slot import SlotState
from penstock.source.postgres.statements import quoted, quoted_list, quoted_table

_REFUSED = "while it is published like that, Postgres itself refuses UPDATE and DELETE on it"
_IDENTITY_WORDS = {"d": "DEFAULT", "f": "FULL", "n": "NOTHING"}


def check_tables(
    connection: Connection,
    schemas: Sequence[TableSchema],
    members: Sequence[Member],
    found: Publications,
    pipeline: str,
    slot: SlotState | None,
    wanted: Callable[[TableId], bool],
    modes: Callable[[TableId], Collection[str]],
) -> Iterator[Finding]:
    """`members` are of the same tables, in the same order."""
    filters = _row_filters(connection, found)
    for schema, member in zip(schemas, members, strict=True):
        table = schema.table
        yield from check_mode(schema, modes(table))
        if member.lacks_identity:
            yield _no_identity(connection, schema, found, pipeline)
        elif schema.by_row and "append" not in modes(table):
            if "clone" in modes(table):
                yield _by_row(connection, schema)
        elif not schema.key:
            yield _no_key(connection, schema, found.main)
        yield from _partitions(connection, schema)
        yield from check_partitions(connection, schema, found)
        yield from check_generated(connection, schema, found.name)
        if table in filters:
            yield from check_row_filter(connection, schema)
            yield Finding(
                "note",
                f"table {table} is published with a row filter: only rows that satisfy it arrive",
                f"To follow all rows, publish it without WHERE ({filters[table]})",
                table,
            )
        new = slot is None or not found.covers(table)
        if new and has_rows(connection, schema):
            yield Finding(
                "note",
                f"table {table} has rows from before the slot: `penstock run` copies them first",
                "",
                table,
            )
    yield from _unlogged(connection, wanted)


def has_rows(connection: Connection, schema: TableSchema) -> bool:
    """Return whether the table holds a row.

    Without the right to read it: whether it takes up space. True while it is locked: nobody can tell.
    """
    try:
        try:
            rows = connection.execute(f"SELECT EXISTS (SELECT 1 FROM {quoted_table(schema.table)})".encode()).fetchall()
        except psycopg.errors.InsufficientPrivilege:  # on the table, or on its schema: so it is not asked for by name
            size = f"SELECT coalesce(sum(pg_relation_size(r.oid)), 0) > 0 FROM {leaves_of('%s')} r"
            rows = connection.execute(size.encode(), (schema.relation_id,)).fetchall()
    except psycopg.errors.LockNotAvailable:
        return True
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
    return Finding(
        "error",
        f"table {table} has no key: inserts flow, but an UPDATE or DELETE makes it Errored",
        _key_statement(connection, schema),
        table,
    )


def _no_identity(connection: Connection, schema: TableSchema, found: Publications, pipeline: str) -> Finding:
    """Return what is wrong with a table without a replica identity: published for inserts only, or with updates."""
    table = schema.table
    fix = _key_statement(connection, schema)
    if schema.key and schema.identity == "nothing":
        has, fix = "has REPLICA IDENTITY NOTHING", f"ALTER TABLE {quoted_table(table)} REPLICA IDENTITY DEFAULT"
    elif schema.key:
        has, fix = "has partitions without a replica identity", _other_identities(connection, schema)[1]
    else:
        has = "has no key"
    by = [one.name for one in found.present if one.covers(table) and one.operations & {"update", "delete"}]
    foreign = [one for one in found.present if one.name in by and not one.managed_by(pipeline)]
    if foreign:
        return Finding("error", f"table {table} {has}, and publication {', '.join(by)} has it: {_REFUSED}", fix, table)
    return Finding(
        "warning",
        f"table {table} {has}: only its inserts are published, and an UPDATE or DELETE makes it Errored",
        fix,
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
    """Return the statement that gives the table a key from what it has.

    That is a primary key or a unique index that only needs naming.
    """
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
    """Yield partitions whose replica identity differs from their root's: each one's own decides what is sent."""
    number, statements = _other_identities(connection, schema)
    if number:
        what = f"{number} partition(s) of {schema.table} have another replica identity than their root"
        yield Finding("warning", what, statements, schema.table)


def _other_identities(connection: Connection, schema: TableSchema) -> tuple[int, str]:
    """Return how many partitions have another identity than their root, and what gives them the same."""
    rows = connection.execute(
        """
        SELECT n.nspname, c.relname, root.relreplident::text,
               (SELECT ic.relname FROM pg_index x JOIN pg_class ic ON ic.oid = x.indexrelid
                WHERE x.indrelid = c.oid AND root_index.indexrelid IN (SELECT pg_partition_ancestors(x.indexrelid)))
        FROM """
        + leaves_of("%s")
        + """ t
        JOIN pg_class c ON c.oid = t.oid
        JOIN pg_namespace n ON n.oid = c.relnamespace
        JOIN pg_class root ON root.oid = %s
        LEFT JOIN pg_index root_index ON root_index.indrelid = root.oid AND root_index.indisreplident
        WHERE c.oid <> root.oid AND c.relreplident <> root.relreplident
        ORDER BY 1, 2
        """,
        (schema.relation_id, schema.relation_id),
    ).fetchall()
    statements = []
    for namespace, name, identity, index in rows[:3]:
        word = _IDENTITY_WORDS.get(identity) or f"USING INDEX {quoted(index or '…')}"
        statements.append(f"ALTER TABLE {quoted(namespace, name)} REPLICA IDENTITY {word}")
    more = f"; and so on for {len(rows) - 3} more" if len(rows) > 3 else ""
    return len(rows), "; ".join(statements) + more


def _row_filters(connection: Connection, found: Publications) -> dict[TableId, str]:
    if connection.info.server_version < 150000:
        return {}
    rows = connection.execute(
        "SELECT n.nspname, c.relname, r.oid FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid"
        " JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE p.pubname = ANY (%s) AND r.prqual IS NOT NULL",
        ([one.name for one in found.present],),
    ).fetchall()
    return {TableId(schema, name): _row_filter(connection, member) for schema, name, member in rows}


def _row_filter(connection: Connection, member: int) -> str:
    """Return the condition in words; "…" while its table is locked."""
    query = "SELECT pg_get_expr(prqual, prrelid) FROM pg_publication_rel WHERE oid = %s"
    try:
        rows = connection.execute(query, (member,)).fetchall()
    except psycopg.errors.LockNotAvailable:
        return "…"
    return str(rows[0][0]) if rows else "…"


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
