"""Several readers of one log, without a source: who holds it, who lets go, and whose failure ends what."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from loop_bench import ORDERS, Bench, LoopReader, drain
from penstock.config.commit_policy import CommitPolicy
from penstock.config.model import LogConfig, Pipeline
from penstock.destinations.contract import InProcessRunner
from penstock.destinations.memory import MemoryDestination
from penstock.errors import DestinationUnreachable, LogDamaged, PenstockError, SchemaChanged
from penstock.model.position import Position
from penstock.model.table_state import State
from penstock.runtime.apply.loop import ApplyLoop
from penstock.runtime.apply.target_claims import TargetClaims
from penstock.runtime.commit_policy import needed_by
from penstock.runtime.destination_pipeline import DestinationPipeline, FirstLook
from penstock.runtime.log_reader import EVERYTHING, NEVER, LogNeed, LogReader
from penstock.runtime.process.failures import failures_as_one
from penstock.runtime.process.signals import SignalFlag
from penstock.runtime.reader_thread import ReaderThread
from penstock.runtime.run_end import RunEndWatch
from penstock.runtime.source_side import SourceSide
from penstock.runtime.upkeep.log_retention import LogRetention
from pgoutput_messages import insert

NEEDS = {"a": LogNeed(500, 400), "b": LogNeed(300, 300), "c": LogNeed(100, 50)}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "log")
    made.restart(ORDERS)
    yield made
    made.loop.close()
    made.writer.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("among", "least", "needed"), [("ab", 2, 300), ("abc", 3, 100), ("abc", 2, 300), ("abc", 1, 500), ("a", 1, 500)]
)
def test_the_policy_says_who_holds_the_log(among: str, least: int, needed: Position) -> None:
    assert needed_by(CommitPolicy(frozenset(among), least), NEEDS) == LogNeed(needed, 50), "the others up to the limits"
    unknown = needed_by(CommitPolicy(frozenset(among), least), {**NEEDS, "a": EVERYTHING})
    assert unknown.held_from == 0, "one that has not begun may need everything"


@pytest.mark.parametrize(
    ("failed", "least", "needed"),
    [("a", 2, 100), ("a", 1, 300), ("a", 3, 100), ("b", 2, 100), ("c", 2, 300), ("ab", 2, 100), ("abc", 2, NEVER)],
)
def test_one_that_failed_for_good_does_not_count_as_the_most_advanced(
    failed: str, least: int, needed: Position
) -> None:
    needs = {name: need.only_held() if name in failed else need for name, need in NEEDS.items()}
    assert needed_by(CommitPolicy(frozenset("abc"), least), needs) == LogNeed(needed, 50)


class Slow(LoopReader):
    """A reader of another destination that stands still, and answers when it is told to."""

    def __init__(self, loop: ApplyLoop, need: Position) -> None:
        super().__init__(loop, "slow")
        self.need, self.asked = need, 0

    @property
    def log_need(self) -> LogNeed:
        return LogNeed(self.need, self.need)

    def let_go(self, before: Position) -> bool:
        self.asked = max(self.asked, before)
        return self.need >= before


def filled(bench: Bench) -> None:
    for end in (200, 300, 400, 500):
        bench.seal(end, (ORDERS, end - 50, insert(str(end), "a")))
    drain(bench)


@pytest.mark.parametrize("required", [True, False])
def test_the_log_keeps_what_the_slow_one_needs_as_long_as_the_policy_or_room_says(
    bench: Bench, required: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(bench)
    slow = Slow(bench.loop, 200)
    among = frozenset({"lake", "slow"} if required else {"lake"})
    readers, needed = [LoopReader(bench.loop), slow], partial(needed_by, CommitPolicy(among, len(among)))
    LogRetention(bench.log, LogConfig(), readers, needed).retain()
    assert bench.log.start() == 200, "there is room"
    pressed = LogRetention(bench.log, LogConfig(max_bytes=1), readers, needed)
    pressed.retain()
    assert bench.log.start() == 200
    assert slow.asked == (200 if required else 400), "a reader is asked before anything goes under it"
    if not required:
        slow.need = 400
        pressed.retain()
        assert bench.log.start() == 400
        bench.seal(600, (ORDERS, 550, insert("9", "a")))
        drain(bench)
        monkeypatch.setattr("penstock.runtime.upkeep.log_retention.PATIENCE", -1.0)
        pressed.retain()
        assert bench.log.start() == 500, "one that does not answer has only itself to blame"


def test_a_reader_that_the_log_has_passed_copies_its_clones_again(bench: Bench) -> None:
    filled(bench)
    bench.seal(600, (ORDERS, 550, insert("600", "a")))
    reader = LoopReader(bench.loop)
    reader.let_go(500)
    assert bench.loop.resyncs.empty(), "what it has read it does not miss"
    reader.let_go(600)
    assert bench.loop.resyncs.get_nowait()[0] == ORDERS.table
    assert bench.state.table_status("lake")[ORDERS.table].state is State.INIT
    assert bench.loop.processed == 600


def reading(
    bench: Bench, folder: Path, failures: list[PenstockError], *, once: bool = False, alone: bool = False
) -> DestinationPipeline:
    described: dict[str, Any] = {
        "version": 1,
        "name": "shop",
        "source": {"type": "postgres", "url": "postgresql://127.0.0.1:1/shop"},
        "tables": [{"match": "public.*"}],
        "destinations": [{"type": "iceberg", "name": name, "warehouse": name} for name in ("lake", "other")],
    }
    pipeline = Pipeline.model_validate(described, context={"folder": folder})

    def opened() -> MemoryDestination:
        if failures:
            raise failures.pop(0)
        return bench.lake

    side = SourceSide(
        log=bench.log,
        registry=cast(Any, None),
        slot_position=100,
        end=RunEndWatch.at(100 if once else None, bench.log),
        verified=lambda: True,
        look=lambda observe: None,
        look_soon=lambda: None,
        begun=lambda: None,
        connections=cast(Any, None),
    )
    return DestinationPipeline(
        pipeline.destination_view("lake"),
        bench.state,
        opened=opened,
        runner=InProcessRunner(),
        side=side,
        first=cast(FirstLook, None),
        claims=TargetClaims(),
        progress=cast(Any, None),
        alone=alone,
    )


AWAY = DestinationUnreachable("the lake is not there", "Bring it back")


@pytest.mark.parametrize(("once", "alone"), [(True, False), (False, True)])
def test_one_that_cannot_begin_is_not_retried_when_nothing_else_runs_or_the_run_is_to_end(
    bench: Bench, tmp_path: Path, once: bool, alone: bool
) -> None:
    reader = reading(bench, tmp_path, [AWAY], once=once, alone=alone)
    with pytest.raises(DestinationUnreachable):
        reader.run(SignalFlag())
    assert bench.state.health()["destination lake"].state == "failed"


def test_one_that_is_away_is_retried_alone_until_it_fails_for_good_and_holds_the_whole_log(
    bench: Bench, tmp_path: Path
) -> None:
    lost = SchemaChanged("somebody else's warehouse", "Name another one")
    reader = reading(bench, tmp_path, [AWAY, AWAY, lost])
    thread = ReaderThread(reader, SignalFlag(), alone=False)
    thread.start()
    deadline = time.monotonic() + 30
    while "destination lake" not in bench.state.health() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (reader.processed, reader.log_need) == (0, EVERYTHING)
    assert reader.let_go(300), "nobody reads now"
    thread.join()
    assert thread.failure is lost
    assert not thread.has_drained
    health = bench.state.health()["destination lake"]
    assert (health.state, health.message) == ("failed", lost.what)
    assert reader.log_need == LogNeed(NEVER, 0), "it holds the log, and needs none of it"


def test_one_of_the_policy_that_failed_for_good_holds_the_log_up_to_its_limits(bench: Bench, tmp_path: Path) -> None:
    filled(bench)
    failed = reading(bench, tmp_path, [SchemaChanged("somebody else's warehouse", "Name another one")])
    with pytest.raises(SchemaChanged):
        failed.run(SignalFlag())
    readers: list[LogReader] = [LoopReader(bench.loop, "other"), failed]
    needed = partial(needed_by, CommitPolicy(frozenset({"lake", "other"}), 2))
    LogRetention(bench.log, LogConfig(), readers, needed).retain()
    assert bench.log.start() == 100, "there is room"
    LogRetention(bench.log, LogConfig(max_bytes=1), readers, needed).retain()
    assert bench.log.start() == 400


def test_a_gap_ends_one_that_has_not_begun(bench: Bench, tmp_path: Path) -> None:
    reader = reading(bench, tmp_path, [])
    damaged = LogDamaged("a segment is missing", "Reset")
    reader.give_up(damaged)
    with pytest.raises(LogDamaged):
        reader.run(SignalFlag())


def test_failures_of_several_are_told_together() -> None:
    one = failures_as_one("destination", {"lake": AWAY}, 2)
    assert isinstance(one, DestinationUnreachable)
    assert one.what == "destination lake: the lake is not there"
    both = failures_as_one("destination", {"lake": AWAY, "other": AWAY}, 2)
    assert "2 of 2 destinations failed" in getattr(both, "what", "")
    assert failures_as_one("destination", {"lake": AWAY}, 1) is AWAY
