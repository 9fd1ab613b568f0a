"""Tables and their structure, from the catalogue.

`discover` finds the tables a pipeline wants, as they are published; `describe` says what a pgoutput Relation message
does not say of one relation, for capture.py. Tables are ordinary, permanent tables and roots of partitioned ones: not
partitions (they come under their root, unless each is to be a table of its own), views, foreign or temporary tables,
or the server's own schemas.

The catalogue is as it is now; a Relation message is as it was at its place in the WAL. Whoever joins the two takes
columns, types and key flags from the message and only the rest from here.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from psycopg.rows import TupleRow

from penstock.model.table import Column, ColumnType, TableId, TableSchema
from penstock.source.postgres.column_types import column_types
from penstock.source.postgres.connect import Connection, source_errors
from penstock.source.postgres.partition_tree import leaves_of
from penstock.source.postgres.publication import publications


@dataclass(frozen=True)
class CatalogueColumn:
    """A column as declared, its type followed through domains to its base."""

    name: str
    declared_oid: int
    declared_modifier: int
    type: ColumnType
    nullable: bool
    generated: bool
    number: int
    filled: str | None

    def column(self) -> Column:
        return Column(self.name, self.type, self.nullable, self.number, self.filled, self.generated)


@dataclass(frozen=True)
class CatalogueFacts:
    """What the catalogue knows of a relation now; of all its columns, by name and in order."""

    table: TableId
    relation_id: int
    columns: Mapping[str, CatalogueColumn]
    key: tuple[str, ...]
    identity: str
    storage: int
    stamp: int
    numbered: int

    def schema(self, names: Sequence[str]) -> TableSchema:
        """Return the structure of these columns, in this order.

        The key is empty when one of its columns is not among them.
        """
        columns = tuple(self.columns[name].column() for name in names)
        key = self.key if set(self.key) <= set(names) else ()
        return TableSchema(
            self.table,
            self.relation_id,
            columns,
            key,
            self.identity,
            self.storage,
            self.stamp,
            self.numbered,
            live=self.live(names),
        )

    def live(self, names: Collection[str]) -> tuple[int, ...]:
        """Return the columns that a publication without a column list sends, if these are among what it sends.

        Generated columns are sent all or not at all.
        """
        with_generated = any(column.generated and column.name in names for column in self.columns.values())
        return tuple(column.number for column in self.columns.values() if with_generated or not column.generated)


STORAGE = f"""CASE WHEN c.relkind <> 'p' THEN c.relfilenode::bigint ELSE (
               SELECT coalesce(bit_xor((hashint8(leaf.relfilenode::bigint) & 2147483647)::bigint), 0) + 1
               FROM pg_class leaf WHERE leaf.oid IN {leaves_of("c.oid")}
           ) END"""  # of a partitioned table all its leaves together
_RELATIONS = f"""
    SELECT c.oid, n.nspname, c.relname, c.relreplident::text,
           (SELECT array_agg(a.attname::text ORDER BY k.place)
            FROM unnest(i.indkey[0:i.indnkeyatts - 1]) WITH ORDINALITY AS k (attnum, place)
            JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum),
           {STORAGE},
           (SELECT array_agg(a.attnum || ':' || a.xmin ORDER BY a.attnum)
            FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0)
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN LATERAL (
        SELECT x.indkey::int2[] AS indkey, x.indnkeyatts
        FROM pg_index x
        WHERE x.indrelid = c.oid AND x.indisvalid
          AND (CASE WHEN c.relreplident = 'i' THEN x.indisreplident ELSE x.indisprimary AND x.indimmediate END)
    ) i ON true
"""
_TABLES = _RELATIONS + (
    """
    WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
      AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname !~ '^pg_(toast|temp_)'
    ORDER BY n.nspname, c.relname
    """
)
_COLUMNS = f"""
    SELECT a.attrelid, a.attname::text, a.atttypid, a.atttypmod, NOT a.attnotnull, a.attgenerated <> '', a.attnum,
           (coalesce(a.attmissingval::text, CASE WHEN c.relkind = 'p' THEN (
               SELECT min(l.attmissingval::text) FROM pg_attribute l
               WHERE l.attrelid IN {leaves_of("a.attrelid")} AND l.attname = a.attname AND l.atthasmissing
           ) END)::text[])[1]
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
    WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attrelid, a.attnum
"""


# What the view pg_publication_tables says, which opens every table that is published.
_PUBLISHED = """
    SELECT n.nspname::text, c.relname::text,
           (SELECT array_agg(a.attname::text) FROM pg_attribute a
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
              AND CASE WHEN r.prattrs IS NOT NULL THEN a.attnum = ANY (r.prattrs::int2[])
                       ELSE a.attgenerated = '' OR a.attgenerated::text = to_jsonb(p) ->> 'pubgencols' END)
    FROM pg_publication p
    CROSS JOIN pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
    WHERE p.pubname = ANY (%s) AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
      AND n.nspname NOT IN ('pg_catalog', 'information_schema')
      AND (p.puballtables OR r.oid IS NOT NULL
           OR EXISTS (SELECT FROM pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace)
           OR c.relispartition AND EXISTS (
               SELECT FROM pg_partition_ancestors(c.oid) a (oid) JOIN pg_class k ON k.oid = a.oid
               WHERE EXISTS (SELECT FROM pg_publication_rel x WHERE x.prpubid = p.oid AND x.prrelid = k.oid)
                  OR EXISTS (SELECT FROM pg_publication_namespace s
                             WHERE s.pnpubid = p.oid AND s.pnnspid = k.relnamespace)))
