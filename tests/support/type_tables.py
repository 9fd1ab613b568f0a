"""Tables with every type in them: alone, in arrays, in composites. See type_values.py for the values."""

from __future__ import annotations

import psycopg

from databases import Database
from penstock.source.postgres.statements import quoted
from type_values import EXTENSIONS, MOST, TYPES, all_types, list_values, values_of

SQL = dict[str, tuple[str, list[str]]]  # of a table's columns: type, values


def types_of(database: Database) -> list[str]:
    """A server may be built without XML."""
    try:
        database.execute("select '<a/>'::xml")
    except psycopg.errors.FeatureNotSupported:
        return [type for type in all_types() if type != "xml"]
    return list(all_types())


def columns_of(types: list[str], tables: str) -> SQL:
    """The tables: every type alone, in arrays, in composites."""
    made: SQL = {}
    for number, type in enumerate(types):
        plain, lists = values_of(type), list_values(type)
        rows = [f"row({one}, {some})::c{number}" for one, some in zip(plain, lists, strict=True)]
        rows[0] = f"row(null, null)::c{number}"
        made |= {
            "alone": {type: (type, plain)},
            "lists": {f"{type}[]": (f"{type}[]", lists)},
            "rows": {f"c{number}": (f"c{number}", rows)},
            "lists_of_rows": {f"c{number}[]": (f"c{number}[]", [f"array[{row}, null]" for row in rows])},
        }[tables]
    return made


def create(types: list[str], tables: dict[str, SQL]) -> list[str]:
    statements = [f"create extension {name}" for name in EXTENSIONS]
    statements += TYPES
    statements += [f'create type c{n} as (one {type}, "some more" {type}[])' for n, type in enumerate(types)]
    for table, columns in tables.items():
        described = ", ".join(f"{quoted(name)} {type}" for name, (type, _) in columns.items())
        statements.append(f"create table {table} (id int primary key, {described})")
    return statements


def insert(tables: dict[str, SQL], first: int) -> list[str]:
    """One row a value, and one of nulls."""
    statements = []
    for table, columns in tables.items():
        for number in range(MOST):
            row = ", ".join(values[number] for _, values in columns.values())
            statements.append(f"insert into {table} values ({first + number}, {row})")
        statements.append(f"insert into {table} (id) values ({first + MOST})")
    return statements
