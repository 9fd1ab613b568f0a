"""Take a SQL state store out as JSON values, put such values into another, and empty one.

Neighbour: `control/state_transfer.py`, which decides what of it may be put back.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Column, LargeBinary, Table, delete, func, insert, select, text

from penstock.errors import UsageError
from penstock.model.position import parse_position, stored_text
from penstock.state.sql import SqlStateStore
from penstock.state.sql_tables import FORMAT, LEASE, METADATA, STORE_FORMAT, Moment, PositionText

Rows = dict[str, list[dict[str, Any]]]  # by table
# Who runs the pipeline is no state of it
TABLES = {table.name: table for table in METADATA.sorted_tables if table not in (STORE_FORMAT, LEASE)}


def taken_out(store: SqlStateStore) -> Rows:
    """Return every row of the store, of one moment, as JSON values."""
    with store.transaction() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
        return {
            name: [
                {column.name: _out(column, row._mapping[column.name]) for column in table.columns}
                for row in connection.execute(select(table).order_by(*table.primary_key.columns))
            ]
            for name, table in TABLES.items()
        }


def put_in(store: SqlStateStore, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> int:
    """Replace everything in the store by these rows, in one step, and return how many there are."""
    made = {name: [_row(TABLES[name], row) for row in given] for name, given in rows.items()}
    with store.writing() as connection:
        for table in reversed(TABLES.values()):
            connection.execute(delete(table))
        for name, values in made.items():
            table = TABLES[name]
            if values:
                connection.execute(insert(table), values)
            number = table.autoincrement_column
            if values and number is not None and connection.dialect.name == "postgresql":
                last = connection.scalar(select(func.max(number)))
                sequence = text(f"SELECT setval(pg_get_serial_sequence('{name}', '{number.name}'), :last)")
                connection.execute(sequence, {"last": last})
    return sum(map(len, made.values()))


def require_known(format_: object, tables: object) -> None:
    """UsageError unless these are tables of a store of this format."""
    if format_ != FORMAT or not isinstance(tables, dict) or not set(tables) <= set(TABLES):
        raise UsageError(
            f"this is no state of format {FORMAT}, which this penstock reads",
            "Give what `penstock state export` of this version has written",
        )


def _row(table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    if set(row) != {column.name for column in table.columns}:
        raise UsageError(
            f"a row of {table.name} does not have the columns of this penstock", "Export it with the same version"
        )
    try:
        return {column.name: _in(column, row[column.name]) for column in table.columns}
    except (TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"a value of {table.name} cannot be read: {error}", "Export the state again") from error


def _out(column: Column[Any], value: Any) -> Any:
    if value is None:
        return None
    if isinstance(column.type, LargeBinary):
        return base64.b64encode(value).decode()
    if isinstance(column.type, PositionText):
        return stored_text(value)
    return value.isoformat() if isinstance(value, datetime) else value


def _in(column: Column[Any], value: Any) -> Any:
    if value is None:
        return None
    if isinstance(column.type, LargeBinary):
        return base64.b64decode(value, validate=True)
    if isinstance(column.type, PositionText):
        return parse_position(value)
    return datetime.fromisoformat(value) if isinstance(column.type, Moment) else value
