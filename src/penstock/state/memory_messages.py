"""The schema registry, quarantine and pins in the state store in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from penstock.model.position import Position
from penstock.model.quarantine import Quarantined, RawMessage
from penstock.model.schema_version import SchemaVersion, obsolete
from penstock.model.table import TableId, TableSchema
from penstock.state.memory_part import Key, MemoryPart
from penstock.state.pin import Pin, PinState
from penstock.state.store import SCHEMAS_KEPT


class MemorySchemaVersions(MemoryPart):
    def __init__(self, ids: Iterator[int] | None = None) -> None:
        super().__init__(ids)
        self._schemas: list[SchemaVersion] = []
        self._schemas_seen: Position | None = None

    def record_schemas(
        self, found: Sequence[tuple[TableId, TableSchema, Position]], seen: Position | None = None
    ) -> None:
        with self._lock:
            for table, schema, position in found:
                newest = next((one for one in reversed(self._schemas) if one.table == table), None)
                if newest is not None and (newest.is_same(schema) or position < newest.position):
                    continue
                version, sequence = newest.version + 1 if newest else 1, next(self._ids)
                self._schemas.append(SchemaVersion(table, version, sequence, position, datetime.now(UTC), schema))
            if seen is not None:
                self._schemas_seen = seen

    def schemas_seen(self) -> Position | None:
        with self._lock:
            return self._schemas_seen

    def schema_versions(self) -> list[SchemaVersion]:
        with self._lock:
            return list(self._schemas)

    def prune_schemas(self, before: Position, tables: Collection[TableId]) -> int:
        with self._lock:
            gone = obsolete([one for one in self._schemas if one.table in tables], before, SCHEMAS_KEPT)
            self._schemas = [one for one in self._schemas if one not in gone]
            return len(gone)


class MemoryQuarantine(MemoryPart):
    def __init__(self, ids: Iterator[int] | None = None) -> None:
        super().__init__(ids)
        self._quarantine: dict[int, Quarantined] = {}

    def quarantine(self, destination: str, table: TableId, messages: Sequence[RawMessage]) -> None:
        with self._lock:
            there = {(one.destination, one.table, one.message.order): one for one in self._quarantine.values()}
            for message in messages:
                before = there.get((destination, table, message.order))
                number = before.id if before else next(self._ids)
                at = before.at if before else datetime.now(UTC)
                kept = replace(before.message, reason=message.reason) if before else message
                self._quarantine[number] = Quarantined(number, destination, table, at, kept)

    def quarantined(self, destination: str) -> list[Quarantined]:
        with self._lock:
            kept = [one for one in self._quarantine.values() if one.destination == destination]
        return sorted(kept, key=lambda one: (one.table, one.message.commit_position, one.message.ordinal))

    def quarantined_counts(self, destination: str) -> dict[TableId, int]:
        return dict(Counter(one.table for one in self.quarantined(destination)))

    def release(self, numbers: Collection[int]) -> None:
        with self._lock:
            for number in numbers:
                self._quarantine.pop(number, None)

    def release_before(self, destination: str, table: TableId, position: Position) -> int:
        kept = [one for one in self.quarantined(destination) if one.table == table]
        passed = [one.id for one in kept if one.message.commit_position < position]
        self.release(passed)
        return len(passed)

    def _forget(self, key: Key) -> None:
        super()._forget(key)
        gone = [number for number, one in self._quarantine.items() if (one.destination, one.table) == key]
        for number in gone:
            del self._quarantine[number]

    def _known(self) -> set[Key]:
        return super()._known() | {(one.destination, one.table) for one in self._quarantine.values()}


class MemoryPins(MemoryPart):
    def __init__(self, ids: Iterator[int] | None = None) -> None:
        super().__init__(ids)
        self._pins: dict[int, Pin] = {}

    def ask_pins(self, destination: str, tables: Sequence[TableId]) -> list[int]:
        with self._lock:
            asked = [Pin(next(self._ids), destination, table, "asked", datetime.now(UTC)) for table in tables]
            self._pins |= {pin.id: pin for pin in asked}
            return [pin.id for pin in asked]

    def pins(self, destination: str | None = None) -> list[Pin]:
        with self._lock:
            return [pin for pin in self._pins.values() if destination in (None, pin.destination)]

    def hold_pin(self, number: int) -> bool:
        return self._move_pin(number, ("asked",), state="held")

    def place_pin(self, number: int, position: Position, repair: str = "") -> bool:
        return self._move_pin(number, ("held",), state="placed", position=position, repair=repair)

    def answer_pin(
        self,
        number: int,
        *,
        snapshot: str | None,
        columns: Mapping[int, str] | None = None,
        reason: str = "",
        solution: str = "",
    ) -> None:
        state: PinState = "failed" if snapshot is None else "made"
        answer = {
            "snapshot": snapshot or "",
            "columns": dict(columns or {}),
            "reason": reason,
            "solution": solution,
        }
        self._move_pin(number, ("asked", "held", "placed"), state=state, **answer)

    def renew_pins(self, numbers: Sequence[int]) -> None:
        with self._lock:
            for number in self._pins.keys() & set(numbers):
                self._pins[number] = replace(self._pins[number], renewed=datetime.now(UTC))

    def drop_pins(self, numbers: Sequence[int]) -> None:
        with self._lock:
            for number in numbers:
                self._pins.pop(number, None)

    def _move_pin(self, number: int, origins: Sequence[PinState], **values: Any) -> bool:
        with self._lock:
            pin = self._pins.get(number)
            if pin is None or pin.state not in origins:
                return False
            self._pins[number] = replace(pin, **values)
            return True

    def _forget(self, key: Key) -> None:
        super()._forget(key)
        gone = [number for number, one in self._pins.items() if (one.destination, one.table) == key]
        for number in gone:
            del self._pins[number]

    def _known(self) -> set[Key]:
        return super()._known() | {(one.destination, one.table) for one in self._pins.values()}
