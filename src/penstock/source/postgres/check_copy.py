"""Findings about what a copy needs: a slot and a WAL sender for each snapshot, and the right to read. Part of check.py.

A snapshot is made by a temporary slot on a replication connection of its own (snapshot.py), beside those by which
changes are captured. Ranges are read by the names of the relations that hold the rows (copy_read.py), so a partitioned
table needs the right on each of its leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.model.table import TableId, TableSchema
from penstock.source.finding import Finding, Level
from penstock.source.postgres.connect import Connection
from penstock.source.postgres.partition_tree import leaves_of
from penstock.source.postgres.publication import Publications
from penstock.source.postgres.publishing import shortened
from penstock.source.postgres.slot import SlotState
from penstock.source.postgres.snapshot import SLOT_PREFIX
from penstock.source.postgres.statements import literal, quoted, quoted_list, quoted_table

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
    connection: Connection, schemas: Sequence[TableSchema], found: Publications, slot: SlotState | None
) -> Iterator[Finding]:
    """Yield tables that the role cannot read, with one GRANT for all of them: copies and `verify` need it.

    A warning where all of them are copied already: a resync would fail.
    """
    role = quoted(connection.info.user)
    closed: set[str] = set()
    unread: list[TableId] = []
    concerned: list[TableId] = []
    is_new = False
    for schema in schemas:
        table = schema.table
        rows = connection.execute(_RIGHTS, {"root": schema.relation_id}).fetchall()
        new = slot is None or not found.covers(table)
        shut = {namespace for namespace, _, usable, _, _ in rows if not usable}
        lacking = [TableId(namespace, name) for namespace, name, _, readable, _ in rows if not readable]
        if shut or lacking:
            closed |= shut
            unread += lacking
            concerned.append(table)
            is_new |= new
        if any(filtered for _, _, _, _, filtered in rows):
            yield Finding(
                "error" if new else "warning",
                f"table {table} has row-level security, which would hide rows from its copy",
                f"ALTER ROLE {role} BYPASSRLS",
                table,
            )
    if concerned:
        grants = [f"GRANT USAGE ON SCHEMA {quoted_list(sorted(closed))} TO {role}"] if closed else []
        grants += [f"GRANT SELECT ON {', '.join(map(quoted_table, unread))} TO {role}"] if unread else []
        yield Finding(
            "error" if is_new else "warning",
            f"role {connection.info.user} may not read {_where(concerned, unread)}, "
            "so it can neither copy nor verify it",
            "; ".join(grants),
            concerned[0],
        )


def _where(tables: Sequence[TableId], unread: Sequence[TableId]) -> str:
    """Return the tables, with the partitions that are not tables of their own."""
    partitions = [str(leaf) for leaf in unread if leaf not in tables]
    of = f" (partitions {shortened(partitions, _SHOWN)})" if partitions else ""
    return f"table {shortened([str(table) for table in tables], _SHOWN)}{of}"


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
