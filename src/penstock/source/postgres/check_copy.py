"""Findings about what a copy needs: a slot and a WAL sender for each snapshot, and the right to read. Part of check.py.

A snapshot is made by a temporary slot on a replication connection of its own (snapshot.py), beside those by which
changes are captured. Ranges are read by the names of the relations that hold the rows (copy_read.py), so a partitioned
table needs the right on each of its leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.model.table import TableId, TableSchema
from penstock.source.postgres.connect import Connection
from penstock.source.postgres.finding import Finding, Level
from penstock.source.postgres.partition_tree import leaves_of
from penstock.source.postgres.publication import Publication
from penstock.source.postgres.slot import SlotState
from penstock.source.postgres.snapshot import SLOT_PREFIX
from penstock.source.postgres.statements import literal, quoted, quoted_table

_ROOM = 4  # how much more is asked for where there is too little
_SHOWN = 3


def check_capacity(connection: Connection, slot: SlotState | None) -> Iterator[Finding]:
    """Slots and senders that are free, against one for the changes, unless it is there, and one for a snapshot."""
    yield from _slots(connection, slot)
    yield from _senders(connection, slot)


def _slots(connection: Connection, slot: SlotState | None) -> Iterator[Finding]:
    taken, most, idle = connection.execute(
        "SELECT count(*) FILTER (WHERE NOT (temporary AND starts_with(slot_name::text, %s))),"
        " current_setting('max_replication_slots')::int,"
        " array_agg(slot_name::text ORDER BY slot_name) FILTER (WHERE NOT active AND slot_name <> %s)"
        " FROM pg_replication_slots",
        (SLOT_PREFIX, slot.name if slot else ""),
    ).fetchall()[0]
    drop = "".join(f"; or SELECT pg_drop_replication_slot({literal(name)})" for name in (idle or [])[:1])
    fix = f"ALTER SYSTEM SET max_replication_slots = {most + _ROOM}; then restart the server{drop}"
    yield from _too_few(taken, most, slot is not None, f"all {most} replication slots are taken", "slot", fix)


def _senders(connection: Connection, slot: SlotState | None) -> Iterator[Finding]:
    busy, most = connection.execute(
        "SELECT count(*) FILTER (WHERE r.pid NOT IN (SELECT active_pid FROM pg_replication_slots WHERE temporary"
        " AND active AND starts_with(slot_name::text, %s))), current_setting('max_wal_senders')::int"
        " FROM pg_stat_replication r",
        (SLOT_PREFIX,),
    ).fetchall()[0]
    fix = f"ALTER SYSTEM SET max_wal_senders = {most + _ROOM}; then restart the server"
    reads = slot is not None and slot.active_pid is not None
    yield from _too_few(busy, most, reads, f"all {most} WAL senders are busy", "WAL sender", fix)


def _too_few(taken: int, most: int, ours_is_there: bool, all_taken: str, what: str, fix: str) -> Iterator[Finding]:
    if not ours_is_there and taken >= most:
        yield Finding("error", all_taken, fix)
    elif taken + (not ours_is_there) >= most:
        level: Level = "warning" if ours_is_there else "error"
        left = f"no {what} is left for copies ({most} in all): while a table is copied, its snapshot needs one more"
        yield Finding(level, left, fix)


def check_readable(
    connection: Connection, schemas: Sequence[TableSchema], publication: Publication | None, slot: SlotState | None
) -> Iterator[Finding]:
    """Tables that the role cannot copy. A warning where all are copied already: a resync would fail."""
    role = quoted(connection.info.user)
    for schema in schemas:
        table = schema.table
        rows = connection.execute(_RIGHTS, {"root": schema.relation_id}).fetchall()
        new = slot is None or publication is None or not publication.covers(table)
        level: Level = "error" if new else "warning"
        closed = sorted({namespace for namespace, _, usable, _, _ in rows if not usable})
        unread = [TableId(namespace, name) for namespace, name, _, readable, _ in rows if not readable]
        if closed or unread:
            grants = [f"GRANT USAGE ON SCHEMA {quoted(namespace)} TO {role}" for namespace in closed]
            names = ", ".join(map(quoted_table, unread))
            grants += [f"GRANT SELECT ON {names} TO {role}"] if unread else []
            where = _where(table, unread) if unread else f"schema {', '.join(closed)} of table {table}"
            yield Finding(
                level,
                f"role {connection.info.user} may not read {where}, so it cannot copy it",
                "; ".join(grants),
                table,
            )
        if any(filtered for _, _, _, _, filtered in rows):
            yield Finding(
                level,
                f"table {table} has row-level security, which would hide rows from its copy",
                f"ALTER ROLE {role} BYPASSRLS",
                table,
            )


def _where(table: TableId, unread: Sequence[TableId]) -> str:
    leaves = [str(leaf) for leaf in unread if leaf != table]
    if not leaves:
        return f"table {table}"
    more = f" and {len(leaves) - _SHOWN} more" if len(leaves) > _SHOWN else ""
    return f"partitions {', '.join(leaves[:_SHOWN])}{more} of table {table}"


# The relations that hold the table's rows: itself, or its leaves, which alone are read.
_RIGHTS = f"""
    SELECT n.nspname::text, c.relname::text, has_schema_privilege(n.oid, 'USAGE'),
           has_table_privilege(c.oid, 'SELECT'), row_security_active(c.oid)
    FROM {leaves_of("%(root)s")} r
    JOIN pg_class c ON c.oid = r.oid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind = 'r'
    ORDER BY 1, 2
"""
