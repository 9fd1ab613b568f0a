"""A second kind of source, for tests: a scripted database in memory, whose changes are tiny_dialect.py's messages.

Its n-th transaction, from 1, commits at n * 100. It implements source/contract.py in full where capture and copies ask,
and has nothing to say where only other databases have something to watch.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.model.change import DELETE, INSERT, UPDATE
from penstock.model.position import Position
from penstock.model.record import read_record, write_record
from penstock.model.table import TableId, TableSchema
from penstock.model.table_marks import TableMarks
from penstock.model.write_counters import WriteCounters
from penstock.source.contract import Alteration, Report, Retained, SegmentSettings, StopFlag, Waiting
from penstock.source.sink import CapturedSlice, Origin, SegmentSink
from penstock.source.snapshot_contract import WantedTables
from tiny_dialect import TEXT, WHOLE, tiny_changes, tiny_schema

NAME = "tiny"
SCHEMA = tiny_schema({"id": WHOLE, "note": TEXT})
RANGES = 3


class TinyDatabase:
    """Rows by key, and every change ever made to them."""

    def __init__(self) -> None:
        self.rows: dict[int, str] = {}
        self.changes: list[tuple[int, dict[str, Any] | bytes]] = []
        self._lock = threading.Lock()

    def put(self, id: int, note: str) -> None:
        with self._lock:
            self.changes.append((UPDATE if id in self.rows else INSERT, {"new": {"id": id, "note": note}}))
            self.rows[id] = note

    def remove(self, id: int) -> None:
        with self._lock:
            self.changes.append((DELETE, {"old": {"id": id}}))
            del self.rows[id]

    def frozen(self) -> tuple[Position, dict[int, str]]:
        with self._lock:
            return self.head, dict(self.rows)

    @property
    def head(self) -> Position:
        return len(self.changes) * 100 + 1


@dataclass(frozen=True)
class TinyRange:
    number: int
    bytes: int = 1

    def to_json(self) -> str:
        return write_record("tiny range", 1, {"number": self.number})


@dataclass(frozen=True)
class TinyTableReader:
    rows: Mapping[int, str]
    schema: TableSchema = SCHEMA

    def read(self, part: TinyRange, **_: object) -> Iterator[pa.RecordBatch]:
        yield self._batch(id for id in self.rows if id % RANGES == part.number)

    def rows_by_key(self, keys: pa.Table, **_: object) -> Iterator[pa.RecordBatch]:
        yield self._batch(id for id in keys["id"].to_pylist() if id in self.rows)

    def _batch(self, ids: Iterator[int]) -> pa.RecordBatch:
        rows = [{"id": id, "note": self.rows[id]} for id in ids]
        fields = [pa.field("id", pa.int64(), nullable=False), pa.field("note", pa.string())]
        return pa.RecordBatch.from_pylist(rows, schema=pa.schema(fields))


class TinySnapshot:
    """A snapshot and the session in it."""

    moment = 0

    def __init__(self, database: TinyDatabase) -> None:
        self.position, self._rows = database.frozen()

    def __enter__(self) -> TinySnapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        pass

    def alive(self) -> bool:
        return True

    @property
    def passed(self) -> Position:
        return self.position

    @contextmanager
    def session(self) -> Iterator[TinySnapshot]:
        yield self

    def describe(self, wanted: WantedTables, table: TableId) -> TableSchema | None:
        return SCHEMA if table == SCHEMA.table else None

    def estimated_rows(self, schema: TableSchema) -> int:
        return len(self._rows)

    def plan_ranges(self, schema: TableSchema, *, range_bytes: int) -> list[TinyRange]:
        return [TinyRange(number) for number in range(RANGES)]

    def reader(self, schema: TableSchema) -> TinyTableReader:
        return TinyTableReader(self._rows)

    def marks(self, schemas: Sequence[TableSchema]) -> dict[TableId, TableMarks]:
        return {schema.table: TableMarks(0) for schema in schemas}

    def why_copied_again(self, before: TableMarks, now: TableMarks) -> str:
        return ""

    def partitions(self, schemas: Sequence[TableSchema]) -> dict[TableId, Any]:
        return {}


@dataclass(frozen=True)
class TinyFollowing:
    troubles: Mapping[TableId, Any]
    done: tuple[Alteration, ...] = ()
    inserts_only: frozenset[TableId] = frozenset()
    staying: tuple[Alteration, ...] = ()


class TinySession(TinySnapshot):
    def __init__(self, database: TinyDatabase) -> None:
        super().__init__(database)
        self._database = database

    def check(self, wanted: WantedTables) -> list[Any]:
        return []

    def discover(self, wanted: WantedTables) -> list[TableSchema]:
        return [SCHEMA] if wanted.wants(SCHEMA.table) else []

    def head(self) -> Position:
        return self._database.head

    def install(self) -> None:
        pass

    def readable(self) -> frozenset[str]:
        return frozenset({NAME})

    def follow(self, wanted: WantedTables, schemas: Sequence[TableSchema], **_: object) -> TinyFollowing:
        return TinyFollowing(troubles={})

    def retain(self, log_end: Position | None) -> Retained:
        return Retained(1, made=log_end is None)

    def counters(self, schemas: Sequence[TableSchema]) -> dict[TableId, WriteCounters]:
        return {schema.table: WriteCounters("", {}) for schema in schemas}


class TinyAdvice:
    def whole_rows(self, table: TableId) -> str:
        return f"tell tiny to send whole rows of {table}"

    def identity(self, table: TableId) -> str:
        return f"tell tiny the key of {table}"

    def give_up(self) -> str:
        return "tell tiny to forget"


class TinySource:
    endpoint = "memory"
    advice = TinyAdvice()

    def __init__(self, database: TinyDatabase) -> None:
        self._database = database

    def connect(self, *, purpose: str = "penstock") -> TinySession:
        return TinySession(self._database)

    def snapshot(self, *, timeout: float, waiting: Waiting) -> TinySnapshot:
        return TinySnapshot(self._database)

    def capture(
        self, wanted: WantedTables, settings: SegmentSettings, sink: SegmentSink, stop: StopFlag, report: Report
    ) -> None:
        end = sink.end or 1
        sink.begin(end, Origin(NAME))
        report({"event": "started", "position": self.position_text(end), "reading": [NAME]})
        while not stop.wait(0.005):
            head, done = self._database.head, end // 100
            if head > end:
                batch = tiny_changes(SCHEMA, self._database.changes[: head // 100]).batch.slice(done)
                sink.append(head, [CapturedSlice(SCHEMA, batch, moved_keys=0)])
                end = head

    def position_text(self, position: Position) -> str:
        return f"tiny {position}"

    def parse_position(self, text: str) -> Position:
        return int(text.removeprefix("tiny "))

    def range_from_json(self, text: str) -> TinyRange:
        return TinyRange(read_record(text, "tiny range", 1).integer("number"))

    def why_void(self, recorded: Collection[TinyRange], planned: Collection[TinyRange]) -> str:
        return ""
