"""Names as SQL text, for statements that penstock runs (publication.py) and that it asks people to run (check.py)."""

from __future__ import annotations

from collections.abc import Iterable

from psycopg import sql

from penstock.model.table import TableId


def quoted(*parts: str) -> str:
    """`"schema"."name"`."""
    return sql.Identifier(*parts).as_string(None)


def quoted_table(table: TableId) -> str:
    return quoted(table.schema, table.name)


def quoted_list(names: Iterable[str]) -> str:
    return ", ".join(quoted(name) for name in names)


def literal(text: str) -> str:
    return sql.Literal(text).as_string(None)
