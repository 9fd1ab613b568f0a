"""A table without a key under REPLICA IDENTITY FULL in the apply loop: equal, or copied again, or Errored."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event

import pyarrow as pa
import pytest

from bag_source import Source
from loop_bench import Bench, drain, huge_beyond
from penstock.changelog.log import ChangeLog
from penstock.changelog.segment import SliceRows
from penstock.changelog.writer import SegmentWriter
from penstock.config.model import BatchConfig
from penstock.decode.schema import arrow_schema
from penstock.destinations.contract import InProcessRunner
from penstock.destinations.memory import MemoryDestination
from penstock.errors import RangeVoid, RowsMissing
from penstock.model.feed import Feed, Mode, Projection
from penstock.model.table import Column, TableId, TableSchema
from penstock.model.table_state import State
from penstock.runtime.apply.loop import MOST_RESYNCS
from penstock.runtime.copy.replay import FinishedRange, catch_up
from pgoutput_messages import INT8, RELATION, TEXT, delete, insert, raw_changes, update

BAG = TableSchema(
    TableId("public", "bag"), RELATION, (Column("a", INT8, number=1), Column("note", TEXT, number=2)), (), "full"
)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "log")
    made.restart(BAG)
    yield made
    made.loop.close()
    made.writer.__exit__(None, None, None)


def status(bench: Bench) -> tuple[State, str]:
    found = bench.state.table_status("lake")[BAG.table]
    return found.state, found.reason


def disturb(source: Source, chance: random.Random, steps: int) -> None:
    for _ in range(steps):
        number = chance.randrange(len(source.rows)) if source.rows else None
        row = chance.choice(["1", "2", None]), chance.choice(["x" * 30, "y", None])
        kind = chance.choices(["insert", "again", "update", "delete", "truncate"], [5, 3, 6, 5, 0.2])[0]
        if kind == "insert" or number is None:
            source.insert(row)
        elif kind == "again":
            source.insert(source.rows[number])
        elif kind == "update":
            source.update(number, row, [chance.random() < 0.5] * 2)
        elif kind == "delete":
            source.delete(number)
        else:
            source.truncate()


def typed(source: Source) -> Counter[tuple[object, ...]]:
    return Counter((None if a is None else int(str(a)), note) for a, note in source.rows)


def held(bench: Bench) -> Counter[tuple[object, ...]]:
    return Counter(tuple(row.values()) for row in bench.lake.rows(BAG.table).to_pylist())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("huge", [False, True])
def test_batches_leave_an_equal_multiset(bench: Bench, monkeypatch: pytest.MonkeyPatch, seed: int, huge: bool) -> None:
    """Also where a transaction is so large that it is shared out by row, where commits fail, and after restarts."""
    chance, source = random.Random(seed), Source()
    if huge:
        huge_beyond(monkeypatch, 400)
        bench.runner.by = InProcessRunner(3)
    for number in range(1, 13):
        begin = len(source.changes)
        disturb(source, chance, chance.choice([3, 40]))
        sent = [change.message for change, _ in source.changes[begin:]]
        bench.seal(100 * (number + 1), *((BAG, 100 * number + 10, message) for message in sent))
        bench.lake.failures = [chance.choice(["", "stale", "unknown, done", "unknown, not done"])]
        drain(bench)
        if chance.random() < 0.3:
            bench.restart(BAG)
        assert held(bench) == typed(source)
        assert status(bench) == (State.READY, "")


def test_a_row_that_the_lake_lacks_has_the_table_copied_again(bench: Bench) -> None:
    bench.seal(200, (BAG, 110, insert("1", "one")))
    drain(bench)
    bench.seal(300, (BAG, 210, update("2", "two", row=("1", "another"))))
    drain(bench)
    state, why = status(bench)
    assert state is State.INIT
    assert "removed 1 row(s) that the destination does not have" in why
    assert bench.loop.resyncs.get() == (BAG.table, why)
    assert held(bench) == Counter([(1, "one")]), "nothing of the batch"
    [count] = bench.state.anomalies("lake")[BAG.table]
    assert (count.kind, count.changes) == ("row", 1)


def test_a_copy_that_does_not_help_is_not_made_for_ever(bench: Bench) -> None:
    for number in range(1, MOST_RESYNCS + 2):
        end = 100 * (number + 1)
        bench.seal(end, (BAG, end - 50, delete("9", "never", full=True)))
        drain(bench)
        expected = State.INIT if number <= MOST_RESYNCS else State.ERRORED
        assert status(bench)[0] is expected
        assert bench.state.table_status("lake")[BAG.table].retry == ("at once" if expected is State.INIT else "manual")
        tracked = bench.loop.tables[BAG.table]
        bench.lake.advance(BAG.table, "shop", tracked.position, end)
        tracked.errored = False


@pytest.mark.parametrize(("before", "after"), [("full", "nothing"), ("nothing", "full")])
def test_another_identity_has_the_table_copied_again(bench: Bench, before: str, after: str) -> None:
    was, now = replace(BAG, identity=before), replace(BAG, identity=after)
    bench.store.tables.clear()
    bench.restart(was)
    bench.seal(200, (was, 110, insert("1", "one")))
    bench.seal(300, (now, 210, insert("2", "two")))
    drain(bench)
    state, why = status(bench)
    assert (state, f"identity changed from {before} to {after}" in why) == (State.INIT, True)


def test_an_appended_table_stays_as_it_is_with_another_identity(bench: Bench) -> None:
    feed = Feed(TableId("public", "all"), BAG.table, TableId("public", "all"), Mode.APPEND)
    was = replace(BAG, identity="nothing")
    bench.restart()
    bench.follow(feed, was)
    bench.loop.begin(100)
    bench.seal(200, (was, 110, insert("1", "one")))
    bench.seal(300, (BAG, 210, insert("1", "one")), (BAG, 220, delete("1", "one", full=True)))
    drain(bench)
    assert bench.rows(BAG, feed.target) == [(1, "one")] * 2
    bench.seal(400, (BAG, 310, update("2", "two", row=("1", "one"))))
    drain(bench)
    found = bench.state.table_status("lake")[feed.name]
    assert (found.state, "UPDATE of a table without a key" in found.reason) == (State.ERRORED, True)


def test_rows_that_are_not_kept_are_neither_removed_nor_added(bench: Bench) -> None:
    kept = replace(Feed.clone(BAG.table), projection=Projection(where="a >= 2", constants=(("origin", "shop"),)))
    bench.store.tables.clear()
    bench.restart()
    bench.follow(kept, BAG)
    bench.loop.begin(100)
    bench.seal(
        200,
        (BAG, 110, insert("1", "one")),
        (BAG, 110, insert("2", "two")),
        (BAG, 120, update("3", "one", row=("1", "one"))),
        (BAG, 130, update("1", "two", row=("2", "two"))),
    )
    bench.seal(300, (BAG, 210, delete("1", "two", full=True)))
    drain(bench)
    assert bench.rows(BAG) == [(3, "one", "shop")]
    assert status(bench)[0] is State.READY


class Copying:
    """A table whose snapshot was taken in the middle of a log."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.log, self.source, chance = ChangeLog(str(folder)), Source(), random.Random(seed)
        with SegmentWriter(self.log) as writer:
            writer.begin(100, "1")
            for number in range(1, 9):
                begin = len(self.source.changes)
                disturb(self.source, chance, 20)
                sent = [replace(change, commit_position=100 * number + 10) for change, _ in self.source.changes[begin:]]
                writer.append(100 * (number + 1), [SliceRows(BAG, raw_changes(BAG, sent).batch, 0)])
                if number == 3:
                    self.snapshot = [(None if a is None else int(str(a)), note) for a, note in self.source.rows]
        self.lake = MemoryDestination()
        self.lake.ensure_table(BAG.table, BAG, "shop", None)

    def caught_up(self, schema: TableSchema = BAG) -> int | None:
        plan = self.lake.plan_copy(BAG.table, "shop", schema)
        rows = [dict(zip(("a", "note"), row, strict=True)) for row in self.snapshot]
        half = len(rows) // 2
        parts = [
            plan.write_rows([pa.Table.from_pylist(some, schema=arrow_schema(BAG))])
            for some in (rows[:half], rows[half:])
        ]
        ranges = [FinishedRange(part, 400) for part in parts]
        return catch_up(
            self.lake,
            InProcessRunner(),
            self.log,
            limits=BatchConfig(max_changes=30),
            source="shop",
            feed=Feed.clone(BAG.table),
            schema=schema,
            ranges=ranges,
            taken_at=400,
            moment=0,
            stop=Event(),
            reread=lambda _: ranges[0],
            rescuing=lambda _: None,
            keep=lambda _: None,
        )


@pytest.mark.parametrize("seed", range(3))
def test_a_copy_and_the_log_behind_it_make_an_equal_multiset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr("penstock.runtime.copy.replay.FEW_CHANGES", 1)
    copying = Copying(tmp_path, seed)
    assert copying.caught_up() == 900
    assert Counter(tuple(row.values()) for row in copying.lake.rows(BAG.table).to_pylist()) == typed(copying.source)


def test_a_copy_that_lacks_a_row_is_not_committed(tmp_path: Path) -> None:
    copying = Copying(tmp_path, 1)
    copying.snapshot = []
    with pytest.raises(RowsMissing):
        copying.caught_up()
    assert copying.lake.position(BAG.table, "shop") is None


def test_a_copy_of_another_identity_is_void(tmp_path: Path) -> None:
    with pytest.raises(RangeVoid, match="replica identity changed from nothing to full"):
        Copying(tmp_path, 1).caught_up(replace(BAG, identity="nothing"))
