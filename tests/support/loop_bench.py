"""An apply loop over a log that a test fills, and the in-memory destination, whose commits may fail as a test says."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.changelog.log import ChangeLog
from penstock.changelog.segment import SliceRows
from penstock.changelog.writer import SegmentWriter
from penstock.config.model import BatchConfig
from penstock.destinations.contract import InProcessRunner, JobRunner, Result, Task, WritePlan, WrittenPart
from penstock.destinations.memory import MemoryDestination
from penstock.destinations.memory_tables import MemoryPlan, MemoryStore
from penstock.destinations.structure import OnDrop
from penstock.errors import CommitUnknown, DestinationUnreachable, StaleBase
from penstock.fold.layout import layout_of
from penstock.model.feed import Feed
from penstock.model.position import Position
from penstock.model.table import Column, ColumnType, TableId, TableSchema
from penstock.runtime.apply import batch_planner, job, key_split
from penstock.runtime.apply.batch_planner import Bound, unbounded
from penstock.runtime.apply.log_need import log_need, pass_over
from penstock.runtime.apply.loop import ApplyLoop
from penstock.runtime.log_reader import LogNeed, Observe
from penstock.runtime.process.signals import SignalFlag
from penstock.state.memory import MemoryStateStore
from pgoutput_messages import INT8, TEXT, Change, raw_changes

AT_ONCE = BatchConfig(max_age=0.0)


def schema(table: str, relation: int, **columns: ColumnType) -> TableSchema:
    described = tuple(Column(column, type, column != "id") for column, type in columns.items())
    return TableSchema(TableId("public", table), relation, described, ("id",))


ORDERS = schema("orders", 1, id=INT8, state=TEXT)
PEOPLE = schema("people", 2, id=INT8, name=TEXT, photo=TEXT)


def numbered(table: TableSchema, *numbers: int, **changes: Any) -> TableSchema:
    columns = tuple(replace(one, number=number) for one, number in zip(table.columns, numbers, strict=True))
    return replace(table, columns=columns, **changes)


class Fallible(MemoryDestination):
    """A twin whose next commits may be refused, lost, or take place without anybody hearing of it."""

    capabilities = replace(MemoryDestination.capabilities, maintained=True)

    def __init__(self, store: MemoryStore) -> None:
        super().__init__("lake", store)
        self.failures: list[str] = []
        self.commits: list[TableId] = []
        self.presumed: list[bool] = []  # of each plan
        self.before_commit: Callable[[], object] = lambda: None

    def plan(
        self,
        target: TableId,
        source: str,
        schema: TableSchema | None = None,
        on_drop: OnDrop = "keep",
        *,
        thorough: bool = False,
        presumed: bool = False,
    ) -> MemoryPlan:
        self.presumed.append(presumed)
        return super().plan(target, source, schema, on_drop, thorough=thorough, presumed=presumed)

    def commit(
        self,
        plan: WritePlan,
        parts: Sequence[WrittenPart],
        *,
        truncated: bool,
        position: Position,
        moment: int | None = None,
    ) -> None:
        self.before_commit()
        failure = self.failures.pop(0) if self.failures else ""
        if failure == "stale":
            raise StaleBase("somebody else committed", "")
        if failure == "gone":
            raise DestinationUnreachable("no answer", "")
        if failure == "unknown, not done":
            raise CommitUnknown("no answer", "")
        super().commit(plan, parts, truncated=truncated, position=position, moment=moment)
        self.commits.append(plan.target)
        if failure == "unknown, done":
            raise CommitUnknown("no answer", "")


def addressed(message: bytes, table: TableSchema) -> bytes:
    """The message with the table's own number; a truncate names its tables itself."""
    return message if message[:1] == b"T" else message[:1] + struct.pack(">I", table.relation_id) + message[5:]


class Runner:
    """Runs tasks as whoever the test names."""

    def __init__(self) -> None:
        self.by: JobRunner = InProcessRunner()

    @property
    def slots(self) -> int:
        return self.by.slots

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        return self.by.run(function, tasks)


class Bench:
    """A log that a test fills, and a loop over it."""

    def __init__(self, folder: Path) -> None:
        self.log = ChangeLog(str(folder))
        self.writer = SegmentWriter(self.log)
        self.writer.__enter__()
        self.writer.begin(100, "1")
        self.store = MemoryStore()
        self.state = MemoryStateStore()
        self.runner = Runner()
        self.loop = self.restart()

    def restart(self, *schemas: TableSchema, limits: BatchConfig = AT_ONCE, bound: Bound = unbounded) -> ApplyLoop:
        self.lake = Fallible(self.store)
        self.loop = ApplyLoop("shop", self.lake, self.runner, self.log, limits, self.state, bound)
        wanted = schemas or (ORDERS, PEOPLE)
        for one in wanted:
            self.follow(Feed.clone(one.table), one)
        start = self.log.start() or 100
        self.loop.begin(start)
        return self.loop

    def follow(self, feed: Feed, schema: TableSchema) -> None:
        position = self.lake.ensure_table(feed.target, schema, "shop", 100, layout=layout_of(feed))
        assert position is not None
        self.loop.track(feed, schema, position, self.log.start() or 100)

    def of_this_log(self) -> None:
        """Gives the tables the log's history, as if they had been copied under it."""
        for name, table in self.store.tables.items():
            self.store.tables[name] = table.copied("shop", self.log.history() or "")

    def seal(self, end: int, *changes: tuple[TableSchema, int, bytes]) -> None:
        """One segment; each change is (table, commit_position, message)."""
        slices = []
        for table in dict.fromkeys(one for one, _, _ in changes):
            own = [
                Change(lsn, place, addressed(message, table))
                for place, (one, lsn, message) in enumerate(changes)
                if one is table
            ]
            moved = sum(change.message[5:6] == b"K" for change in own if change.message[:1] == b"U")
            slices.append(SliceRows(table, raw_changes(table, own).batch, moved))
        self.writer.append(end, slices)

    def rows(self, table: TableSchema, target: TableId | None = None) -> list[tuple[object, ...]]:
        return sorted(tuple(row.values()) for row in self.lake.rows(target or table.table).to_pylist())


def huge_beyond(patch: pytest.MonkeyPatch, size: int) -> None:
    """A table's part of a batch beyond so many bytes is huge, and shared out that much at a time."""
    names = {"MOST_HELD_BYTES", "MOST_BUCKET_BYTES", "WORTH_A_BUCKET", "SHARED_AT_ONCE", "READ_AT_ONCE"}
    for module in (batch_planner, job, key_split):
        for name in names & set(vars(module)):
            patch.setattr(module, name, size)
    patch.setattr(job, "MOST_SHARED_BY_A_TASK", 2 * size)


def drain(bench: Bench) -> None:
    while bench.loop.step(now=True):
        pass


class LoopReader:
    """A loop as the log's retention knows its readers: it answers at once, and has no copies."""

    def __init__(self, loop: ApplyLoop, name: str = "lake") -> None:
        self.name, self.loop = name, loop
        self.is_retrying = False

    @property
    def processed(self) -> Position:
        return self.loop.processed

    @property
    def log_need(self) -> LogNeed:
        return log_need(self.loop, None)

    def let_go(self, before: Position) -> bool:
        pass_over(self.loop, before)
        return True

    def begin_look(self) -> Observe:
        return lambda connection, catalogue: None

    def give_up(self, error: BaseException) -> None:
        self.loop.close()

    def run(self, stop: SignalFlag) -> None:
        while not stop.is_set() and self.loop.step(now=True):
            pass
