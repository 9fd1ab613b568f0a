"""Pins (`pin.py`) in the SQL state store."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, delete, insert, update

from penstock.model.position import Position
from penstock.model.table import TableId
from penstock.state.pin import Pin
from penstock.state.sql_part import SqlPart, table_of
from penstock.state.sql_tables import PINS


class SqlPins(SqlPart):
    def ask_pins(self, destination: str, tables: Sequence[TableId]) -> list[int]:
        now, numbers = datetime.now(UTC), []
        empty = {"repair": "", "snapshot": "", "columns": "{}", "reason": "", "solution": ""}
        with self._transaction() as connection:
            for table in tables:
                asked = {**self._key(destination, table), "state": "asked", "renewed": now, **empty}
                numbers.append(connection.execute(insert(PINS).returning(PINS.c.id), asked).scalar_one())
        return numbers

    def pins(self, destination: str | None = None) -> list[Pin]:
        with self._transaction() as connection:
            rows = connection.execute(self._own(PINS, destination).order_by(PINS.c.id)).all()
        return [
            Pin(
                id=row.id,
                destination=row.destination,
                table=table_of(row),
                state=row.state,
                renewed=row.renewed,
                position=row.position,
                repair=row.repair,
                snapshot=row.snapshot,
                columns={int(number): name for number, name in json.loads(row.columns).items()},
                reason=row.reason,
                solution=row.solution,
            )
            for row in rows
        ]

    def hold_pin(self, number: int) -> bool:
        with self._transaction() as connection:
            return self._move(connection, number, ("asked",), {"state": "held"})

    def place_pin(self, number: int, position: Position, repair: str = "") -> bool:
        placed = {"state": "placed", "position": position, "repair": repair}
        with self._transaction() as connection:
            return self._move(connection, number, ("held",), placed)

    def answer_pin(
        self,
        number: int,
        *,
        snapshot: str | None,
        columns: Mapping[int, str] | None = None,
        reason: str = "",
        solution: str = "",
    ) -> None:
        state = "failed" if snapshot is None else "made"
        answer = {
            "state": state,
            "snapshot": snapshot or "",
            "columns": json.dumps(dict(columns or {})),
            "reason": reason,
            "solution": solution,
        }
        with self._transaction() as connection:
            self._move(connection, number, ("asked", "held", "placed"), answer)

    def renew_pins(self, numbers: Sequence[int]) -> None:
        own = update(PINS).where(PINS.c.source == self._source, PINS.c.id.in_(numbers))
        with self._transaction() as connection:
            connection.execute(own.values(renewed=datetime.now(UTC)))

    def drop_pins(self, numbers: Sequence[int]) -> None:
        with self._transaction() as connection:
            connection.execute(delete(PINS).where(PINS.c.source == self._source, PINS.c.id.in_(numbers)))

    def _move(self, connection: Connection, number: int, origins: Sequence[str], values: dict[str, Any]) -> bool:
        """Change a pin if it is in one of the states, and return whether it was."""
        own = update(PINS).where(PINS.c.source == self._source, PINS.c.id == number, PINS.c.state.in_(origins))
        return bool(connection.execute(own.values(**values)).rowcount)
