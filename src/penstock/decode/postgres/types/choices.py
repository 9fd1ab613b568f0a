"""Apply what a user chooses for Postgres' columns and types (`carried_as`) and what a destination lacks (`held_as`).

`decode/choices.py` calls these, and `codec` in registry.py does what the two words of a type say.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from penstock.decode.dialect import Choices
from penstock.decode.postgres.types import numeric
from penstock.decode.postgres.types.integer import INT2
from penstock.decode.postgres.types.temporal import TIME
from penstock.model.table import ColumnType, TableSchema
from penstock.model.type_map import TEXT, TypeMap

_NOT_OWN_TEXTS = frozenset({16, 20, 21, 23})  # bool and integers
OF_TYPES = "pg:"  # begins a key that names a type and not a column

_ALIASES = {
    "bigint": "int8",
    "bit varying": "varbit",
    "boolean": "bool",
    "char": "bpchar",
    "character": "bpchar",
    "character varying": "varchar",
    "decimal": "numeric",
    "double precision": "float8",
    "int": "int4",
    "integer": "int4",
    "real": "float4",
    "smallint": "int2",
    "time with time zone": "timetz",
    "time without time zone": "time",
    "timestamp with time zone": "timestamptz",
    "timestamp without time zone": "timestamp",
}


def parse_type_key(key: str, choice: str) -> str:
    """Return a key that names a type, in its plain form; ValueError for one that can choose nothing."""
    words = " ".join(key.removeprefix(OF_TYPES).lower().split())
    bare = words.removesuffix("[]").rstrip()
    name = _ALIASES.get(bare, bare)
    if not name or "(" in name:
        raise ValueError("must name a type as Postgres does, without its length: pg:numeric, pg:jsonb, pg:int4[]")
    is_array = words.endswith("[]")
    if choice != TEXT and (name != "numeric" or is_array):
        raise ValueError("may be decimal(p,s) for pg:numeric alone; any other type may be text")
    return f"{OF_TYPES}{name}{'[]' if is_array else ''}"


def chosen(schema: TableSchema, choices: Choices) -> TableSchema:
    """Return the schema with the choices in its types.

    Also, a key's column is text where a list or a struct would be: these can't be compared, and a destination finds
    rows by comparing keys.
    """
    of_columns = {key: choice for key, choice in choices if not key.startswith(OF_TYPES)}
    of_types = {key.removeprefix(OF_TYPES): choice for key, choice in choices if key.startswith(OF_TYPES)}
    columns = tuple(
        replace(
            column,
            type=_of_key(column.name in schema.key, _of_column(column.type, of_columns.get(column.name), of_types)),
        )
        for column in schema.columns
    )
    return schema if columns == schema.columns else replace(schema, columns=columns)


def held_as(type: ColumnType, types: TypeMap) -> str:
    """Return what becomes of a plain type at a destination with these types."""
    if types.own_texts:
        return "" if type.kind == "base" and type.oid in _NOT_OWN_TEXTS else TEXT
    if type.oid == INT2:
        return "" if types.int16 else "int32"
    if type.oid == TIME:
        return "" if types.time else TEXT
    return numeric.held_as(type, types) if type.oid == numeric.NUMERIC else ""


def _of_column(type: ColumnType, choice: str | None, of_types: dict[str, str]) -> ColumnType:
    if choice is None:
        return _of_type(type, of_types)
    if choice != TEXT and type.kind == "array" and type.element is not None:
        return replace(type, element=_of_column(type.element, choice, of_types))
    return replace(type, carried_as=choice)


def _of_type(type: ColumnType, of_types: dict[str, str]) -> ColumnType:
    """With what was chosen for the type and, if nothing was, for what it is made of."""
    if not of_types:
        return type
    choice = of_types.get(_name(type))
    if choice == TEXT or (choice is not None and numeric.is_unbounded(type)):
        return replace(type, carried_as=choice)
    element = None if type.element is None else _of_type(type.element, of_types)
    return replace(type, element=element, fields=_of_fields(type.fields, of_types))


def _of_fields(
    fields: Iterable[tuple[str, ColumnType]], of_types: dict[str, str]
) -> tuple[tuple[str, ColumnType], ...]:
    return tuple((name, _of_type(type, of_types)) for name, type in fields)


def _name(type: ColumnType) -> str:
    return f"{type.element.name}[]" if type.element is not None else type.name


def _of_key(in_key: bool, type: ColumnType) -> ColumnType:
    is_nested = type.kind in ("array", "composite") or (type.kind == "base" and type.name == "hstore")
    return replace(type, carried_as=TEXT) if in_key and is_nested else type
