"""Pins (`pin.py`) in SQL: what `sql.py` does with the table PINS, each call within a transaction of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, delete, insert, update

from penstock.model.table import TableId
from penstock.state.pin import Pin
from penstock.state.sql_statements import of_destination, table_key
from penstock.state.sql_tables import PINS


def add(connection: Connection, destination: str, tables: Sequence[TableId]) -> list[int]:
    now = datetime.now(UTC)
    empty = {"repair": "", "snapshot": "", "columns": "{}", "reason": "", "solution": ""}
    numbers = []
    for table in tables:
        asked = {**table_key(destination, table), "state": "asked", "renewed": now, **empty}
        numbers.append(connection.execute(insert(PINS).returning(PINS.c.id), asked).scalar_one())
    return numbers


def read(connection: Connection, destination: str | None) -> list[Pin]:
    return [
        Pin(
            row.id,
            row.destination,
            TableId(row.table_schema, row.table_name),
            row.state,
            row.renewed,
            row.position,
            row.repair,
            row.snapshot,
            {int(number): name for number, name in json.loads(row.columns).items()},
            row.reason,
            row.solution,
        )
        for row in connection.execute(of_destination(PINS, destination).order_by(PINS.c.id))
    ]


def move(connection: Connection, number: int, origins: Sequence[str], values: dict[str, Any]) -> bool:
    """Changes a pin if it is in one of the states; says whether it was."""
    changed = connection.execute(update(PINS).where(PINS.c.id == number, PINS.c.state.in_(origins)).values(**values))
    return bool(changed.rowcount)


def renew(connection: Connection, numbers: Sequence[int]) -> None:
    connection.execute(update(PINS).where(PINS.c.id.in_(numbers)).values(renewed=datetime.now(UTC)))


def drop(connection: Connection, numbers: Sequence[int]) -> None:
    connection.execute(delete(PINS).where(PINS.c.id.in_(numbers)))
