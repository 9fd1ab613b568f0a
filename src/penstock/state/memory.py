"""The state store's twin in memory: the contract of `store.py` without a database, for tests."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from typing import Any

from penstock.model.anomaly import AnomalyCount, merged_anomalies
from penstock.model.partitions import Partitions
from penstock.model.position import Position
from penstock.model.quarantine import Quarantined, RawMessage
from penstock.model.rescue import RescueCount, merged
from penstock.model.schema_version import SchemaVersion, obsolete
from penstock.model.table import TableId, TableSchema
from penstock.model.table_marks import TableMarks
from penstock.model.table_state import TableProgress, TableStatus
from penstock.model.upkeep import Upkeep
from penstock.model.write_counters import WriteCounters
from penstock.state.pin import Pin, PinState
from penstock.state.store import (
    EVENTS_KEPT,
    SCHEMAS_KEPT,
    CopyProgress,
    CopyRecord,
    Event,
    Health,
    RangeRecord,
    Request,
    RequestKind,
    require_legal,
)


class MemoryStateStore:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._status: defaultdict[str, dict[TableId, TableStatus]] = defaultdict(dict)
        self._progress: defaultdict[str, dict[TableId, TableProgress]] = defaultdict(dict)
        self._processed: dict[str, Position] = {}
        self._events: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self._health: dict[str, Health] = {}
        self._copies: dict[tuple[str, TableId], CopyRecord] = {}
        self._ended: dict[tuple[str, TableId], CopyProgress] = {}
        self._notes: dict[tuple[str, TableId], str] = {}
        self._rescued: dict[tuple[str, TableId], tuple[RescueCount, ...]] = {}
        self._upkeep: dict[tuple[str, TableId], Upkeep] = {}
        self._anomalies: dict[tuple[str, TableId], tuple[AnomalyCount, ...]] = {}
        self._requests: dict[int, Request] = {}
        self._request_ids = count(1)
        self._partitions: defaultdict[str, dict[TableId, Partitions]] = defaultdict(dict)
        self._marks: defaultdict[str, dict[TableId, TableMarks]] = defaultdict(dict)
        self._write_counters: defaultdict[str, dict[TableId, WriteCounters]] = defaultdict(dict)
        self._schemas: list[SchemaVersion] = []
        self._schema_sequence = count(1)
        self._schemas_seen: dict[str, Position] = {}
        self._quarantine: dict[int, Quarantined] = {}
        self._quarantine_ids = count(1)
        self._pins: dict[int, Pin] = {}
        self._pin_ids = count(1)
        self._rules: defaultdict[str, dict[TableId, str]] = defaultdict(dict)

    def table_status(self, destination: str) -> dict[TableId, TableStatus]:
        with self._lock:
            return dict(sorted(self._status[destination].items()))

    def set_table_status(self, destination: str, table: TableId, status: TableStatus) -> None:
        with self._lock:
            present = self._status[destination].get(table)
            require_legal(table, present.state if present else None, status.state)
            self._status[destination][table] = status

    def record_progress(self, destination: str, progress: Mapping[TableId, TableProgress]) -> None:
        with self._lock:
            self._progress[destination].update(progress)

    def progress(self, destination: str) -> dict[TableId, TableProgress]:
        with self._lock:
            return dict(sorted(self._progress[destination].items()))

    def set_processed(self, destination: str, position: Position) -> None:
        with self._lock:
            self._processed[destination] = position

    def processed(self, destination: str) -> Position | None:
        with self._lock:
            return self._processed.get(destination)

    def add_event(
        self, kind: str, message: str, table: TableId | None = None, *, destination: str | None = None
    ) -> None:
        with self._lock:
            self._events.append(Event(datetime.now(UTC), kind, message, table, destination))

    def events(self, limit: int = 20) -> list[Event]:
        with self._lock:
            return list(self._events)[-limit:]

    def set_health(self, component: str, health: Health) -> None:
        with self._lock:
            self._health[component] = health

    def health(self) -> dict[str, Health]:
        with self._lock:
            return dict(sorted(self._health.items()))

    def begin_copy(
        self, destination: str, table: TableId, copy: str, fingerprint: str, ranges: Sequence[tuple[str, int]]
    ) -> None:
        key = destination, table
        with self._lock:
            earlier = self._copies.get(key)
            self._ended.pop(key, None)
            self._notes.pop(key, None)
            self._rescued.pop(key, None)
            self._anomalies.pop(key, None)
            self._copies[key] = CopyRecord(
                copy,
                datetime.now(UTC),
                fingerprint,
                tuple(RangeRecord(n, content, None, None, 0, size) for n, (content, size) in enumerate(ranges)),
                earlier.attempts + 1 if earlier else 1,
                "",
            )

    def finish_range(
        self, destination: str, table: TableId, copy: str, number: int, position: Position, part: str, rows: int
    ) -> bool:
        key = destination, table
        with self._lock:
            record = self._copies.get(key)
            if record is None or record.copy != copy or number >= len(record.ranges):
                return False
            finished = replace(record.ranges[number], position=position, part=part, rows=rows)
            ranges = (*record.ranges[:number], finished, *record.ranges[number + 1 :])
            self._copies[key] = replace(record, ranges=ranges)
            return True

    def note_copy(self, destination: str, table: TableId, note: str) -> None:
        with self._lock:
            self._notes.pop((destination, table), None)
            if note:
                self._notes[destination, table] = note

    def copy_of(self, destination: str, table: TableId) -> CopyRecord | None:
        key = destination, table
        with self._lock:
            record = self._copies.get(key)
            return replace(record, note=self._notes.get(key, "")) if record else None

    def copy_progress(self, destination: str) -> dict[TableId, CopyProgress]:
        with self._lock:
            found = {key: CopyProgress() for key in self._notes}
            found |= self._ended
            found |= {key: _figures(record) for key, record in self._copies.items()}
            return {
                table: replace(figures, note=self._notes.get((name, table), ""))
                for (name, table), figures in sorted(found.items())
                if name == destination
            }

    def end_copy(self, destination: str, table: TableId) -> None:
        key = destination, table
        with self._lock:
            self._notes.pop(key, None)
            record = self._copies.pop(key, None)
            if record is not None and all(one.finished for one in record.ranges):
                self._ended[key] = replace(_figures(record), ended=datetime.now(UTC))

    def add_rescued(self, destination: str, table: TableId, counts: Sequence[RescueCount]) -> None:
        key = destination, table
        with self._lock:
            if counts:
                self._rescued[key] = merged([*self._rescued.get(key, ()), *counts])

    def add_anomalies(self, destination: str, table: TableId, counts: Sequence[AnomalyCount]) -> None:
        key = destination, table
        with self._lock:
            if counts:
                self._anomalies[key] = merged_anomalies([*self._anomalies.get(key, ()), *counts])

    def anomalies(self, destination: str) -> dict[TableId, tuple[AnomalyCount, ...]]:
        with self._lock:
            return {table: found for (name, table), found in sorted(self._anomalies.items()) if name == destination}

    def rescued(self, destination: str) -> dict[TableId, tuple[RescueCount, ...]]:
        with self._lock:
            return {
                table: tuple(sorted(counts, key=lambda count: count.column))
                for (name, table), counts in sorted(self._rescued.items())
                if name == destination
            }

    def record_upkeep(self, destination: str, upkeep: Mapping[TableId, Upkeep]) -> None:
        with self._lock:
            self._upkeep.update({(destination, table): kept for table, kept in upkeep.items()})

    def upkeep(self, destination: str) -> dict[TableId, Upkeep]:
        with self._lock:
            return {table: kept for (name, table), kept in sorted(self._upkeep.items()) if name == destination}

    def add_request(self, destination: str, table: TableId, kind: RequestKind) -> int:
        with self._lock:
            number = next(self._request_ids)
            self._requests[number] = Request(number, destination, table, kind, datetime.now(UTC))
            return number

    def requests(self, destination: str | None = None) -> list[Request]:
        with self._lock:
            return [one for one in self._requests.values() if destination in (None, one.destination)]

    def drop_request(self, number: int) -> None:
        with self._lock:
            self._requests.pop(number, None)

    def set_partitions(self, destination: str, table: TableId, partitions: Partitions | None) -> None:
        with self._lock:
            self._partitions[destination].pop(table, None)
            if partitions is not None:
                self._partitions[destination][table] = partitions

    def partitions(self, destination: str) -> dict[TableId, Partitions]:
        with self._lock:
            return dict(sorted(self._partitions[destination].items()))

    def set_marks(self, destination: str, table: TableId, marks: TableMarks | None) -> None:
        with self._lock:
            self._marks[destination].pop(table, None)
            if marks is not None:
                self._marks[destination][table] = marks

    def marks(self, destination: str) -> dict[TableId, TableMarks]:
        with self._lock:
            return dict(sorted(self._marks[destination].items()))

    def set_write_counters(self, destination: str, table: TableId, counters: WriteCounters) -> None:
        with self._lock:
            self._write_counters[destination][table] = counters

    def write_counters(self, destination: str) -> dict[TableId, WriteCounters]:
        with self._lock:
            return dict(sorted(self._write_counters[destination].items()))

    def set_rule(self, destination: str, table: TableId, rule: str) -> None:
        with self._lock:
            self._rules[destination][table] = rule

    def rules(self, destination: str) -> dict[TableId, str]:
        with self._lock:
            return dict(sorted(self._rules[destination].items()))

    def forget_table(self, destination: str, table: TableId) -> None:
        with self._lock:
            for by_table in (
                self._status,
                self._progress,
                self._partitions,
                self._rules,
                self._marks,
                self._write_counters,
            ):
                by_table[destination].pop(table, None)
            key = destination, table
            for by_key in (self._copies, self._ended, self._notes, self._rescued, self._upkeep, self._anomalies):
                by_key.pop(key, None)
            self._requests = {n: one for n, one in self._requests.items() if (one.destination, one.table) != key}
            self._pins = {n: one for n, one in self._pins.items() if (one.destination, one.table) != key}
            self._quarantine = {
                number: one for number, one in self._quarantine.items() if (one.destination, one.table) != key
            }

    def record_schemas(
        self, found: Sequence[tuple[TableId, TableSchema, Position]], seen: Position | None = None, reader: str = ""
    ) -> None:
        with self._lock:
            for table, schema, position in found:
                newest = next((one for one in reversed(self._schemas) if one.table == table), None)
                if newest is not None and (newest.is_same(schema) or position < newest.position):
                    continue
                version, sequence = newest.version + 1 if newest else 1, next(self._schema_sequence)
                self._schemas.append(SchemaVersion(table, version, sequence, position, datetime.now(UTC), schema))
            if seen is not None:
                self._schemas_seen[reader] = seen

    def schemas_seen(self, reader: str = "") -> Position | None:
        with self._lock:
            return self._schemas_seen.get(reader)

    def schema_versions(self) -> list[SchemaVersion]:
        with self._lock:
            return list(self._schemas)

    def prune_schemas(self, before: Position, tables: Collection[TableId]) -> int:
        with self._lock:
            gone = obsolete([one for one in self._schemas if one.table in tables], before, SCHEMAS_KEPT)
            self._schemas = [one for one in self._schemas if one not in gone]
            return len(gone)

    def quarantine(self, destination: str, table: TableId, messages: Sequence[RawMessage]) -> None:
        with self._lock:
            there = {(one.destination, one.table, one.message.order): one for one in self._quarantine.values()}
            for message in messages:
                before = there.get((destination, table, message.order))
                number = before.id if before else next(self._quarantine_ids)
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

    def ask_pins(self, destination: str, tables: Sequence[TableId]) -> list[int]:
        with self._lock:
            asked = [Pin(next(self._pin_ids), destination, table, "asked", datetime.now(UTC)) for table in tables]
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

    def close(self) -> None:
        """Nothing to give back."""


def _figures(record: CopyRecord) -> CopyProgress:
    finished = [one for one in record.ranges if one.finished]
    return CopyProgress(
        started=record.started,
        attempts=record.attempts,
        ranges=len(record.ranges),
        ranges_finished=len(finished),
        rows=sum(one.rows for one in finished),
        bytes=sum(one.bytes for one in finished),
        bytes_total=sum(one.bytes for one in record.ranges),
    )
