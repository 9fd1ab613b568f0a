"""The partitions of a table, by plain reads of the catalogue.

`pg_partition_tree` locks every partition that it names, and so waits for whoever alters one: capture would stand still
for all tables, and a start would hang. Neither may depend on what somebody does with one table.
"""

from __future__ import annotations


def leaves_of(root: str) -> str:
    """Return a subquery that gives, as `oid`, the relations that hold a table's rows.

    These are its leaves at any depth, or itself. `root` is SQL for the table's oid: a parameter, or a column of the
    query around it.
    """
    return f"""(
        WITH RECURSIVE tree (oid) AS (
            SELECT {root}::oid
            UNION ALL
            SELECT i.inhrelid
            FROM tree t
            JOIN pg_class p ON p.oid = t.oid AND p.relkind = 'p'
            JOIN pg_inherits i ON i.inhparent = t.oid AND NOT i.inhdetachpending
        )
        SELECT l.oid FROM tree JOIN pg_class l ON l.oid = tree.oid WHERE l.relkind <> 'p'
    )"""
