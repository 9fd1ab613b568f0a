"""A table's schema from what pgoutput says of it and what the catalogue adds.

The Relation message is as the table was at that place of the WAL, so names, columns, types and key flags are its; the
catalogue (discover.py) is as it is now, and adds only what the message lacks: the primary key under FULL, where every
column is flagged, the order of the key's columns, what domains stand for, and nullability.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.model.table import Column, ColumnType, TableId, TableSchema
from penstock.source.postgres.column_types import UNKNOWN_TYPE, column_types
from penstock.source.postgres.connect import Connection
from penstock.source.postgres.discover import CatalogueFacts, describe
from penstock.source.postgres.pgoutput import Relation, RelationColumn

_IDENTITIES = {"d": "key", "i": "key", "f": "full", "n": "nothing"}


def table_schema(connection: Connection, relation: Relation, type_names: Mapping[int, str]) -> TableSchema:
    """`type_names` are those that Type messages told, for types that are gone from the catalogue."""
    facts = describe(connection, relation.relation_id)
    key = _key(relation, facts)
    identity = _IDENTITIES[relation.identity]
    return TableSchema(
        table=TableId(relation.schema, relation.name),
        relation_id=relation.relation_id,
        columns=tuple(_column(connection, column, facts, type_names) for column in relation.columns),
        key=key,
        identity="nothing" if identity == "key" and not key else identity,
    )


def _key(relation: Relation, facts: CatalogueFacts | None) -> tuple[str, ...]:
    known = facts.key if facts is not None else ()
    if _IDENTITIES[relation.identity] == "key":
        flagged = tuple(column.name for column in relation.columns if column.in_key)
        return known if set(known) == set(flagged) else flagged
    return known if set(known) <= {column.name for column in relation.columns} else ()


def _column(
    connection: Connection, column: RelationColumn, facts: CatalogueFacts | None, type_names: Mapping[int, str]
) -> Column:
    known = facts.columns.get(column.name) if facts is not None else None
    declared = (column.type_oid, column.modifier)
    if known is not None and (known.declared_oid, known.declared_modifier) == declared:
        return Column(column.name, known.type, known.nullable)
    found = column_types(connection, [declared])[declared]
    if found.name == UNKNOWN_TYPE:
        found = ColumnType(found.oid, type_names.get(column.type_oid, UNKNOWN_TYPE), found.modifier)
    return Column(column.name, found)
