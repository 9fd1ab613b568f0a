"""Ranges of a table for its initial copy: which blocks of which relation a task reads (copy_read.py).

A range is a run of heap blocks, read by ctid: every row version that a snapshot sees lies in exactly one block, so the
ranges of one plan together are the table, whatever is written meanwhile. A partitioned table is read leaf by leaf, for
only leaves have blocks; children of plain inheritance are tables of their own and never part of this one. Sizes come
from the files, not from statistics, so a table that was never analysed is planned as well as any other.

A snapshot does not protect blocks from a rewrite (VACUUM FULL, CLUSTER, TRUNCATE, many an ALTER TABLE). The file that
was planned is therefore part of a range, and whoever reads it compares: RangeVoid.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from itertools import pairwise

from psycopg.rows import TupleRow

from penstock.errors import RangeVoid, SourceMisconfigured
from penstock.model.record import read_record, write_record
from penstock.model.table import TableId, TableSchema
from penstock.source.postgres.connect import Connection, source_errors

_TREE = """
    WITH RECURSIVE tree AS (
        SELECT %s::oid AS oid
        UNION ALL
        SELECT i.inhrelid
        FROM tree t
        JOIN pg_class p ON p.oid = t.oid AND p.relkind = 'p'
        JOIN pg_inherits i ON i.inhparent = t.oid AND NOT i.inhdetachpending
    )
    SELECT c.oid, n.nspname::text, c.relname::text, c.relkind::text, c.relfilenode::bigint,
           pg_relation_filenode(c.oid)::bigint, pg_relation_size(c.oid),
           coalesce(pg_relation_size(nullif(c.reltoastrelid, 0)), 0),
           c.reltuples::float8, c.relpages, current_setting('block_size')::int
    FROM tree
    JOIN pg_class c ON c.oid = tree.oid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    ORDER BY c.oid <> %s::oid, n.nspname, c.relname
"""
_KIND, _VERSION = "range of blocks", 1
_UNREADABLE = {"v": "a view", "m": "a materialised view", "f": "a foreign table"}


@dataclass(frozen=True)
class CopyRange:
    """Blocks [first_block, end_block) of `relation`: the table, or a leaf of it when it is partitioned.

    The last range of a relation has no end: what is appended after planning is in no snapshot, but nothing may fall
    between two plans' ends. `filenode` is the file that was planned. `bytes` is about what is to be read, with TOAST.
    """

    table: TableId
    relation: TableId
    relation_id: int
    filenode: int
    first_block: int
    end_block: int | None
    number: int
    bytes: int

    def to_json(self) -> str:
        return write_record(_KIND, _VERSION, asdict(self))

    @classmethod
    def from_json(cls, text: str) -> CopyRange:
        """Read a range as `to_json` wrote it, or raise UnreadableRecord."""
        record = read_record(text, _KIND, _VERSION)
        return cls(
            table=record.table("table"),
            relation=record.table("relation"),
            relation_id=record.integer("relation_id"),
            filenode=record.integer("filenode"),
            first_block=record.integer("first_block"),
            end_block=record.optional_integer("end_block"),
            number=record.integer("number"),
            bytes=record.integer("bytes"),
        )


def why_void(recorded: Collection[CopyRange], planned: Collection[CopyRange]) -> str:
    """Say why ranges that were planned earlier do not make up the table as it is planned now; "" when they do."""
    files = {(item.relation_id, item.filenode) for item in planned}
    if not {(item.relation_id, item.filenode) for item in recorded} <= files:
        return "it was rewritten or truncated"
    known = {item.relation_id for item in recorded}
    if any(item.relation_id not in known for item in planned):
        return "a partition has rows that had none"  # the plan does not cover it
    return ""


@dataclass(frozen=True)
class Leaf:
    """A relation with rows of its own, as the snapshot's catalogue has it. `density` is rows a block, None: unknown."""

    relation: TableId
    relation_id: int
    filenode: int
    blocks: int
    bytes: int
    density: float | None


def plan_ranges(connection: Connection, schema: TableSchema, *, range_bytes: int) -> list[CopyRange]:
    """Return ranges of about `range_bytes` each that together are the table as the connection's snapshot sees it.

    None for an empty table. RangeVoid when the table was rewritten or dropped since the snapshot; SourceMisconfigured
    when it is no table.
    """
    ranges: list[CopyRange] = []
    for leaf in leaves(connection, schema):
        if leaf.blocks == 0:
            continue
        count = min(leaf.blocks, max(1, -(-leaf.bytes // range_bytes)))
        bounds = [leaf.blocks * i // count for i in range(count + 1)]
        for first, end in pairwise(bounds):
            ranges.append(
                CopyRange(
                    table=schema.table,
                    relation=leaf.relation,
                    relation_id=leaf.relation_id,
                    filenode=leaf.filenode,
                    first_block=first,
                    end_block=None if end == leaf.blocks else end,
                    number=len(ranges),
                    bytes=leaf.bytes * (end - first) // leaf.blocks,
                )
            )
    return ranges


def leaves(connection: Connection, schema: TableSchema) -> list[Leaf]:
    """Return the relations that hold the table's rows. Partitions that are foreign tables are published by nobody."""
    with source_errors(f"reading the size of table {schema.table}"):
        rows = connection.execute(_TREE, (schema.relation_id, schema.relation_id)).fetchall()
    if not rows:
        raise RangeVoid(
            f"table {schema.table} is not in the snapshot: it was dropped before it, or made after it",
            "The table is looked for again, and its copy starts over by itself",
        )
    kind = rows[0][3]
    if kind in _UNREADABLE:
        raise SourceMisconfigured(
            f"{schema.table} is {_UNREADABLE[kind]}: its changes are in no log, so it cannot be followed",
            "Name the tables that it reads from instead",
        )
    return [_leaf(schema.table, row) for row in rows if row[3] == "r"]


def _leaf(table: TableId, row: TupleRow) -> Leaf:
    relation_id, namespace, name, _, planned, current, heap, toast, tuples, pages, block_size = row
    relation = TableId(namespace, name)
    if planned != current or heap is None:
        raise rewritten(table, relation)
    density = tuples / pages if tuples >= 0 and pages > 0 else None
    return Leaf(relation, relation_id, planned, heap // block_size, heap + toast, density)


def rewritten(table: TableId, relation: TableId) -> RangeVoid:
    part = "" if relation == table else f" (its partition {relation})"
    return RangeVoid(
        f"table {table}{part} was rewritten, truncated or dropped since the snapshot that it was copied from",
        "What was read of it is void; its copy starts again by itself",
    )
