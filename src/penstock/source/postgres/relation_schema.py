"""A table's schema from what pgoutput says of it and what the catalogue adds.

The Relation message is as the table was at that place of the WAL, so names, columns, types and key flags are its. The
catalogue (discover.py) is read when the message comes, all of it at one moment, which is that place or later. It adds
what the message lacks: the primary key under FULL, where every column is flagged, the order of the key's columns, what
domains stand for, nullability, and the columns' numbers.

Whether the catalogue's numbers are those of the message is not decided here: the version records what the catalogue
had, and whoever follows the table compares it with what was known before (fold/column_identity.py). Two things are
said of a version. It is **guessed** when the catalogue has other columns than the message, or could not be read; then
it has no numbers. It is **exact** when the DDL trigger (ddl_trigger.py) reported the very same structure earlier in the
stream: then nothing happened between the trigger's word and the reading of the catalogue.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock.model.table import Column, ColumnType, TableId, TableSchema
from penstock.source.postgres.column_types import UNKNOWN_TYPE, column_types
from penstock.source.postgres.connect import Connection, source_errors
from penstock.source.postgres.discover import CatalogueFacts, describe
from penstock.source.postgres.pgoutput import Relation, RelationColumn

_IDENTITIES = {"d": "key", "i": "key", "f": "full", "n": "nothing"}
_END_SECONDS = 1.0  # a transaction is sent before everybody can see that it has ended
_PAUSE_SECONDS = 0.005
_ALTERING = """
    SELECT EXISTS (
        SELECT FROM pg_locks t JOIN pg_locks r USING (virtualtransaction)
        WHERE t.locktype = 'transactionid' AND t.granted AND t.transactionid = %s::text::xid
          AND r.locktype = 'relation' AND r.granted AND r.mode = 'AccessExclusiveLock' AND r.relation = %s
          AND r.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    )
"""


@dataclass(frozen=True)
class ToldColumn:
    """A column as the DDL trigger reported it."""

    number: int
    name: str
    type_oid: int
    modifier: int


@dataclass(frozen=True)
class ToldStructure:
    """A relation right after a command that altered it, as the DDL trigger reported it."""

    relation_id: int
    columns: tuple[ToldColumn, ...]
    storage: int
    stamp: int
    numbered: int


class RelationSchemas:
    """Complete Relation messages, one stream at a time, and remember what the stream has shown so far."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._type_names: dict[int, str] = {}
        self._told: dict[int, ToldStructure] = {}

    def type_name(self, oid: int, name: str) -> None:
        """Remember a Type message, for types that are gone from the catalogue."""
        self._type_names[oid] = name

    def told(self, structure: ToldStructure) -> None:
        """Remember what the trigger says the relation is from here on."""
        self._told[structure.relation_id] = structure

    def schema(self, relation: Relation, xid: int) -> TableSchema:
        """Return the version that begins with this message, in transaction `xid`."""
        facts = self._facts(relation, xid)
        schema = table_schema(self._connection, relation, facts, self._type_names)
        if facts is None:
            return schema
        if _moved_on(relation, facts):
            columns = tuple(replace(column, number=0, filled=None) for column in schema.columns)
            return replace(schema, columns=columns, guessed=True)
        return replace(schema, exact=self._told.get(relation.relation_id) == as_told(facts))

    def _facts(self, relation: Relation, xid: int) -> CatalogueFacts | None:
        """Return the catalogue with whatever the transaction itself altered.

        None when the table is gone, or when the transaction has not ended for others yet.
        """
        deadline = time.monotonic() + _END_SECONDS
        while self._is_altering(xid, relation.relation_id):
            if time.monotonic() >= deadline:
                return None
            time.sleep(_PAUSE_SECONDS)
        with source_errors("reading the structure of a table"), self._connection.transaction():
            self._connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            return describe(self._connection, relation.relation_id)

    def _is_altering(self, xid: int, relation_id: int) -> bool:
        """Return whether the transaction, which has been sent, still holds the lock that an ALTER TABLE takes."""
        with source_errors(f"looking whether transaction {xid} has ended"):
            row = self._connection.execute(_ALTERING, (str(xid), relation_id)).fetchone()
        return row is not None and bool(row[0])


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
        live=facts.live({column.name for column in relation.columns}) if facts is not None else (),
        guessed=facts is None,
    )


def as_told(facts: CatalogueFacts) -> ToldStructure:
    """Return the catalogue's structure in the trigger's words."""
    return ToldStructure(
        facts.relation_id,
        tuple(
            ToldColumn(column.number, column.name, column.declared_oid, column.declared_modifier)
            for column in facts.columns.values()
        ),
        facts.storage,
        facts.stamp,
        facts.numbered,
    )


def _moved_on(relation: Relation, facts: CatalogueFacts) -> bool:
    """Return whether the message's columns are not among the catalogue's, in the same order and of the same types."""
    published = {column.name for column in relation.columns}
    known = [
        (column.name, column.declared_oid, column.declared_modifier)
        for column in facts.columns.values()
        if column.name in published
    ]
    return known != [(column.name, column.type_oid, column.modifier) for column in relation.columns]


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
