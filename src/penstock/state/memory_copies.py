"""Copies, facts of copies, findings and upkeep in the state store in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from penstock.model.anomaly import AnomalyCount, merged_anomalies
from penstock.model.partitions import Partitions
from penstock.model.position import Position
from penstock.model.rescue import RescueCount, merged
from penstock.model.table import TableId
from penstock.model.table_marks import TableMarks
from penstock.model.upkeep import Upkeep
from penstock.model.write_counters import WriteCounters
from penstock.state.memory_part import Key, MemoryPart, of_destination
from penstock.state.store import CopyProgress, CopyRecord, RangeRecord


class MemoryRowFindings(MemoryPart):
    def __init__(self, ids: Iterator[int] | None = None) -> None:
        super().__init__(ids)
        self._rescued: dict[Key, tuple[RescueCount, ...]] = self._by_table()
        self._anomalies: dict[Key, tuple[AnomalyCount, ...]] = self._by_table()

    def add_rescued(self, destination: str, table: TableId, counts: Sequence[RescueCount]) -> None:
        key = destination, table
        with self._lock:
            if counts:
                self._rescued[key] = merged([*self._rescued.get(key, ()), *counts])

    def rescued(self, destination: str) -> dict[TableId, tuple[RescueCount, ...]]:
        with self._lock:
            found = of_destination(self._rescued, destination)
        return {table: tuple(sorted(counts, key=lambda count: count.column)) for table, counts in found.items()}

    def add_anomalies(self, destination: str, table: TableId, counts: Sequence[AnomalyCount]) -> None:
        key = destination, table
        with self._lock:
            if counts:
                self._anomalies[key] = merged_anomalies([*self._anomalies.get(key, ()), *counts])

    def anomalies(self, destination: str) -> dict[TableId, tuple[AnomalyCount, ...]]:
        with self._lock:
            return of_destination(self._anomalies, destination)

    def _forget_findings(self, key: Key) -> None:
        self._rescued.pop(key, None)
        self._anomalies.pop(key, None)


class MemoryCopyRecords(MemoryRowFindings):
    def __init__(self, ids: Iterator[int] | None = None) -> None:
        super().__init__(ids)
        self._copies: dict[Key, CopyRecord] = self._by_table()
        self._ended: dict[Key, CopyProgress] = self._by_table()
        self._notes: dict[Key, str] = self._by_table()

    def begin_copy(
        self, destination: str, table: TableId, copy: str, fingerprint: str, ranges: Sequence[tuple[str, int]]
    ) -> None:
        key = destination, table
        with self._lock:
            earlier = self._copies.get(key)
            self._ended.pop(key, None)
            self._notes.pop(key, None)
            self._forget_findings(key)
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


class MemoryCopyFacts(MemoryPart):
    def __init__(self, ids: Iterator[int] | None = None) -> None:
        super().__init__(ids)
        self._partitions: dict[Key, Partitions] = self._by_table()
        self._marks: dict[Key, TableMarks] = self._by_table()
        self._write_counters: dict[Key, WriteCounters] = self._by_table()
        self._rules: dict[Key, str] = self._by_table()

    def set_partitions(self, destination: str, table: TableId, partitions: Partitions | None) -> None:
        with self._lock:
            self._partitions.pop((destination, table), None)
            if partitions is not None:
                self._partitions[destination, table] = partitions

    def partitions(self, destination: str) -> dict[TableId, Partitions]:
        with self._lock:
            return of_destination(self._partitions, destination)

    def set_marks(self, destination: str, table: TableId, marks: TableMarks | None) -> None:
        with self._lock:
            self._marks.pop((destination, table), None)
            if marks is not None:
                self._marks[destination, table] = marks

    def marks(self, destination: str) -> dict[TableId, TableMarks]:
        with self._lock:
            return of_destination(self._marks, destination)

    def set_write_counters(self, destination: str, table: TableId, counters: WriteCounters) -> None:
        with self._lock:
            self._write_counters[destination, table] = counters

    def write_counters(self, destination: str) -> dict[TableId, WriteCounters]:
        with self._lock:
            return of_destination(self._write_counters, destination)

    def set_rule(self, destination: str, table: TableId, rule: str) -> None:
        with self._lock:
            self._rules[destination, table] = rule

    def rules(self, destination: str) -> dict[TableId, str]:
        with self._lock:
            return of_destination(self._rules, destination)


class MemoryUpkeepReports(MemoryPart):
    def __init__(self, ids: Iterator[int] | None = None) -> None:
        super().__init__(ids)
        self._upkeep: dict[Key, Upkeep] = self._by_table()

    def record_upkeep(self, destination: str, upkeep: Mapping[TableId, Upkeep]) -> None:
        with self._lock:
            self._upkeep.update({(destination, table): kept for table, kept in upkeep.items()})

    def upkeep(self, destination: str) -> dict[TableId, Upkeep]:
        with self._lock:
            return of_destination(self._upkeep, destination)


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
