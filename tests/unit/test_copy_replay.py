"""Catching up a copy from several snapshots, against a source that is simulated to the row's place and the cell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from threading import Event

import pyarrow as pa
import pytest

from loop_bench import huge_beyond
from penstock.changelog.log import ChangeLog
from penstock.changelog.segment import SliceRows
from penstock.changelog.writer import SegmentWriter
from penstock.config.model import BatchConfig
from penstock.decode.schema import arrow_schema
from penstock.destinations.contract import InProcessRunner
from penstock.destinations.memory import MemoryDestination
from penstock.errors import PositionLost, RangeVoid
from penstock.model.feed import Feed
from penstock.model.position import Position
from penstock.model.table import TableId
from penstock.runtime.copy.replay import MOST_REREADS, FinishedRange, Unresolved, catch_up
from pgoutput_messages import INT8, TEXT, UNSENT, Change, delete, insert, raw_changes, table_schema, truncate, update

SCHEMA = table_schema({"id": INT8, "small": TEXT, "large": TEXT})
BLOCKS, KEYS = 3, 10
NEVER = Event()


@dataclass
class Row:
    small: str
    large: str
    block: int


@dataclass
class Source:
    """A table whose rows lie in blocks, and the log that says what becomes of them."""

    log: ChangeLog
    writer: SegmentWriter
    random: Random
    rows: dict[int, Row] = field(default_factory=dict)
    now: Position = 100
    history: dict[Position, dict[int, tuple[str, str]]] = field(default_factory=dict)
    _unsealed: list[Change] = field(default_factory=list)
    _values: int = 0

    def value(self) -> str:
        self._values += 1
        return f"v{self._values}"

    def transaction(self) -> None:
        """One to four changes, then a commit; a few transactions make a segment."""
        messages = [message for _ in range(self.random.choice((1, 1, 2, 4))) for message in self._change()]
        self.now += 10
        self._unsealed += [Change(self.now - 5, place, message) for place, message in enumerate(messages)]
        self.history[self.now] = {key: (row.small, row.large) for key, row in self.rows.items()}
        if self.random.random() < 0.5:
            self.seal()

    def seal(self) -> None:
        moved = sum(change.message[5:6] == b"K" for change in self._unsealed if change.message[:1] == b"U")
        slices = [SliceRows(SCHEMA, raw_changes(SCHEMA, self._unsealed).batch, moved)] if self._unsealed else []
        if (self.log.end() or 100) < self.now:
            self.writer.append(self.now, slices)
        self._unsealed = []

    def _change(self) -> Iterator[bytes]:
        taken, free = list(self.rows), [key for key in range(KEYS) if key not in self.rows]
        kind = self.random.choice(("insert", "delete", "small", "small", "small", "large", "move", "move", "swap"))
        if kind == "insert" and free:
            key = self.random.choice(free)
            self.rows[key] = Row(self.value(), self.value(), self._block())
            yield insert(str(key), self.rows[key].small, self.rows[key].large)
        elif kind == "delete" and taken:
            key = self.random.choice(taken)
            del self.rows[key]
            yield delete(str(key), None, None)
        elif kind in ("small", "large") and taken:
            key = self.random.choice(taken)
            row = self.rows[key]
            row.small, row.block = self.value(), self._block()
            row.large = self.value() if kind == "large" else row.large
            yield update(str(key), row.small, row.large if kind == "large" else UNSENT)
        elif kind == "move" and taken and free:
            yield self._move(self.random.choice(taken), self.random.choice(free))
        elif kind == "swap" and len(taken) > 1:
            one, other = self.random.sample(taken, 2)
            yield self._move(one, KEYS)
            yield self._move(other, one)
            yield self._move(KEYS, other)

    def _move(self, old: int, new: int) -> bytes:
        row = self.rows[new] = self.rows.pop(old)
        row.block = self._block()
        return update(str(new), row.small, UNSENT, key=(str(old), None, None))

    def _block(self) -> int:
        return self.random.randrange(BLOCKS)

    def truncate(self) -> None:
        self.rows.clear()
        self.now += 10
        self._unsealed.append(Change(self.now - 5, 0, truncate()))
        self.history[self.now] = {}

    def table(self, keys: list[int]) -> pa.Table:
        rows = [{"id": key, "small": self.rows[key].small, "large": self.rows[key].large} for key in keys]
        return pa.Table.from_pylist(rows, arrow_schema(SCHEMA))


@pytest.fixture
def source(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Source]:
    log = ChangeLog(str(tmp_path / "log"))
    with SegmentWriter(log) as writer:
        writer.begin(100, "1")
        yield Source(log, writer, Random(getattr(request, "param", 0)))


@dataclass
class Copy:
    """A copy of the source, and how it is caught up."""

    source: Source
    busy: int = 4  # transactions before and after a snapshot of single rows, at most; it calms down
    rewrites: int = 0  # times that a rewrite comes between
    lake: MemoryDestination = field(default_factory=MemoryDestination)
    ranges: list[FinishedRange] = field(default_factory=list)
    asked: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lake.ensure_table(SCHEMA.table, SCHEMA, "shop", None)
        self.plan = self.lake.plan_copy(SCHEMA.table, "shop")

    def read(self, block: int) -> None:
        rows = self.source.table([key for key, row in self.source.rows.items() if row.block == block])
        self.ranges.append(FinishedRange(self.plan.write_rows([rows]), self.source.now))

    def reread(self, keys: pa.Table) -> FinishedRange:
        wanted = keys["id"].to_pylist()
        self.asked.append(wanted)
        self.busy = max(0, self.busy - 1)
        for _ in range(self.source.random.randint(0, self.busy)):
            self.source.transaction()
        if self.rewrites:
            self.rewrites -= 1
            raise RangeVoid("rewritten", "")
        rows = self.source.table([key for key in wanted if key in self.source.rows])
        read = FinishedRange(self.plan.write_rows([rows]), self.source.now)
        for _ in range(self.source.random.randint(0, self.busy)):
            self.source.transaction()
        self.source.seal()
        return read

    def catch_up(self, most: int = 1000) -> Position:
        self.source.seal()
        limits = BatchConfig(max_changes=most)
        position = catch_up(
            self.lake,
            InProcessRunner(),
            self.source.log,
            limits=limits,
            source="shop",
            feed=Feed.clone(SCHEMA.table),
            schema=SCHEMA,
            ranges=self.ranges,
            taken_at=self.source.now,
            moment=0,
            stop=NEVER,
            reread=self.reread,
            rescuing=lambda rescues: None,
            keep=lambda letters: None,
        )
        assert position is not None
        return position

    def rows(self) -> dict[int, tuple[str, str]]:
        found = self.lake.rows(SCHEMA.table).to_pylist()
        assert len({row["id"] for row in found}) == len(found), "a row is doubled"
        return {row["id"]: (row["small"], row["large"]) for row in found}


@pytest.mark.parametrize("source", range(150), indirect=True)
def test_whatever_happens_between_snapshots_the_copy_is_exact(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when what is to be replayed is shared out over tasks."""
    if source.random.random() < 0.5:
        huge_beyond(monkeypatch, source.random.choice((50, 300)))
    for _ in range(12):
        source.transaction()
    source.seal()
    copy = Copy(source, rewrites=source.random.choice((0, 0, 1)))
    for block in source.random.sample(range(BLOCKS), BLOCKS):
        copy.read(block)
        for _ in range(source.random.randrange(12)):
            source.transaction()
    if source.random.random() < 0.2:
        source.truncate()
        source.transaction()
    position = copy.catch_up(source.random.choice((1, 4, 1000)))
    assert copy.rows() == source.history[position]


