"""Findings about partitioned tables: what of their partitions is not seen, or not seen at once. Part of check.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from penstock.model.table import TableId, TableSchema
from penstock.source.finding import Finding
from penstock.source.postgres.connect import Connection
from penstock.source.postgres.partition_tree import leaves_of
from penstock.source.postgres.publication import Publications
from penstock.source.postgres.statements import quoted, quoted_table

_TREE = f"""
    SELECT n.nspname, c.relname, c.relkind::text, c.relpersistence::text
    FROM {leaves_of("%s")} t
    JOIN pg_class c ON c.oid = t.oid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relispartition ORDER BY 1, 2
"""
_ROOT = """
    SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = pg_partition_root(%s::oid)::oid AND c.oid <> %s
"""
_ROOTS = """
    SELECT c.oid, n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind = 'p' AND NOT c.relispartition ORDER BY 2, 3
"""


def check_partitions(connection: Connection, schema: TableSchema, found: Publications) -> Iterator[Finding]:
    """Of one table that is followed: a root, or a partition by itself."""
    table = schema.table
    rows = connection.execute(_TREE, (schema.relation_id,)).fetchall()
    for namespace, name, kind, persistence in rows:
        partition = TableId(namespace, name)
        if kind == "f":
            yield Finding(
                "warning",
                f"partition {partition} of {table} is a foreign table: neither its rows nor its changes arrive",
                f"ALTER TABLE {quoted_table(table)} DETACH PARTITION {quoted_table(partition)}",
                table,
            )
        elif persistence == "u":
            yield Finding(
                "warning",
                f"partition {partition} of {table} is unlogged: no changes of it are sent, so the table is Errored",
                f"ALTER TABLE {quoted_table(partition)} SET LOGGED",
                table,
            )
    if rows:
        yield Finding(
            "note",
            f"table {table} is partitioned: Postgres sends no TRUNCATE of one partition; `penstock run` notices it by "
            "looking at the catalogue every copy.discover_every, and copies the table again",
            "",
            table,
        )
    above = connection.execute(_ROOT, (schema.relation_id, schema.relation_id)).fetchone()
    if above is None:
        return
    root = TableId(*above)
    for publication in found.present:
        if publication.via_root and publication.covers(root):
            yield Finding(
                "error",
                f"table {table} is followed by itself, but publication {publication.name} publishes it as part "
                f"of {root}",
                f"ALTER PUBLICATION {quoted(publication.name)} SET (publish_via_partition_root = false)",
                table,
            )


def check_each(
    connection: Connection,
    schemas: Sequence[TableSchema],
    wanted: Callable[[TableId], bool],
    each: Callable[[TableId], bool],
) -> Iterator[Finding]:
    """Partitioned tables that a rule takes by partition, when it takes none of their partitions."""
    followed = {schema.table for schema in schemas}
    for oid, namespace, name in connection.execute(_ROOTS).fetchall():
        root = TableId(namespace, name)
        if not (wanted(root) and each(root)):
            continue
        leaves = {TableId(*row[:2]) for row in connection.execute(_TREE, (oid,)).fetchall()}
        if leaves and not leaves & followed:
            yield Finding(
                "warning",
                f"{root} is partitioned and its rule says `partitions: each`, but that matches none of its partitions",
                f"Let `match` stand for the partitions' own names, such as {min(leaves)}, or say `partitions: root`",
                root,
            )
