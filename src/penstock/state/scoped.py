"""The state store as one of several sources sees it: what it writes and reads are its own rows only.

In the store its tables are named `source:schema.table`, its components `source:component`, and what it has processed is
kept under `source:destination`. Nobody behind this view knows of it: the runtime of one source works as if it were the
only one. Whoever looks at all sources (`control/`) reads the store itself, or the views of each.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from penstock.model.anomaly import AnomalyCount
from penstock.model.partitions import Partitions
from penstock.model.position import Position
from penstock.model.quarantine import Quarantined, RawMessage
from penstock.model.rescue import RescueCount
from penstock.model.schema_version import SchemaVersion
from penstock.model.table import TableId, TableSchema
from penstock.model.table_marks import TableMarks
from penstock.model.table_state import TableProgress, TableStatus
from penstock.model.upkeep import Upkeep
from penstock.model.write_counters import WriteCounters
from penstock.state.pin import Pin
from penstock.state.store import EVENTS_KEPT, CopyProgress, CopyRecord, Event, Health, Request, RequestKind, StateStore

Value = TypeVar("Value")


def scoped(store: StateStore, source: str | None) -> StateStore:
    """The store as the source sees it; None: there is one source only, and the store is its own."""
    return store if source is None else ScopedStateStore(store, source)


def scoped_table(source: str, table: TableId) -> TableId:
    """The name that the store, and people, know a source's table by: `eu:public.orders`."""
    return TableId(f"{source}:{table.schema}", table.name)