def moved_behind_the_reader(source: Source) -> Copy:
    """Key 1 lies where nothing has been read yet, and is moved to where all has been read."""
    source.rows = {1: Row("a", "large one", 1), 2: Row("b", "large two", 0)}
    copy = Copy(source)
    copy.read(0)
    source.rows[1].block = 0
    source.rows[1].small = "a2"
    source._unsealed.append(Change(source.now + 5, 0, update("1", "a2", UNSENT)))
    source.now += 10
    source.history[source.now] = {1: ("a2", "large one"), 2: ("b", "large two")}
    copy.read(1)
    copy.read(2)
    return copy


def test_only_rows_in_doubt_are_read_again(source: Source) -> None:
    copy = moved_behind_the_reader(source)
    copy.busy = 0
    position = copy.catch_up()
    assert copy.asked == [[1]]
    assert copy.rows() == source.history[position]


def test_a_log_that_begins_too_late_is_not_replayed(source: Source) -> None:
    copy = moved_behind_the_reader(source)
    source.seal()
    source.transaction()
    source.seal()
    source.log.remove(source.log.segments()[0])
    with pytest.raises(PositionLost, match="the change log begins at"):
        copy.catch_up()


def test_changes_under_another_name_void_the_copy(source: Source) -> None:
    """It was renamed for a moment, and what happened to it then is in the log as another table's."""
    source.rows = {1: Row("a", "large one", 0), 2: Row("b", "large two", 0)}
    copy = Copy(source, busy=0)
    for block in range(BLOCKS):
        copy.read(block)
    away = replace(SCHEMA, table=TableId("public", "away"))
    source.now += 10
    gone = [Change(source.now - 5, 0, delete("2", None, None))]
    source.writer.append(source.now, [SliceRows(away, raw_changes(away, gone).batch, 0)])
    with pytest.raises(RangeVoid, match=r"was called public\.away for a while"):
        copy.catch_up()


def test_a_full_image_that_comes_later_ends_the_doubt(source: Source) -> None:
    copy = moved_behind_the_reader(source)
    source._unsealed.append(Change(source.now + 5, 0, update("1", "a3", "all new")))
    source.now += 10
    copy.catch_up()
    assert copy.asked == []
    assert copy.rows() == {1: ("a3", "all new"), 2: ("b", "large two")}


def test_a_copy_that_cannot_be_settled_says_so(source: Source) -> None:
    copy = moved_behind_the_reader(source)
    copy.busy, copy.rewrites = 0, 100
    with pytest.raises(Unresolved, match=r"1 rows changed .*read again 5 times"):
        copy.catch_up()
    assert len(copy.asked) == MOST_REREADS


def test_doubts_that_take_too_much_memory_end_the_copy_at_once(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = moved_behind_the_reader(source)
    monkeypatch.setattr("penstock.runtime.copy.replay.MOST_DOUBT_BYTES", 1)
    with pytest.raises(Unresolved, match=r"read again 0 times"):
        copy.catch_up()
