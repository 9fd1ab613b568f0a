"""Pieces of SQL that the parts of the SQL state store share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, FromClause, Table, and_, insert, select, update

from penstock.model.table import TableId


def table_key(destination: str, table: TableId) -> dict[str, str]:
    return {"destination": destination, "table_schema": table.schema, "table_name": table.name}


def same_table(left: FromClause, right: FromClause) -> Any:
    return and_(*(left.c[name] == right.c[name] for name in ("destination", "table_schema", "table_name")))


def of_destination(table: Table, destination: str | None) -> Any:
    """The rows of a destination; None: of all."""
    return select(table) if destination is None else select(table).filter_by(destination=destination)


def put(connection: Connection, table: Table, key: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Insert or replace, in one transaction with one writer, so that no dialect's own upsert is needed."""
    changed = connection.execute(update(table).filter_by(**key).values(**values))
    if changed.rowcount == 0:
        connection.execute(insert(table).values(**key, **values))
