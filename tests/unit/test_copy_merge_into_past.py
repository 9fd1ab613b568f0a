"""A copy that is merged into a table whose past is kept: the first one and a resync, against the memory twin."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from threading import Event
from typing import Any, Literal

import pyarrow as pa
import pytest

from penstock.changelog.log import ChangeLog
from penstock.changelog.segment import SliceRows
from penstock.changelog.writer import SegmentWriter
from penstock.config.model import BatchConfig
from penstock.decode.rescue import RESCUED, RESCUED_TYPE
from penstock.destinations.contract import InProcessRunner
from penstock.destinations.memory import MemoryDestination
from penstock.fold.clone import fold_clone
from penstock.fold.evolution import follow
from penstock.fold.layout import layout_of
from penstock.model.feed import Feed, Mode, Period
from penstock.model.position import Position
from penstock.model.table import TableSchema
from penstock.model.type_map import WIDEST
from penstock.runtime.apply.batch_planner import gather
from penstock.runtime.apply.task import apply, tasks_for
from penstock.runtime.copy.replay import FinishedRange, catch_up
from pgoutput_messages import INT8, TEXT, Change, Stream, delete, insert, numeric, raw_changes, table_schema, update
from versions_oracle import BEGINNING, OPEN, found

THINGS = table_schema({"id": INT8, "body": TEXT})
RUNNER = InProcessRunner()


def second(number: float) -> datetime:
    return datetime.fromtimestamp(number, UTC)


class Bench:
    """A table that is copied and followed. A transaction that commits at lsn n does so at second n / 100."""

    def __init__(
        self, folder: Path, mode: Mode, schema: TableSchema = THINGS, first: Literal["always", "commit"] = "always"
    ) -> None:
        self.schema = schema
        self.feed = Feed(THINGS.table, THINGS.table, THINGS.table, mode, period=Period(first=first))
        self.log = ChangeLog(str(folder))
        self.writer = SegmentWriter(self.log)
        self.writer.__enter__()
        self.writer.begin(100, "1")
        self.lake = MemoryDestination()
        self.lake.ensure_table(THINGS.table, schema, "shop", None, layout=layout_of(self.feed))

    def seal(self, end: int, *changes: tuple[int, bytes]) -> None:
        own = [Change(lsn, place, message) for place, (lsn, message) in enumerate(changes)]
        self.writer.append(end, [SliceRows(self.schema, raw_changes(self.schema, own).batch, 0)] if own else [])

    def copy(self, taken_at: Position, *ranges: tuple[Position, dict[int, str]]) -> None:
        """Ranges are (position of the snapshot, rows); the newest snapshot is at `taken_at`. Bodies of a number that
        are none are rescued."""
        finished = []
        for position, rows in ranges:
            plan = self.lake.plan_copy(THINGS.table, "shop")
            message = [insert(str(key), body) for key, body in rows.items()]
            read = fold_clone([Stream().transaction(*message).raw(self.schema)], position=0)
            table = read.upserts
            if read.rescued is not None:
                table = table.append_column(pa.field(RESCUED, RESCUED_TYPE), read.rescued)
            finished.append(FinishedRange(plan.write_rows([table]), position))
        reached = catch_up(
            self.lake,
            RUNNER,
            self.log,
            limits=BatchConfig(),
            source="shop",
            feed=self.feed,
            schema=self.schema,
            ranges=finished,
            taken_at=taken_at,
            moment=taken_at * 10_000,
            stop=Event(),
            reread=lambda keys: pytest.fail("nothing is in doubt"),
            rescuing=lambda rescues: None,
            keep=lambda letters: None,
        )
        assert reached == self.lake.position(THINGS.table, "shop") == taken_at

    def follow(self) -> None:
        plan = self.lake.plan(THINGS.table, "shop")
        batch = gather(self.log, self.log.segments(after=plan.position), {self.feed: plan.position}, BatchConfig())
        assert batch is not None
        work = batch.tables[self.feed.name]
        followed = follow(self.lake.structure(THINGS.table, "shop"), work.versions, WIDEST)
        results = RUNNER.run(apply, tasks_for(self.log, work, plan.position, plan, followed))
        assert [result.error for result in results] == [None] * len(results)
        parts = [result.part for result in results if result.part is not None]
        moment = max(plan.moment, *(result.last_commit_time for result in results))
        self.lake.commit(plan, parts, truncated=False, position=batch.end, moment=moment)

    def rows(self) -> list[tuple[Any, ...]]:
        return found(self.lake.rows(THINGS.table).to_pylist())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "log"


FIRST = pytest.mark.parametrize("first", ["always", "commit"])


@FIRST
def test_a_history_begins_with_its_copy_and_counts_every_change_after_the_newest_snapshot(
    folder: Path, first: Literal["always", "commit"]
) -> None:
    bench = Bench(folder, Mode.HISTORY, first=first)
    bench.seal(300, (150, update("1", "b")), (250, update("1", "c")), (260, delete("2", None)))
    bench.seal(500, (310, update("1", "d")), (320, update("1", "e")), (330, insert("3", "x")))
    bench.copy(300, (200, {1: "b", 2: "y"}), (300, {5: "z"}))
    assert bench.rows() == [(1, "c", BEGINNING, OPEN, False), (5, "z", BEGINNING, OPEN, False)]
    bench.follow()
    assert bench.rows() == sorted(
        [
            (1, "c", BEGINNING, second(3.1), False),
            (1, "d", second(3.1), second(3.2), False),
            (1, "e", second(3.2), OPEN, False),
            (3, "x", BEGINNING if first == "always" else second(3.3), OPEN, False),
            (5, "z", BEGINNING, OPEN, False),
        ],
        key=repr,
    )


@FIRST
def test_a_resync_keeps_the_past_and_tells_only_differences(folder: Path, first: Literal["always", "commit"]) -> None:
    bench = Bench(folder, Mode.HISTORY, first=first)
    bench.seal(200)
    bench.copy(200, (200, {1: "a", 2: "b", 3: "c", 4: "d"}))
    bench.seal(300, (210, delete("4", None)))
    bench.follow()
    bench.seal(900)
    bench.copy(800, (800, {1: "a", 2: "B", 4: "again", 5: "new"}))
    assert bench.rows() == sorted(
        [
            (1, "a", BEGINNING, OPEN, False),
            (2, "b", BEGINNING, second(8), False),
            (2, "B", second(8), OPEN, False),
            (3, "c", BEGINNING, second(8), True),
            (4, "d", BEGINNING, second(2.1), True),
            (4, "again", second(8), OPEN, False),
            (5, "new", BEGINNING if first == "always" else second(8), OPEN, False),
        ],
        key=repr,
    )


def test_a_resync_of_an_append_table_keeps_what_the_source_has_deleted(folder: Path) -> None:
    bench = Bench(folder, Mode.APPEND)
    bench.seal(200)
    bench.copy(200, (200, {1: "a", 2: "b"}))
    bench.seal(900)
    bench.copy(800, (800, {2: "B", 3: "c"}))
    assert bench.rows() == [(1, "a"), (2, "B"), (3, "c")]


def test_a_resync_of_a_clone_takes_its_place(folder: Path) -> None:
    bench = Bench(folder, Mode.CLONE)
    bench.seal(200)
    bench.copy(200, (200, {1: "a", 2: "b"}))
    bench.seal(800)
    bench.copy(800, (800, {2: "B", 3: "c"}))
    assert bench.rows() == [(2, "B"), (3, "c")]


PRICES = table_schema({"id": INT8, "body": numeric(5, 0)})


def test_a_resync_compares_what_was_rescued_too(folder: Path) -> None:
    bench = Bench(folder, Mode.HISTORY, PRICES)
    bench.seal(200, (150, update("4", "NaN")))
    bench.copy(200, (100, {1: "NaN", 2: "NaN", 3: "3", 4: "4"}))
    bench.seal(300, (210, update("1", "NaN")))
    bench.follow()
    bench.seal(900)
    bench.copy(800, (800, {1: "NaN", 2: "Infinity", 3: "NaN", 4: "NaN"}))
    rows = [
        (row["id"], row["body"], row[RESCUED], row["valid_from"], row["valid_to"])
        for row in bench.lake.rows(THINGS.table).to_pylist()
    ]
    assert sorted(rows, key=repr) == sorted(
        [
            (1, None, [("body", "NaN")], BEGINNING, OPEN),
            (2, None, [("body", "NaN")], BEGINNING, second(8)),
            (2, None, [("body", "Infinity")], second(8), OPEN),
            (3, Decimal(3), None, BEGINNING, second(8)),
            (3, None, [("body", "NaN")], second(8), OPEN),
            (4, None, [("body", "NaN")], BEGINNING, OPEN),
        ],
        key=repr,
    )


def test_a_resync_of_an_append_table_brings_what_was_rescued(folder: Path) -> None:
    bench = Bench(folder, Mode.APPEND, PRICES)
    bench.seal(200)
    bench.copy(200, (200, {1: "1", 2: "2"}))
    bench.seal(900)
    bench.copy(800, (800, {2: "NaN"}))
    assert bench.rows() == [(1, Decimal(1), None), (2, None, [("body", "NaN")])]
