"""Pauses: a table that is paused stays behind alone and catches up; what is paused is not called delivered."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from loop_bench import ORDERS, PEOPLE, Bench, drain
from penstock.cli import main as cli
from penstock.config.load import load
from penstock.control.delivery import arrival
from penstock.control.status.gather import gather
from penstock.errors import CheckFailed, PenstockError
from penstock.model.position import Position
from penstock.model.table_state import State, TableProgress, TableStatus
from penstock.runtime.log_reader import LogNeed, Observe
from penstock.runtime.pause_watch import PauseWatch
from penstock.runtime.process.signals import SignalFlag
from penstock.runtime.retrying_reader import Reading, RetryingReader
from penstock.runtime.run_end import RunEndWatch
from penstock.runtime.source_side import SourceSide
from penstock.state.memory import MemoryStateStore
from penstock.state.sql import open_store
from pgoutput_messages import insert
from pipeline_files import pipeline_file
from publish_bench import PublishBench, stream_feed
from server_bench import NOON


def test_a_paused_table_of_a_lake_stays_behind_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    loop = bench.restart(ORDERS, PEOPLE)
    loop.begin(100)
    loop.pause(loop.tables[ORDERS.table], True)
    bench.seal(200, (ORDERS, 110, insert("1", "new")), (PEOPLE, 120, insert("2", "Ann", "x")))
    drain(bench)
    assert (bench.rows(ORDERS), len(bench.rows(PEOPLE))) == ([], 1)
    assert loop.level, "a run that is to end does not wait for it"
    bench.seal(300, (ORDERS, 210, insert("3", "new")), (PEOPLE, 220, insert("4", "Bo", "y")))
    drain(bench)
    assert (bench.rows(ORDERS), len(bench.rows(PEOPLE))) == ([], 2)
    assert min(one.position for one in loop.following) == 100, "the log is kept for it"
    loop.pause(loop.tables[ORDERS.table], False)
    drain(bench)
    assert [row[0] for row in bench.rows(ORDERS)] == [1, 3]
    assert loop.tables[ORDERS.table].level is None


def test_a_paused_table_of_a_stream_stays_behind_alone(tmp_path: Path) -> None:
    bench = PublishBench(tmp_path, stream_feed(ORDERS), stream_feed(PEOPLE))
    bench.loop.tables[ORDERS.table].paused = True
    bench.seal(200, (ORDERS, 110, insert("1", "new")), (PEOPLE, 120, insert("2", "Ann", "x")))
    bench.drain()
    assert bench.ids() == [2]
    assert bench.loop.is_level
    bench.seal(300, (ORDERS, 210, insert("3", "new")), (PEOPLE, 220, insert("4", "Bo", "y")))
    bench.drain()
    assert bench.ids() == [2, 4]
    assert bench.loop.needed_from <= 110, "the log is kept for it"
    bench.loop.tables[ORDERS.table].paused = False
    bench.drain()
    assert bench.ids(table="orders") == [1, 3]
    assert sorted(bench.ids()) == [1, 2, 3, 4]


class _Reading:
    """Counts its steps."""

    processed: Position = 0
    errored: tuple[str, ...] = ()
    followed, failure, wants_look = 1, None, False

    def __init__(self) -> None:
        self.steps = 0

    def log_need(self) -> LogNeed | None:
        return None

    def step(self, *, now: bool, stopping: Callable[[], bool]) -> bool:
        self.steps += 1
        return False

    def is_drained(self, until: Position) -> bool:
        return False

    def pass_over(self, before: Position) -> None:
        raise AssertionError

    def mark_all_errored(self, error: PenstockError) -> None:
        raise AssertionError

    def end(self) -> None:
        """Nothing is under way."""


class _Reader(RetryingReader):
    def __init__(self, file: Path, state: MemoryStateStore, side: SourceSide) -> None:
        super().__init__(load(file).destination_view("lake"), state, side, alone=True)
        self._pauses = PauseWatch(state, "lake", clock=iter(range(10**6)).__next__)  # every look is a fresh one
        self.reading, self.opened = _Reading(), 0

    def _open(self, cleanup: ExitStack) -> Reading:
        self.opened += 1
        return self.reading  # type: ignore[return-value]

    def begin_look(self) -> Observe:
        raise AssertionError


class _Stop(SignalFlag):
    """Is asked to wait instead of time passing, and may do something then."""

    def __init__(self, *acts: Callable[[], None]) -> None:
        super().__init__()
        self._acts = list(acts)

    def wait(self, timeout: float | None = None) -> bool:
        if self._acts:
            self._acts.pop(0)()
        else:
            self.set()
        return self.is_set()


def _side(until: Position | None) -> SourceSide:
    end = RunEndWatch.at(until, cast(Any, None))
    return SourceSide(end=end, **dict.fromkeys(_OTHERS))  # type: ignore[arg-type]


_OTHERS = ("log", "registry", "slot_position", "verified", "look", "look_soon", "begun", "connections")


def test_a_paused_destination_is_not_opened_and_not_written_to(tmp_path: Path) -> None:
    state = MemoryStateStore()
    state.set_pause("lake", None)
    reader = _Reader(pipeline_file(tmp_path), state, _side(None))
    seen: list[tuple[int, int, str]] = []

    def note() -> None:
        seen.append((reader.opened, reader.reading.steps, state.health()["destination lake"].state))

    def resume() -> None:
        note()
        state.lift_pause("lake", None)

    def pause() -> None:
        note()
        state.set_pause("", None)

    reader.run(_Stop(resume, pause, note, note))
    assert seen == [(0, 0, "paused"), (1, 1, "ok"), (1, 1, "paused"), (1, 1, "paused")]
    with pytest.raises(CheckFailed, match="destination lake is paused"):
        _Reader(pipeline_file(tmp_path), state, _side(5)).run(_Stop())


def test_pauses_by_command_are_shown_and_count_as_not_delivered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = pipeline_file(tmp_path)
    pipeline = load(file)
    store = open_store(pipeline.state_url)
    for table in (ORDERS.table, PEOPLE.table):
        store.set_table_status("lake", table, TableStatus(State.READY, NOON))
        store.record_progress("lake", {table: TableProgress(100, 5, 0.0, NOON, NOON)})
    store.set_processed("lake", 500)
    assert cli.main(["pause", str(file), "--table", "public.orders"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "table public.orders at lake is paused"
    found = {str(one.table): one for one in gather(pipeline).tables}
    assert {name: (one.paused, one.position) for name, one in found.items()} == {
        "public.orders": (True, 100),
        "public.people": (False, 500),
    }
    view = pipeline.destination_view("lake")
    assert arrival(view, 500, store.table_status("lake"), store.pauses()).missing == "1 table paused"
    assert cli.main(["pause", str(file)]) == 0
    assert cli.main(["resume", str(file), "--table", "public.orders"]) == 0
    assert "the pipeline is still paused" in capsys.readouterr().out
    assert arrival(view, 500, store.table_status("lake"), store.pauses()).missing == "2 tables paused"
    assert cli.main(["resume", str(file)]) == 0
    assert arrival(view, 500, store.table_status("lake"), store.pauses()).complete_to == 500
    assert [one.kind for one in store.events()] == ["paused", "paused", "resumed", "resumed"]
    assert cli.main(["pause", str(file), "--table", "public.none"]) == 2
    assert cli.main(["status", str(file), "--exit-code"]) == 1
    assert "the pipeline does not run" in capsys.readouterr().err
    store.close()
