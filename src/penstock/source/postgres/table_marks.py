"""Read a table's marks from the catalogue. model/table_marks.py says what for, `mark_comparison` compares them.

The queries read catalogue tables only, and no function that opens a relation, so they take no lock on a user's table
and see exactly what the session's snapshot sees.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence

import psycopg

from penstock.model.table import TableId
from penstock.model.table_marks import TableMarks
from penstock.source.postgres.connect import Connection, source_errors
from penstock.source.postgres.mark_comparison import CatalogueMarks, Composite, EnumLabel, PublishedBy
from penstock.source.postgres.partitions import unlocked
from penstock.source.postgres.statements import literal, quoted, quoted_table

_SCHEMAS_PUBLISHED_SINCE = 150000
_BLOCKS = 1000  # 8 MiB
_TAKEN = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
_PLACES = """
    SELECT d.objid::bigint, d.refobjid || ':' || d.xmin
    FROM pg_depend d
    WHERE d.classid = 'pg_class'::regclass AND d.objid = ANY (%s::oid[]) AND d.objsubid = 0
      AND d.refclassid = 'pg_namespace'::regclass
"""
_LINE = """
    WITH RECURSIVE line AS (
        SELECT c.oid AS relation, c.oid AS member, c.relnamespace AS schema, '' AS link
        FROM pg_class c WHERE c.oid = ANY (%(relations)s::oid[])
        UNION ALL
        SELECT l.relation, p.oid, p.relnamespace, l.link || '/' || i.xmin
        FROM line l JOIN pg_inherits i ON i.inhrelid = l.member JOIN pg_class p ON p.oid = i.inhparent
        WHERE p.relkind = 'p'
    )
"""  # the table and the partitioned tables above it, which may be published in its place
_BY_TABLE = """
    SELECT l.relation::bigint, p.pubname::text, p.oid || ':' || p.xmin, 'all tables'
    FROM line l CROSS JOIN pg_publication p
    WHERE p.pubname = ANY (%(names)s) AND p.puballtables AND l.member = l.relation
    UNION ALL
    SELECT l.relation::bigint, p.pubname::text, p.oid || ':' || p.xmin, 'table ' || r.oid || ':' || r.xmin || l.link
    FROM line l JOIN pg_publication_rel r ON r.prrelid = l.member JOIN pg_publication p ON p.oid = r.prpubid
    WHERE p.pubname = ANY (%(names)s)
"""
_BY_SCHEMA = """
    UNION ALL
    SELECT l.relation::bigint, p.pubname::text, p.oid || ':' || p.xmin, 'schema ' || s.oid || ':' || s.xmin || l.link
    FROM line l JOIN pg_publication_namespace s ON s.pnnspid = l.schema JOIN pg_publication p ON p.oid = s.pnpubid
    WHERE p.pubname = ANY (%(names)s)
"""
_FILES = "SELECT oid::bigint, relfilenode::bigint FROM pg_class WHERE oid = ANY (%s::oid[]) AND relkind = 'r'"
_FIRST_OF_USERS = 16384  # types below are the server's own
_REACHED = f"""
    WITH RECURSIVE reached AS (
        SELECT a.attrelid AS relation, a.attname AS column_name, a.atttypid AS type
        FROM pg_attribute a
        WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid >= {_FIRST_OF_USERS}
        UNION
        SELECT r.relation, r.column_name, inside.type
        FROM reached r JOIN pg_type t ON t.oid = r.type CROSS JOIN LATERAL (
            SELECT t.typbasetype AS type WHERE t.typtype = 'd'
            UNION ALL SELECT t.typelem WHERE t.typelem <> 0
            UNION ALL SELECT g.rngsubtype FROM pg_range g WHERE t.oid IN (g.rngtypid, g.rngmultitypid)
            UNION ALL SELECT a.atttypid FROM pg_attribute a
                      WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
        ) inside
        WHERE inside.type >= {_FIRST_OF_USERS}
    )
"""
_LABELS = f"""
    {_REACHED}
    SELECT r.relation::bigint, e.oid::bigint, e.xmin::text::bigint, t.oid::bigint, t.typname::text, e.enumlabel::text,
           array_agg(DISTINCT r.column_name::text)
    FROM reached r JOIN pg_type t ON t.oid = r.type JOIN pg_enum e ON e.enumtypid = t.oid
    GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 4, 2
"""
_COMPOSITES = f"""
    {_REACHED}
    SELECT r.relation::bigint, t.oid::bigint, t.typname::text,
           (SELECT array_agg(a.attnum || ':' || a.xmin ORDER BY a.attnum)
            FROM pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0)
    FROM reached r JOIN pg_type t ON t.oid = r.type AND t.typtype = 'c'
    GROUP BY 1, 2, 3, t.typrelid ORDER BY 1, 2
