"""Read the source's publications: what is published, by whom, and whether the slot can see it.

A pipeline has two publications. The one that the pipeline file names publishes every operation. Tables without a
replica identity are in a second one, `inserts_publication(name)`, which publishes insert and truncate only: Postgres
refuses UPDATE and DELETE on a table without an identity as soon as it is published with updates, and nothing that
penstock does may break the application. Capture names both at START_REPLICATION, and pgoutput unites them.

This module only reads. publishing.py says what has to change and changes it. A publication that penstock manages
carries a comment with its pipeline's name; any other is used and never altered.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.model.table import TableId, TableSchema
from penstock.source.postgres.connect import Connection, source_errors

OPERATIONS = ("insert", "update", "delete", "truncate")
INSERTS_ONLY = ("insert", "truncate")
LONGEST_NAME = 63
# From here on a publication that is missing at a place in the WAL is skipped; before, the slot cannot be read there.
SKIPS_MISSING = 180000
_SUFFIX = "_inserts"

_NO_IDENTITY = """
    c.relreplident <> 'f' AND NOT EXISTS (
        SELECT 1 FROM pg_index x WHERE x.indrelid = c.oid AND x.indisvalid AND CASE c.relreplident
            WHEN 'i' THEN x.indisreplident WHEN 'd' THEN x.indisprimary AND x.indimmediate ELSE false END)
"""
# pg_partition_tree would wait for locks on the partitions; pg_inherits does not.
_TREES = f"""
    WITH RECURSIVE tree AS (
        SELECT c.oid AS root, c.oid FROM pg_class c WHERE c.oid = ANY (%s::oid[])
        UNION ALL
        SELECT t.root, i.inhrelid FROM tree t
        JOIN pg_inherits i ON i.inhparent = t.oid AND NOT i.inhdetachpending
        JOIN pg_class child ON child.oid = i.inhrelid AND child.relispartition
    )
    SELECT t.root::bigint, bool_or(c.relkind = 'p'),
           bool_or((c.oid = t.root OR c.relkind = 'r') AND {_NO_IDENTITY}),
           coalesce(json_agg(json_build_array(n.nspname, c.relname) ORDER BY n.nspname, c.relname)
                    FILTER (WHERE c.relkind = 'r' AND c.relpersistence = 'u'), '[]')
    FROM tree t JOIN pg_class c ON c.oid = t.oid JOIN pg_namespace n ON n.oid = c.relnamespace GROUP BY t.root
"""
_ANCESTORS = """
    WITH RECURSIVE up AS (
        SELECT c.oid AS leaf, c.oid FROM pg_class c WHERE c.oid = ANY (%s::oid[]) AND c.relispartition
        UNION ALL
        SELECT u.leaf, i.inhparent FROM up u JOIN pg_inherits i ON i.inhrelid = u.oid
    )
    SELECT u.leaf::bigint, n.nspname::text, c.relname::text
    FROM up u JOIN pg_class c ON c.oid = u.oid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE u.oid <> u.leaf ORDER BY 1, 2, 3
"""
# Whatever refers to the publication is no older than it. Its own row is rewritten by ALTER PUBLICATION … SET. An age
# below zero is of a frozen row that is older than two billion transactions.
_VISIBLE = """
    SELECT bool_or(age(evidence.xmin) > age(s.catalog_xmin) OR age(evidence.xmin) < 0)
    FROM pg_replication_slots s, pg_publication p, LATERAL (
        SELECT p.xmin
        UNION ALL SELECT d.xmin FROM pg_description d
            WHERE d.classoid = 'pg_publication'::regclass AND d.objoid = p.oid AND NOT %(strictly)s
        UNION ALL SELECT r.xmin FROM pg_publication_rel r WHERE r.prpubid = p.oid AND NOT %(strictly)s
    ) evidence (xmin)
    WHERE s.slot_name = %(slot)s AND p.pubname = %(publication)s
    GROUP BY s.catalog_xmin
