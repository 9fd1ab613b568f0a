"""How a schema's columns are carried: what users choose (`types:`) and what the destination's type map cannot hold.

`chosen` is the one place where both are applied: by the driver, to every schema that comes from the catalogue or from
the log, before anybody decodes under it. `unchosen` takes them out again. Also the words of a choice, which are the
same for every source.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

from penstock.decode.dialect import Choices, Dialect, dialect_of, dialect_of_key
from penstock.model.table import ByFingerprint, ColumnType, TableSchema
from penstock.model.type_map import MOST_DIGITS, TEXT, TypeMap

CHOSEN_DIGITS = 38  # that a choice may have: every destination of tables holds them
_DECIMAL = re.compile(r"decimal\((\d{1,2}),\s*(\d{1,2})\)")


def chosen(schema: TableSchema, choices: Choices, types: TypeMap) -> TableSchema:
    """Return the schema with the choices in its types, and the rest as a destination with these types holds it."""
    return _chosen(ByFingerprint(schema), choices, types)


@lru_cache(maxsize=1024)
def unchosen(schema: TableSchema) -> TableSchema:
    """Return the schema as the source has it, without anybody's choices."""
    columns = tuple(replace(column, type=_bare(column.type)) for column in schema.columns)
    return schema if columns == schema.columns else replace(schema, columns=columns)


def fitted(schema: TableSchema, types: TypeMap) -> TableSchema:
    """Return the schema as a destination with these types holds it. Choices that it has stay."""
    dialect = dialect_of(schema)
    columns = tuple(replace(column, type=_held(dialect, column.type, types)) for column in schema.columns)
    return schema if columns == schema.columns else replace(schema, columns=columns)


def parse_choice(value: str) -> str:
    """Return a choice in its plain form; ValueError says what is allowed."""
    if value.strip().lower() == TEXT:
        return TEXT
    try:
        precision, scale = parse_decimal(value.strip().lower(), CHOSEN_DIGITS)
    except ValueError:
        if "(" in value and ")" not in value:
            raise ValueError('must be quoted between braces, for its comma: {amount: "decimal(30,10)"}') from None
        raise ValueError(
            f"must be text, or decimal(p,s) with 1 <= p <= {CHOSEN_DIGITS} and 0 <= s <= p, for example decimal(30,10)"
        ) from None
    return f"decimal({precision},{scale})"


def parse_key(key: str, choice: str) -> str:
    """Return a key of `types:` in its plain form: a column, or a type of the source that its prefix names.

    ValueError for one that can choose nothing.
    """
    dialect = dialect_of_key(key)
    return key if dialect is None else dialect.parse_type_key(key, choice)


def parse_decimal(text: str, most_digits: int = MOST_DIGITS) -> tuple[int, int]:
    """Return precision and scale of `decimal(p,s)`; ValueError says what is allowed."""
    found = _DECIMAL.fullmatch(text)
    precision, scale = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= precision <= most_digits or scale > precision:
        raise ValueError(f"must be decimal(p,s) with 1 <= p <= {most_digits} and 0 <= s <= p")
    return precision, scale


@lru_cache(maxsize=4096)
def _chosen(schema: ByFingerprint, choices: Choices, types: TypeMap) -> TableSchema:
    return fitted(dialect_of(schema.schema).chosen(schema.schema, choices), types)


def _held(dialect: Dialect, type: ColumnType, types: TypeMap) -> ColumnType:
    if type.carried_as == TEXT:
        return type
    element = None if type.element is None else _held(dialect, type.element, types)
    fields = tuple((name, _held(dialect, one, types)) for name, one in type.fields)
    held_as = "" if type.carried_as else dialect.held_as(type, types)
    return replace(type, element=element, fields=fields, held_as=held_as)


def _bare(type: ColumnType) -> ColumnType:
    element = None if type.element is None else _bare(type.element)
    fields = tuple((name, _bare(one)) for name, one in type.fields)
    return replace(type, element=element, fields=fields, carried_as="", held_as="")