"""


def read_marks(
    connection: Connection, publications: Sequence[str], relation_ids: Sequence[int]
) -> dict[int, TableMarks]:
    """Return the marks of each of these relations, as far as these publications concern them."""
    relations = list(relation_ids)
    by_schema = _BY_SCHEMA if connection.info.server_version >= _SCHEMAS_PUBLISHED_SINCE else ""
    membership = (_LINE + _BY_TABLE + by_schema + " ORDER BY 1, 2, 4").encode()
    with source_errors("reading what the catalogue says of the tables"):
        (taken,) = connection.execute(_TAKEN).fetchall()[0]
        places: dict[int, str] = dict(connection.execute(_PLACES, (relations,)).fetchall())
        members = connection.execute(membership, {"relations": relations, "names": list(publications)}).fetchall()
        files: dict[int, int] = dict(connection.execute(_FILES, (relations,)).fetchall())
        labels = connection.execute(_LABELS.encode(), (relations,)).fetchall()
        composites = connection.execute(_COMPOSITES.encode(), (relations,)).fetchall()
    published: dict[int, dict[tuple[str, str], list[str]]] = {}
    for relation, publication, stamp, through in members:
        published.setdefault(relation, {}).setdefault((publication, stamp), []).append(through)
    values: dict[int, list[EnumLabel]] = {}
    for relation, oid, xmin, type_oid, type_name, label, columns in labels:
        value = EnumLabel(oid, xmin, type_oid, type_name, label, tuple(columns))
        values.setdefault(relation, []).append(value)
    types: dict[int, list[Composite]] = {}
    for relation, oid, name, stamps in composites:
        types.setdefault(relation, []).append(Composite(oid, name, zlib.crc32(" ".join(stamps or ()).encode())))
    return {
        relation: CatalogueMarks(
            taken,
            places.get(relation, ""),
            tuple(PublishedBy(*of, tuple(through)) for of, through in published.get(relation, {}).items()),
            tuple(values.get(relation, ())),
            tuple(types.get(relation, ())),
            files.get(relation, 0) if _is_unnamed(published.get(relation, {}).values()) else 0,
        ).to_marks()
        for relation in relations
    }


def _is_unnamed(memberships: Collection[list[str]]) -> bool:
    """Return whether publications have the table, all of them without naming it."""
    return bool(memberships) and not any(one.startswith("table ") for through in memberships for one in through)


def was_written_again(connection: Connection, table: TableId) -> bool:
    """Tell whether ALTER TABLE has written the table's rows again, as SET UNLOGGED and SET LOGGED do.

    Between those two nothing is sent. Postgres refuses the first for a table that a publication names, but not where
    it has all tables or a schema. ALTER TABLE gives every row its own transaction, and then changes the table's entry
    in the catalogue. VACUUM FULL and CLUSTER leave rows theirs; after a TRUNCATE in the same transaction rows come
    later than the entry. The first blocks of the table suffice: what was written again fills them.
    """
    query = f"""
        SELECT EXISTS (
            SELECT 1 FROM ONLY {quoted_table(table)} AS row, pg_class c
            WHERE c.oid = row.tableoid AND row.ctid < '({_BLOCKS},0)'
              AND row.xmin = c.xmin AND row.cmin::text::bigint <= c.cmin::text::bigint
        )
    """
    with unlocked(connection, table):
        return bool(connection.execute(query.encode()).fetchall()[0][0])


def was_used_before(connection: Connection, table: TableId, label: EnumLabel, *, partitioned: bool) -> bool:
    """Tell whether a row that is older than the enum value's catalogue row holds the value.

    Then the value was renamed after the row was written. A value that was only added has no such row: Postgres lets
    nobody use it before it is committed. Values inside arrays and other types are looked for in their text, where a
    label that needs escaping cannot be found: then the answer is that it was used.
    """
    if '"' in label.label or "\\" in label.label:
        return True
    of_row = " OR ".join(f"position({literal(label.label)} in {quoted(column)}::text) > 0" for column in label.columns)
    older = f"(age(xmin) > age('{label.xmin}'::xid) OR age(xmin) < 0)"
    only = "" if partitioned else "ONLY "
    query = f"SELECT EXISTS (SELECT 1 FROM {only}{quoted_table(table)} WHERE ({of_row}) AND {older})"
    try:
        with unlocked(connection, table):
            return bool(connection.execute(query.encode()).fetchall()[0][0])
    except psycopg.errors.QueryCanceled:
        return True  # it took too long to be cheaper than a copy
