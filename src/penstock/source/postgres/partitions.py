"""The partitions of a table from the catalogue, and what can be known of their rows without reading them all.

`read_partitions` is one look (model/partitions.py). It tells a partition that was created in place from one that was
attached by the catalogue's own row versions: CREATE TABLE … PARTITION OF writes all of a table's columns in one
command, the system columns among them, while ATTACH writes every user column again, and never a system column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import psycopg

from penstock.errors import SourceLocked
from penstock.model.partitions import Links, Partition, Partitions
from penstock.model.table import TableId
from penstock.model.write_counters import LinkCounts
from penstock.source.postgres.connect import Connection, source_errors
from penstock.source.postgres.slot import flush_position
from penstock.source.postgres.statements import quoted_table
from penstock.source.postgres.write_counters import read_link_counts

_TREE = """
    WITH RECURSIVE tree AS (
        SELECT c.oid AS root, c.oid, true AS made_here, '' AS link FROM pg_class c
        WHERE c.oid = ANY (%s::oid[]) AND c.relkind = 'p'
        UNION ALL
        SELECT t.root, i.inhrelid, t.made_here AND EXISTS (
            SELECT 1 FROM pg_attribute own JOIN pg_attribute system USING (attrelid)
            WHERE own.attrelid = i.inhrelid AND own.attnum > 0 AND NOT own.attisdropped AND system.attnum = -1
              AND own.xmin = system.xmin AND own.cmin = system.cmin), t.link || '/' || i.xmin::text
        FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid AND NOT i.inhdetachpending
    )
    SELECT t.root::bigint, c.oid::bigint, n.nspname::text, c.relname::text, c.relfilenode::bigint, t.made_here,
           t.link, c.relkind::text, c.xmin::text::bigint, pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
           pg_current_snapshot()::text, (SELECT count(*) FROM pg_inherits)
    FROM tree t JOIN pg_class c ON c.oid = t.oid JOIN pg_namespace n ON n.oid = c.relnamespace
    ORDER BY 1, 3, 4
"""
_XIDS = 2**32
_NEXT_XID = "pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
_NEW_LINKS = f"""
    SELECT count(*) FROM (
        SELECT (next - (next - i.xmin::text::bigint) %% {_XIDS})::text::xid8 AS maker
        FROM pg_inherits i CROSS JOIN (SELECT {_NEXT_XID} AS next) taken
        WHERE NOT i.inhdetachpending
    ) link WHERE pg_visible_in_snapshot(maker, %s::pg_snapshot) AND NOT pg_visible_in_snapshot(maker, %s::pg_snapshot)
"""
_LOCK_WAIT = "500ms"
_LONGEST_READ = "30s"  # a run that is stopped waits no longer for it


def read_partitions(connection: Connection, relation_ids: Sequence[int]) -> dict[int, Partitions]:
    """Return, of each partitioned relation, the partitions that hold rows, at any depth, but no foreign ones."""
    position, (epoch, counts) = flush_position(connection), read_link_counts(connection)
    with source_errors("reading partitions"):
        rows = connection.execute(_TREE, (list(relation_ids),)).fetchall()
    found: dict[int, list[Partition]] = {}
    horizon, links = 0, None
    if rows and counts is not None:
        snapshot, present = rows[0][-2:]
        links = Links(epoch, counts, present, snapshot)
    for root, relation_id, schema, name, file, made_here, link, kind, written, horizon, *_ in rows:  # noqa: B007 - the same in all rows
        leaves = found.setdefault(root, [])
        if kind == "r":
            leaves.append(Partition(TableId(schema, name), relation_id, file, made_here, link, written))
    return {root: Partitions(horizon, tuple(leaves), position=position, links=links) for root, leaves in found.items()}


def links_since(connection: Connection, before: Links, now: Links) -> Links:
    """Return the links of the look `now`, with those that were counted since `before` and that no look has seen.

    Both are of one epoch. The row of a link has the transaction that made it, or that began to detach it, which counts
    as neither.
    """
    with source_errors("looking for new partitions"):
        new = connection.execute(_NEW_LINKS.encode(), (now.snapshot, before.snapshot)).fetchall()[0][0]
    gone = before.present + new - now.present
    made, removed = now.counted.made - before.counted.made, now.counted.removed - before.counted.removed
    return replace(now, unseen=LinkCounts(before.unseen.made + made - new, before.unseen.removed + removed - gone))


def has_rows(connection: Connection, partition: Partition) -> bool:
    return _exists(connection, partition, "true")


def has_rows_before(connection: Connection, partition: Partition, horizon: int) -> bool:
    """Return whether a row is older than a look with that horizon: then the partition was not truncated since.

    A rewrite keeps its rows' transactions, so this finds one at once; after a TRUNCATE there is none. Rows carry the
    lower 32 bits of their transaction only. If the look is two billion transactions old, those say nothing, and the
    answer is no; an age below zero is of a frozen row that is older than that. No is also the answer when the rows are
    too many to look at them all.
    """
    older = f"(age(xmin) > age('{horizon % _XIDS}'::xid) OR age(xmin) < 0)"
    return _exists(connection, partition, f"{_NEXT_XID} - {horizon} < {_XIDS // 2} AND {older}")


def _exists(connection: Connection, partition: Partition, condition: str) -> bool:
    query = f"SELECT EXISTS (SELECT 1 FROM ONLY {quoted_table(partition.relation)} WHERE {condition})"
    with source_errors(f"looking into partition {partition.relation}"):
        try:
            with unlocked(connection, partition.relation):
                return bool(connection.execute(query.encode()).fetchall()[0][0])
        except psycopg.errors.QueryCanceled:
            return False  # no such row was found in time


@contextmanager
def unlocked(connection: Connection, table: TableId) -> Iterator[None]:
    """Read a user's table without waiting for a lock that somebody holds on it: SourceLocked."""
    try:
        with connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_WAIT}'".encode())
            connection.execute(f"SET LOCAL statement_timeout = '{_LONGEST_READ}'".encode())
            yield
    except psycopg.errors.LockNotAvailable as error:
        raise SourceLocked(
            f"table {table} at the source: somebody holds a lock on it, so what happened to its rows cannot be seen",
            "It is looked at again; pg_blocking_pids() and pg_locks say who holds the lock",
        ) from error