"""
_LEAVES = _RELATIONS + " WHERE c.relkind = 'r' AND c.relispartition AND c.relpersistence = 'p'"
_ROOTS = "SELECT oid, pg_partition_root(oid)::oid FROM pg_class WHERE relispartition OR relkind = 'p'"


def discover(
    connection: Connection,
    wanted: Callable[[TableId], bool],
    publication: str,
    each: Callable[[TableId], bool] | None = None,
) -> list[TableSchema]:
    """Return the wanted tables with their published columns, by name.

    No such publication: as a plain one would publish. What the pipeline's second publication (publication.py) publishes
    counts as well.

    `each` says of which names partitions are tables of their own, and partitioned tables none. A partition whose root
    is a table already comes under that.
    """
    with source_errors("reading the source's tables"):
        rows = connection.execute(_TABLES).fetchall()
        rows = [row for row in rows if wanted(TableId(row[1], row[2]))]
        if each is not None:
            rows = _each_by_itself(connection, rows, wanted, each)
        columns = _columns(connection, [row[0] for row in rows])
        published = _published_columns(connection, publication)
    schemas = []
    for row in rows:
        facts = _facts(row, columns.get(row[0], {}))
        names = published.get(facts.table)
        generated = connection.info.server_version >= 180000 and names is not None
        schemas.append(
            facts.schema(
                [
                    column.name
                    for column in facts.columns.values()
                    if (names is None or column.name in names) and (generated or not column.generated)
                ]
            )
        )
    return schemas


def _each_by_itself(
    connection: Connection,
    rows: Sequence[TupleRow],
    wanted: Callable[[TableId], bool],
    each: Callable[[TableId], bool],
) -> list[TupleRow]:
    """Return the rows without partitioned tables that are taken by partition, with those partitions, by name."""
    root_of: dict[int, int] = dict(connection.execute(_ROOTS).fetchall())
    tables = [row for row in rows if row[0] not in root_of or not each(TableId(row[1], row[2]))]
    followed = {row[0] for row in tables}
    partitions = [
        row
        for row in connection.execute(_LEAVES)
        if root_of.get(row[0]) not in followed and wanted(TableId(row[1], row[2])) and each(TableId(row[1], row[2]))
    ]
    return sorted([*tables, *partitions], key=lambda row: row[1:3])


def describe(connection: Connection, relation_id: int) -> CatalogueFacts | None:
    """Return what the catalogue knows of a relation; None when it is gone."""
    with source_errors(f"reading the structure of relation {relation_id}"):
        row = connection.execute(_RELATIONS + " WHERE c.oid = %s", (relation_id,)).fetchone()
        if row is None:
            return None
        return _facts(row, _columns(connection, [relation_id]).get(relation_id, {}))


def stamp_of(written: Sequence[str]) -> int:
    """Of `number:transaction` for each column, dropped ones included; never 0."""
    return zlib.crc32(" ".join(written).encode()) or 1


def _facts(row: Sequence[object], columns: Mapping[str, CatalogueColumn]) -> CatalogueFacts:
    relation_id, schema, name, replica_identity, key, storage, written = row
    assert isinstance(relation_id, int)
    assert isinstance(storage, int)
    stamps = [str(item) for item in written] if isinstance(written, list) else []
    key_columns = tuple(key) if isinstance(key, list) else ()
    if replica_identity == "f":
        identity = "full"
    elif replica_identity == "n" or not key_columns:
        identity = "nothing"
    else:
        identity = "key"
    return CatalogueFacts(
        TableId(str(schema), str(name)),
        relation_id,
        columns,
        key_columns,
        identity,
        storage,
        stamp_of(stamps),
        len(stamps),
    )


def _columns(connection: Connection, relation_ids: Sequence[int]) -> dict[int, dict[str, CatalogueColumn]]:
    rows = connection.execute(_COLUMNS, (list(relation_ids),)).fetchall()
    types = column_types(connection, {(row[2], row[3]) for row in rows})
    columns: dict[int, dict[str, CatalogueColumn]] = {}
    for relation_id, name, declared, modifier, nullable, generated, number, filled in rows:
        columns.setdefault(relation_id, {})[name] = CatalogueColumn(
            name, declared, modifier, types[declared, modifier], nullable, generated, number, filled
        )
    return columns


def _published_columns(connection: Connection, publication: str) -> dict[TableId, set[str]]:
    """Return, of each published table, the columns that its publication sends. Column lists exist since 15."""
    if connection.info.server_version < 150000:
        return {}
    rows = connection.execute(_PUBLISHED, (publications(publication),))
    return {TableId(schema, name): set(names) for schema, name, names in rows if names is not None}
