"""Types as the catalogue describes them: domains followed to their base, and what a type is made of.

Used by discover.py and relation_schema.py for the columns of tables. A type that no longer exists is UNKNOWN_TYPE.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.model.table import ColumnType
from penstock.source.postgres.connect import Connection, source_errors

UNKNOWN_TYPE = "unknown"

_KINDS = {"b": "base", "c": "composite", "e": "enum", "r": "range", "m": "multirange"}
_TYPES = """
    SELECT t.oid, t.typname::text, t.typtype::text, t.typbasetype, t.typtypmod,
           coalesce(e.oid, 0), coalesce(e.typdelim::text, ','), t.typrelid
    FROM pg_type t LEFT JOIN pg_type e ON e.typarray = t.oid
    WHERE t.oid = ANY (%s::oid[])
"""
_FIELDS = """
    SELECT attrelid, attname::text, atttypid, atttypmod FROM pg_attribute
    WHERE attrelid = ANY (%s::oid[]) AND attnum > 0 AND NOT attisdropped ORDER BY attrelid, attnum
"""


@dataclass(frozen=True)
class _Entry:
    """A row of the catalogue. `base` is a domain's, `element` an array's, `relation` a composite's; 0: none."""

    oid: int
    name: str
    kind: str
    base: int
    base_modifier: int
    element: int
    delimiter: str
    relation: int


_Fields = Mapping[int, list[tuple[str, int, int]]]  # by relation: name, type, modifier


def column_types(connection: Connection, declared: Iterable[tuple[int, int]]) -> dict[tuple[int, int], ColumnType]:
    """Return for each declared (type, modifier) what it stands for."""
    wanted = set(declared)
    with source_errors("reading the types of columns"):
        entries, fields = _read(connection, {oid for oid, _ in wanted})
    return {(oid, modifier): _resolved(entries, fields, oid, modifier) for oid, modifier in wanted}


def _read(connection: Connection, oids: set[int]) -> tuple[dict[int, _Entry], dict[int, list[tuple[str, int, int]]]]:
    """Return these types and all that they are made of."""
    entries: dict[int, _Entry] = {}
    fields: dict[int, list[tuple[str, int, int]]] = {}
    missing = oids
    while missing:
        found = [_Entry(*row) for row in connection.execute(_TYPES, (list(missing),))]
        entries |= {entry.oid: entry for entry in found}
        relations = [entry.relation for entry in found if entry.relation]
        inner = {entry.base for entry in found} | {entry.element for entry in found}
        if relations:
            for relation, name, oid, modifier in connection.execute(_FIELDS, (relations,)):
                fields.setdefault(relation, []).append((name, oid, modifier))
                inner.add(oid)
        missing = inner - entries.keys() - missing - {0}
    return entries, fields


def _resolved(entries: Mapping[int, _Entry], fields: _Fields, oid: int, modifier: int) -> ColumnType:
    entry = entries.get(oid)
    if entry is None:
        return ColumnType(oid, UNKNOWN_TYPE, modifier)
    if entry.kind == "d":
        return _resolved(entries, fields, entry.base, modifier if modifier != -1 else entry.base_modifier)
    if entry.element:
        element = _resolved(entries, fields, entry.element, modifier)
        return ColumnType(oid, entry.name, modifier, "array", element, entry.delimiter)
    inside = tuple((name, _resolved(entries, fields, *type)) for name, *type in fields.get(entry.relation, ()))
    return ColumnType(oid, entry.name, modifier, _KINDS.get(entry.kind, "base"), fields=inside)
