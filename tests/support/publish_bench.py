"""A publish loop over a log that a test fills, and the in-memory stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from loop_bench import AT_ONCE, addressed
from penstock.changelog.log import ChangeLog
from penstock.changelog.segment import SliceRows
from penstock.changelog.writer import SegmentWriter
from penstock.config.destinations import DeadLetterConfig
from penstock.config.model import BatchConfig
from penstock.destinations.contract import InProcessRunner, Result, Task
from penstock.destinations.memory_stream import MemoryStreamDestination, MemoryStreamStore
from penstock.model.feed import Feed, Mode
from penstock.model.table import TableSchema
from penstock.runtime.apply.batch_planner import Bound, unbounded
from penstock.runtime.publish.loop import PublishLoop
from penstock.runtime.publish.row_copier import RowCopier
from penstock.state.memory import MemoryStateStore
from pgoutput_messages import Change, raw_changes

KEEP_TEN = DeadLetterConfig(max_entries=10)


def stream_feed(schema: TableSchema, **changes: Any) -> Feed:
    return replace(Feed.clone(schema.table), mode=Mode.EVENTS, **changes)


class FailingRunner(InProcessRunner):
    """Runs tasks until one is to fail: then those before it have published, and the driver hears of none."""

    def __init__(self) -> None:
        self.fail_after: int | None = None
        self.fails_at: Callable[..., object] | None = None  # None: any

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        if self.fail_after is None or self.fails_at not in (None, function):
            return super().run(function, tasks)
        super().run(function, tasks[: self.fail_after])
        self.fail_after = None
        raise ConnectionError("the executor is gone")


class PublishBench:
    def __init__(self, folder: Path, *feeds: Feed, shards: int = 1) -> None:
        self.log = ChangeLog(str(folder))
        self.writer = SegmentWriter(self.log)
        self.writer.__enter__()
        self.writer.begin(100, "1")
        self.store, self.state, self.runner = MemoryStreamStore(), MemoryStateStore(), FailingRunner()
        self.feeds, self.shards = feeds, shards
        self.loop = self.restart()

    def restart(
        self,
        *,
        limits: BatchConfig = AT_ONCE,
        start: int | Literal["log", "now"] = "log",
        dlq: DeadLetterConfig = KEEP_TEN,
        rows: RowCopier | None = None,
        bound: Bound = unbounded,
    ) -> PublishLoop:
        """A new process: nothing is left but the log, the stream and the state store."""
        stream = MemoryStreamDestination("stream", self.store, self.shards)
        self.loop = PublishLoop(
            "shop", stream, self.runner, self.log, limits, self.state, start=start, rows=rows, dlq=dlq, bound=bound
        )
        for feed in self.feeds:
            self.loop.follow(feed)
        return self.loop

    def seal(self, end: int, *changes: tuple[TableSchema, int, bytes]) -> None:
        """One segment; each change is (table, commit position, message), and its ordinal is its place here."""
        self.writer.append(end, _slices(changes))

    def part(self, commit: int, first: int, *changes: tuple[TableSchema, bytes]) -> None:
        """A part of a transaction that is too large for one file; its changes are numbered from `first`."""
        self.writer.write_part(commit, _slices([(table, commit, message) for table, message in changes], first))

    def drain(self) -> None:
        while self.loop.step(now=True):
            pass

    def events(self) -> list[list[dict[str, Any]]]:
        """What a reader sees of each shard."""
        return [[json.loads(value or b"null") for value in values] for values in self.store.values("shop")]

    def ids(self, shard: int = 0, table: str = "") -> list[int]:
        return [event["key"]["id"] for event in self.events()[shard] if table in ("", event["table"])]


def _slices(changes: Sequence[tuple[TableSchema, int, bytes]], first: int = 0) -> list[SliceRows]:
    slices = []
    for table in dict.fromkeys(one for one, _, _ in changes):
        own = [
            Change(position, place, addressed(message, table))
            for place, (one, position, message) in enumerate(changes, first)
            if one is table
        ]
        slices.append(SliceRows(table, raw_changes(table, own).batch))
    return slices