class ScopedStateStore:
    def __init__(self, store: StateStore, source: str) -> None:
        self._store, self._source, self._prefix = store, source, f"{source}:"

    def table_status(self, destination: str) -> dict[TableId, TableStatus]:
        return self._own(self._store.table_status(destination))

    def set_table_status(self, destination: str, table: TableId, status: TableStatus) -> None:
        self._store.set_table_status(destination, self._named(table), status)

    def record_progress(self, destination: str, progress: Mapping[TableId, TableProgress]) -> None:
        self._store.record_progress(destination, {self._named(table): made for table, made in progress.items()})

    def progress(self, destination: str) -> dict[TableId, TableProgress]:
        return self._own(self._store.progress(destination))

    def set_processed(self, destination: str, position: Position) -> None:
        self._store.set_processed(self._prefix + destination, position)

    def processed(self, destination: str) -> Position | None:
        return self._store.processed(self._prefix + destination)

    def add_event(
        self, kind: str, message: str, table: TableId | None = None, *, destination: str | None = None
    ) -> None:
        """One that is about no table is about the source as a whole, and says which."""
        if table is None:
            self._store.add_event(kind, f"{self._prefix} {message}", destination=destination)
        else:
            self._store.add_event(kind, message, self._named(table), destination=destination)

    def events(self, limit: int = 20) -> list[Event]:
        own = []
        for event in self._store.events(EVENTS_KEPT):
            if event.table is not None and self._is_own(event.table):
                own.append(replace(event, table=self._bare(event.table)))
            elif event.table is None and event.message.startswith(f"{self._prefix} "):
                own.append(replace(event, message=event.message.removeprefix(f"{self._prefix} ")))
        return own[-limit:]

    def set_health(self, component: str, health: Health) -> None:
        self._store.set_health(self._prefix + component, health)

    def health(self) -> dict[str, Health]:
        return {
            component.removeprefix(self._prefix): health
            for component, health in self._store.health().items()
            if component.startswith(self._prefix)
        }

    def begin_copy(
        self, destination: str, table: TableId, copy: str, fingerprint: str, ranges: Sequence[tuple[str, int]]
    ) -> None:
        self._store.begin_copy(destination, self._named(table), copy, fingerprint, ranges)

    def finish_range(
        self, destination: str, table: TableId, copy: str, number: int, position: Position, part: str, rows: int
    ) -> bool:
        return self._store.finish_range(destination, self._named(table), copy, number, position, part, rows)

    def note_copy(self, destination: str, table: TableId, note: str) -> None:
        self._store.note_copy(destination, self._named(table), note)

    def copy_of(self, destination: str, table: TableId) -> CopyRecord | None:
        return self._store.copy_of(destination, self._named(table))

    def copy_progress(self, destination: str) -> dict[TableId, CopyProgress]:
        return self._own(self._store.copy_progress(destination))

    def end_copy(self, destination: str, table: TableId) -> None:
        self._store.end_copy(destination, self._named(table))

    def add_rescued(self, destination: str, table: TableId, counts: Sequence[RescueCount]) -> None:
        self._store.add_rescued(destination, self._named(table), counts)

    def add_anomalies(self, destination: str, table: TableId, counts: Sequence[AnomalyCount]) -> None:
        self._store.add_anomalies(destination, self._named(table), counts)

    def anomalies(self, destination: str) -> dict[TableId, tuple[AnomalyCount, ...]]:
        return self._own(self._store.anomalies(destination))

    def rescued(self, destination: str) -> dict[TableId, tuple[RescueCount, ...]]:
        return self._own(self._store.rescued(destination))

    def record_upkeep(self, destination: str, upkeep: Mapping[TableId, Upkeep]) -> None:
        self._store.record_upkeep(destination, {self._named(table): kept for table, kept in upkeep.items()})

    def upkeep(self, destination: str) -> dict[TableId, Upkeep]:
        return self._own(self._store.upkeep(destination))

    def add_request(self, destination: str, table: TableId, kind: RequestKind) -> int:
        return self._store.add_request(destination, self._named(table), kind)

    def requests(self, destination: str | None = None) -> list[Request]:
        return [
            replace(request, table=self._bare(request.table))
            for request in self._store.requests(destination)
            if self._is_own(request.table)
        ]

    def drop_request(self, number: int) -> None:
        self._store.drop_request(number)

    def set_partitions(self, destination: str, table: TableId, partitions: Partitions | None) -> None:
        self._store.set_partitions(destination, self._named(table), partitions)

    def partitions(self, destination: str) -> dict[TableId, Partitions]:
        return self._own(self._store.partitions(destination))

    def set_marks(self, destination: str, table: TableId, marks: TableMarks | None) -> None:
        self._store.set_marks(destination, self._named(table), marks)

    def marks(self, destination: str) -> dict[TableId, TableMarks]:
        return self._own(self._store.marks(destination))

    def set_write_counters(self, destination: str, table: TableId, counters: WriteCounters) -> None:
        self._store.set_write_counters(destination, self._named(table), counters)

    def write_counters(self, destination: str) -> dict[TableId, WriteCounters]:
        return self._own(self._store.write_counters(destination))

    def set_rule(self, destination: str, table: TableId, rule: str) -> None:
        self._store.set_rule(destination, self._named(table), rule)

    def rules(self, destination: str) -> dict[TableId, str]:
        return self._own(self._store.rules(destination))

    def forget_table(self, destination: str, table: TableId) -> None:
        self._store.forget_table(destination, self._named(table))

    def record_schemas(
        self, found: Sequence[tuple[TableId, TableSchema, Position]], seen: Position | None = None, reader: str = ""
    ) -> None:
        named = [(self._named(table), schema, position) for table, schema, position in found]
        self._store.record_schemas(named, seen, self._prefix + reader)

    def schemas_seen(self, reader: str = "") -> Position | None:
        return self._store.schemas_seen(self._prefix + reader)

    def schema_versions(self) -> list[SchemaVersion]:
        return [
            replace(version, table=self._bare(version.table))
            for version in self._store.schema_versions()
            if self._is_own(version.table)
        ]

    def prune_schemas(self, before: Position, tables: Collection[TableId]) -> int:
        return self._store.prune_schemas(before, [self._named(table) for table in tables])

    def quarantine(self, destination: str, table: TableId, messages: Sequence[RawMessage]) -> None:
        self._store.quarantine(destination, self._named(table), messages)

    def quarantined(self, destination: str) -> list[Quarantined]:
        return [
            replace(message, table=self._bare(message.table))
            for message in self._store.quarantined(destination)
            if self._is_own(message.table)
        ]

    def quarantined_counts(self, destination: str) -> dict[TableId, int]:
        return self._own(self._store.quarantined_counts(destination))

    def release(self, numbers: Collection[int]) -> None:
        self._store.release(numbers)

    def release_before(self, destination: str, table: TableId, position: Position) -> int:
        return self._store.release_before(destination, self._named(table), position)

    def ask_pins(self, destination: str, tables: Sequence[TableId]) -> list[int]:
        return self._store.ask_pins(destination, [self._named(table) for table in tables])

    def pins(self, destination: str | None = None) -> list[Pin]:
        return [
            replace(pin, table=self._bare(pin.table))
            for pin in self._store.pins(destination)
            if self._is_own(pin.table)
        ]

    def hold_pin(self, number: int) -> bool:
        return self._store.hold_pin(number)

    def place_pin(self, number: int, position: Position, repair: str = "") -> bool:
        return self._store.place_pin(number, position, repair)

    def answer_pin(
        self,
        number: int,
        *,
        snapshot: str | None,
        columns: Mapping[int, str] | None = None,
        reason: str = "",
        solution: str = "",
    ) -> None:
        self._store.answer_pin(number, snapshot=snapshot, columns=columns, reason=reason, solution=solution)

    def renew_pins(self, numbers: Sequence[int]) -> None:
        self._store.renew_pins(numbers)

    def drop_pins(self, numbers: Sequence[int]) -> None:
        self._store.drop_pins(numbers)

    def close(self) -> None:
        """The store is closed by whoever opened it."""

    def _named(self, table: TableId) -> TableId:
        return scoped_table(self._source, table)

    def _is_own(self, table: TableId) -> bool:
        return table.schema.startswith(self._prefix)

    def _bare(self, table: TableId) -> TableId:
        return TableId(table.schema.removeprefix(self._prefix), table.name)

    def _own(self, rows: Mapping[TableId, Value]) -> dict[TableId, Value]:
        return {self._bare(table): value for table, value in rows.items() if self._is_own(table)}
