"""Count what Postgres does not send: updates and deletes of tables that are published for inserts only, and partitions.

A partition is a link to its parent, a row of pg_inherits, and the server counts the rows of that table like those of
any other. One that was made and removed between two looks at the catalogue shows in the counters alone.

The server counts the rows that were updated and deleted in each table (pg_stat_user_tables). A counter that moved says
that there was such a change; one that did not move says that there was none, with these exceptions:

- A session reports its counts after its transaction, at most once a second, and while the server is busy up to a
  minute later. So a change may be noticed that much later, and one from just before a copy may be taken for one that
  came after it.
- Changes that were rolled back are counted too.
- Counters are per server. On a replica they say nothing about its primary, and with `track_counts` off there are none:
  `are_kept` tells. A superuser may switch them off for one session, which cannot be noticed.
- They can be reset, by hand (the database's time of reset says so) and by a crash (the archiver's does), and another
  server has others. The epoch is made of both times; when it is another, what happened before is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.model.write_counters import LinkCounts, WriteCounters
from penstock.source.postgres.connect import Connection, source_errors

_COUNTERS = """
    WITH RECURSIVE tree AS (
        SELECT c.oid AS root, c.oid FROM pg_class c WHERE c.oid = ANY (%s::oid[])
        UNION ALL
        SELECT t.root, i.inhrelid FROM tree t
        JOIN pg_inherits i ON i.inhparent = t.oid
        JOIN pg_class child ON child.oid = i.inhrelid AND child.relispartition
    )
    SELECT t.root::bigint, c.oid::bigint,
           coalesce(pg_stat_get_tuples_updated(c.oid), 0) + coalesce(pg_stat_get_tuples_deleted(c.oid), 0)
    FROM tree t JOIN pg_class c ON c.oid = t.oid WHERE c.relkind = 'r'
"""
_EPOCH = """
    SELECT coalesce((SELECT stats_reset FROM pg_stat_archiver)::text, '') || ' '
        || coalesce((SELECT stats_reset FROM pg_stat_database WHERE datname = current_database())::text, '')
"""
_LINKS = """
    SELECT coalesce(pg_stat_get_tuples_inserted(c.oid), 0), coalesce(pg_stat_get_tuples_deleted(c.oid), 0)
    FROM pg_class c WHERE c.oid = 'pg_catalog.pg_inherits'::regclass
"""


def are_kept(connection: Connection) -> bool:
    """Return whether this server counts the changes of its tables."""
    with source_errors("asking whether the server counts changes"):
        rows = connection.execute("SELECT current_setting('track_counts')::bool AND NOT pg_is_in_recovery()").fetchall()
    return bool(rows[0][0])


def read_counters(connection: Connection, relation_ids: Sequence[int]) -> dict[int, WriteCounters]:
    """Return the counters of each table, partitions included."""
    epoch, links = read_link_counts(connection)
    with source_errors("reading how many rows were updated and deleted"):
        rows = connection.execute(_COUNTERS, (list(relation_ids),)).fetchall()
    written: dict[int, dict[int, int]] = {relation: {} for relation in relation_ids}
    for root, relation, count in rows:
        written[root][relation] = count
    return {root: WriteCounters(epoch, counts, links) for root, counts in written.items()}


def read_link_counts(connection: Connection) -> tuple[str, LinkCounts | None]:
    """Return the epoch, and how many links to partitions were made and removed in it; None where nobody counts."""
    with source_errors("reading how many partitions came and went"):
        epoch = str(connection.execute(_EPOCH).fetchall()[0][0])
        made, removed = connection.execute(_LINKS).fetchall()[0]
    return epoch, LinkCounts(made, removed) if are_kept(connection) else None
