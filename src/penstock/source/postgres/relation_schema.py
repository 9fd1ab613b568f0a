"""A table's schema from what pgoutput says of it and what the catalogue adds.

The Relation message is as the table was at that place of the WAL, so names, columns, types and key flags are its; the
catalogue (discover.py) is as it is now, and adds only what the message lacks: the primary key under FULL, where every
column is flagged, the order of the key's columns, what domains stand for, nullability, and the columns' numbers.

**When the catalogue has moved on**, numbers are not known, and the version says that it was guessed. It has, if its
columns are not those of the message, or if a transaction wrote them that is younger than the one the message came in.
Where the DDL trigger is installed (ddl_trigger.py), its messages take the catalogue's place, and nothing is guessed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock.model.table import UNSURE, Column, ColumnType, TableId, TableSchema
from penstock.source.postgres.column_types import UNKNOWN_TYPE, column_types
from penstock.source.postgres.connect import Connection, source_errors
from penstock.source.postgres.discover import CatalogueFacts, describe
from penstock.source.postgres.pgoutput import Relation, RelationColumn

_IDENTITIES = {"d": "key", "i": "key", "f": "full", "n": "nothing"}
_END_SECONDS = 1.0  # a transaction is sent before everybody can see that it has ended
_PAUSE_SECONDS = 0.005
_XIDS = 1 << 32


@dataclass(frozen=True)
class ToldColumn:
    """A column as the DDL trigger told it."""

    name: str
    type_oid: int
    modifier: int
    number: int
    filled: str | None
    generated: bool


@dataclass(frozen=True)
class ToldStructure:
    """A relation right after a command that altered it, as the DDL trigger told it."""

    relation_id: int
    columns: tuple[ToldColumn, ...]
    key: tuple[str, ...]
    storage: int
    stamp: int
    numbered: int
    plain: bool


class RelationSchemas:
    """Completes Relation messages, one stream at a time; knows what the stream has told so far."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._type_names: dict[int, str] = {}
        self._told: dict[int, ToldStructure] = {}
        self._seen: dict[int, tuple[int, TableSchema]] = {}  # relation → transaction and version of its last message

    def type_name(self, oid: int, name: str) -> None:
        """What a Type message says, for types that are gone from the catalogue."""
        self._type_names[oid] = name

    def told(self, structure: ToldStructure) -> None:
        """From here on the relation is as the trigger says."""
        before = self._told.get(structure.relation_id)
        plain = structure.plain and (before is None or before.plain)
        self._told[structure.relation_id] = replace(structure, plain=plain)

    def forget(self, relation_id: int) -> None:
        """The relation was altered, and the trigger could not say how."""
        self._told.pop(relation_id, None)

    def told_no_more(self) -> None:
        """The trigger was removed: what it told grows old from here on."""
        self._told.clear()

    def schema(self, relation: Relation, xid: int) -> TableSchema:
        """The version that begins with this message, in transaction `xid`."""
        told = self._told.get(relation.relation_id)
        facts = self._facts(relation, xid)
        schema = table_schema(self._connection, relation, facts, self._type_names)
        if told is not None and (numbered := _as_told(schema, relation, told)) is not None:
            schema = numbered
        elif facts is not None and _moved_on(relation, facts, xid):
            columns = tuple(replace(column, number=0, filled=None) for column in schema.columns)
            schema = replace(schema, columns=columns, storage=0, stamp=0, numbered=0, guessed=True)
        elif facts is not None and xid in facts.changed_by:
            schema = self._altered_within(schema, xid)
        self._seen[relation.relation_id] = xid, schema
        if told is not None:
            self._told[relation.relation_id] = replace(told, plain=True)  # what was not plain has been said
        return schema

    def _altered_within(self, schema: TableSchema, xid: int) -> TableSchema:
        """The transaction itself altered the table: before this place or behind it, in an order that nobody knows."""
        earlier = self._seen.get(schema.relation_id)
        again = earlier is not None and earlier[0] == xid and _names(earlier[1]) == _names(schema)
        return replace(schema, guessed=True, numbered=0, storage=UNSURE if again else schema.storage)

    def _facts(self, relation: Relation, xid: int) -> CatalogueFacts | None:
        """The catalogue once it shows the transaction."""
        deadline = time.monotonic() + _END_SECONDS
        while time.monotonic() < deadline and _is_running(self._connection, xid):
            time.sleep(_PAUSE_SECONDS)
        return describe(self._connection, relation.relation_id)


def table_schema(
    connection: Connection, relation: Relation, facts: CatalogueFacts | None, type_names: Mapping[int, str]
) -> TableSchema:
    key = _key(relation, facts)
    identity = _IDENTITIES[relation.identity]
    return TableSchema(
        table=TableId(relation.schema, relation.name),
        relation_id=relation.relation_id,
        columns=tuple(_column(connection, column, facts, type_names) for column in relation.columns),
        key=key,
        identity="nothing" if identity == "key" and not key else identity,
        storage=facts.storage if facts is not None else 0,
        stamp=facts.stamp if facts is not None else 0,
        numbered=facts.numbered if facts is not None else 0,
        guessed=facts is None,
    )


def _as_told(schema: TableSchema, relation: Relation, told: ToldStructure) -> TableSchema | None:
    """With the trigger's numbers; None when its columns are not those of the message."""
    by_name = {column.name: column for column in told.columns}
    if any(
        (column.name not in by_name)
        or (by_name[column.name].type_oid, by_name[column.name].modifier) != (column.type_oid, column.modifier)
        for column in relation.columns
    ):
        return None
    columns = tuple(
        replace(
            column,
            number=by_name[column.name].number,
            filled=by_name[column.name].filled,
            generated=by_name[column.name].generated,
        )
        for column in schema.columns
    )
    return replace(
        schema,
        columns=columns,
        key=told.key if schema.identity == "full" else schema.key,
        storage=told.storage,
        stamp=told.stamp,
        numbered=told.numbered,
        guessed=False,
        plain=told.plain,
    )


def _moved_on(relation: Relation, facts: CatalogueFacts, xid: int) -> bool:
    if any(0 < (writer - xid) % _XIDS < _XIDS // 2 for writer in facts.changed_by):
        return True
    published = {column.name for column in relation.columns}
    for column in relation.columns:
        known = facts.columns.get(column.name)
        if known is None or (known.declared_oid, known.declared_modifier) != (column.type_oid, column.modifier):
            return True
    in_order = [name for name in facts.columns if name in published]
    return in_order != [column.name for column in relation.columns]


def _names(schema: TableSchema) -> list[str]:
    return [column.name for column in schema.columns]


def _is_running(connection: Connection, xid: int) -> bool:
    with source_errors(f"looking whether transaction {xid} has ended"):
        row = connection.execute(
            "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'transactionid' AND granted "
            "AND transactionid = %s::text::xid)",
            (str(xid),),
        ).fetchone()
    return row is not None and bool(row[0])


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
        return known.column()
    found = column_types(connection, [declared])[declared]
    if found.name == UNKNOWN_TYPE:
        found = ColumnType(found.oid, type_names.get(column.type_oid, UNKNOWN_TYPE), found.modifier)
    return Column(column.name, found)