"""


@dataclass(frozen=True)
class Publication:
    """One publication as the catalogue has it. `listed` tables were added by name; whole `schemas` since 15."""

    name: str
    comment: str
    owned: bool
    all_tables: bool
    operations: frozenset[str]
    via_root: bool
    listed: frozenset[TableId]
    schemas: frozenset[str]

    def managed_by(self, pipeline: str) -> bool:
        return self.comment == managed_comment(pipeline)

    def covers(self, table: TableId) -> bool:
        return table in self.listed or self.covers_broadly(table)

    def covers_broadly(self, table: TableId) -> bool:
        """Return whether the table is published without being named, so that it cannot be taken out alone."""
        return self.all_tables or table.schema in self.schemas


@dataclass(frozen=True)
class Publications:
    """Both publications of a pipeline, as far as they exist; `name` is that of the first."""

    name: str
    main: Publication | None
    inserts: Publication | None

    @property
    def present(self) -> tuple[Publication, ...]:
        return tuple(one for one in (self.main, self.inserts) if one is not None)

    def covers(self, table: TableId) -> bool:
        return any(one.covers(table) for one in self.present)

    def sends(self, table: TableId) -> frozenset[str]:
        """Return the operations on the table that Postgres sends."""
        return frozenset().union(*(one.operations for one in self.present if one.covers(table)))


@dataclass(frozen=True)
class Member:
    """A table that the pipeline wants, with what decides how it is published.

    `lacks_identity`: the table, or one of its partitions, has nothing by which Postgres can name a row. `part_of` are
    the partitioned tables above a partition that is followed by itself. `unlogged` are partitions whose changes are
    written nowhere.
    """

    table: TableId
    lacks_identity: bool
    partitioned: bool
    part_of: tuple[TableId, ...] = ()
    unlogged: tuple[TableId, ...] = ()


def managed_comment(pipeline: str) -> str:
    return f"managed by penstock, pipeline {pipeline}"


def inserts_publication(name: str) -> str:
    """Return the name of the second publication.

    Postgres cuts names at 63 bytes, so a long one is shortened distinctly.
    """
    if len((name + _SUFFIX).encode()) <= LONGEST_NAME:
        return name + _SUFFIX
    suffix = f"_{zlib.crc32(name.encode()):08x}{_SUFFIX}"
    return name.encode()[: LONGEST_NAME - len(suffix)].decode(errors="ignore") + suffix


def publications(name: str) -> list[str]:
    """Return the names of both publications that a pipeline reads."""
    return [name, inserts_publication(name)]


def read_publications(connection: Connection, name: str) -> Publications:
    return Publications(
        name, read_publication(connection, name), read_publication(connection, inserts_publication(name))
    )


def read_publication(connection: Connection, name: str) -> Publication | None:
    """Return the publication as it is now; None when there is none of that name."""
    with source_errors(f"reading publication {name}"):
        row = connection.execute(
            """
            SELECT oid, coalesce(obj_description(oid, 'pg_publication'), ''), pg_has_role(pubowner, 'USAGE'),
                   puballtables, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot
            FROM pg_publication WHERE pubname = %s
            """,
            (name,),
        ).fetchone()
        if row is None:
            return None
        oid, comment, owned, all_tables, *published, via_root = row
        listed = connection.execute(
            "SELECT n.nspname, c.relname FROM pg_publication_rel r JOIN pg_class c ON c.oid = r.prrelid"
            " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE r.prpubid = %s",
            (oid,),
        ).fetchall()
        schemas = []
        if connection.info.server_version >= 150000:
            schemas = connection.execute(
                "SELECT n.nspname FROM pg_publication_namespace p JOIN pg_namespace n ON n.oid = p.pnnspid"
                " WHERE p.pnpubid = %s",
                (oid,),
            ).fetchall()
    return Publication(
        name=name,
        comment=comment,
        owned=owned,
        all_tables=all_tables,
        operations=frozenset(op for op, there in zip(OPERATIONS, published, strict=True) if there),
        via_root=via_root,
        listed=frozenset(TableId(*names) for names in listed),
        schemas=frozenset(schema for (schema,) in schemas),
    )


def read_members(connection: Connection, schemas: Sequence[TableSchema]) -> list[Member]:
    """Return what decides how each table is published, in the order given."""
    relations = [schema.relation_id for schema in schemas]
    with source_errors("reading the tables' replica identities"):
        trees = {root: rest for root, *rest in connection.execute(_TREES, (relations,)).fetchall()}
        above: dict[int, list[TableId]] = {}
        for leaf, namespace, name in connection.execute(_ANCESTORS, (relations,)).fetchall():
            above.setdefault(leaf, []).append(TableId(namespace, name))
    return [
        Member(
            schema.table,
            lacks_identity,
            partitioned,
            tuple(above.get(schema.relation_id, ())),
            tuple(TableId(*name) for name in unlogged),
        )
        for schema in schemas
        for partitioned, lacks_identity, unlogged in [trees.get(schema.relation_id, (False, False, []))]
    ]


def slot_sees(connection: Connection, slot: str, publication: str, *, strictly: bool = False) -> bool:
    """Return whether the publication exists at every place in the WAL that the slot still has to read.

    Before 18 a slot that reads a change from before a publication was made fails, so such a publication must not be
    named yet. All that the slot will read is later than the transactions before its `catalog_xmin`, which moves on as
    capture does. `strictly` counts an alteration of the publication as its making: a rename is one.
    """
    with source_errors(f"reading whether slot {slot} can see publication {publication}"):
        if connection.info.server_version >= SKIPS_MISSING:
            row = connection.execute("SELECT true FROM pg_publication WHERE pubname = %s", (publication,)).fetchone()
        else:
            values = {"slot": slot, "publication": publication, "strictly": strictly}
            row = connection.execute(_VISIBLE, values).fetchone()
    return row is not None and bool(row[0])
