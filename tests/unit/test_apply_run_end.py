"""Runs that end by themselves: at a position or moment, after changes or quiet, never within a transaction."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from loop_bench import ORDERS, PEOPLE, Bench, drain
from penstock.changelog.transactions import first_after
from penstock.cli import main as cli
from penstock.errors import SourceUnreachable
from penstock.runtime.run_end import RunEnd, RunEndWatch
from pgoutput_messages import insert
from pipeline_files import pipeline_file
from publish_bench import PublishBench, stream_feed


class _Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def _watch(bench: Bench | PublishBench, end: RunEnd, begins_at: int = 100) -> RunEndWatch:
    return RunEndWatch(end, bench.log, begins_at, head=lambda: 0)


def _three_transactions(bench: Bench | PublishBench) -> None:
    """In one segment: two changes at 110, one at 120, two at 130; then another one at 210."""
    bench.seal(
        200,
        (ORDERS, 110, insert("1", "a")),
        (ORDERS, 110, insert("2", "a")),
        (ORDERS, 120, insert("3", "a")),
        (ORDERS, 130, insert("4", "a")),
        (ORDERS, 130, insert("5", "a")),
    )
    bench.seal(300, (ORDERS, 210, insert("6", "a")))


@pytest.mark.parametrize(
    ("end", "rows", "position"),
    [
        (RunEnd(until=120), 2, 120),
        (RunEnd(until=121), 3, 121),
        (RunEnd(until=200), 5, 200),
        (RunEnd(max_changes=1), 2, 111),
        (RunEnd(max_changes=3), 3, 121),
        (RunEnd(max_changes=4), 5, 131),
        (RunEnd(max_changes=6), 6, 211),
        (RunEnd(until=120, max_changes=6), 2, 120),
        (RunEnd(until=210, max_changes=3), 3, 121),
    ],
)
def test_batches_stop_between_two_transactions_exactly_where_the_run_ends(
    bench: Bench, tmp_path: Path, end: RunEnd, rows: int, position: int
) -> None:
    bench.loop.close()
    watch = _watch(bench, end)
    bench.restart(bound=watch.bound)
    _three_transactions(bench)
    drain(bench)
    assert len(bench.rows(ORDERS)) == rows
    assert bench.loop.processed == position == watch.until
    assert bench.lake.position(ORDERS.table, "shop") == position

    stream = PublishBench(tmp_path / "other", stream_feed(ORDERS))
    stream.restart(bound=_watch(stream, end).bound)
    _three_transactions(stream)
    stream.drain()
    assert stream.ids() == list(range(1, rows + 1))
    assert stream.loop.processed == position
    stream.loop.close()
    stream.restart()
    stream.drain()
    assert stream.ids() == [1, 2, 3, 4, 5, 6], "the next run goes on within the segment"

    bench.loop.close()
    bench.restart()
    drain(bench)
    assert [row[0] for row in bench.rows(ORDERS)] == [1, 2, 3, 4, 5, 6]


def test_changes_are_counted_from_where_the_run_began(bench: Bench) -> None:
    bench.loop.close()
    _three_transactions(bench)
    watch = _watch(bench, RunEnd(max_changes=2), begins_at=121)
    bench.restart(bound=watch.bound)
    drain(bench)
    assert watch.until == 131


def test_a_table_that_is_behind_is_brought_to_the_end_of_the_run_within_a_segment(bench: Bench) -> None:
    bench.loop.close()
    bench.restart(bound=_watch(bench, RunEnd(until=131)).bound)
    bench.loop.pause(bench.loop.tables[ORDERS.table], paused=True)
    bench.seal(
        200, (PEOPLE, 110, insert("1", "a", "b")), (ORDERS, 130, insert("1", "a")), (ORDERS, 140, insert("2", "a"))
    )
    drain(bench)
    assert (len(bench.rows(PEOPLE)), bench.rows(ORDERS)) == (1, [])
    assert bench.loop.processed == 131
    bench.loop.pause(bench.loop.tables[ORDERS.table], paused=False)
    while not bench.loop.level:
        bench.loop.step(now=True)
    assert bench.rows(ORDERS) == [(1, "a")]


def test_copies_only_applies_nothing_and_is_at_its_end_from_the_start(bench: Bench) -> None:
    bench.loop.close()
    watch = _watch(bench, RunEnd(copies_only=True))
    bench.restart(bound=watch.bound)
    _three_transactions(bench)
    drain(bench)
    assert (bench.rows(ORDERS), bench.loop.processed, watch.until) == ([], 100, 0)


def test_a_moment_ends_the_run_at_the_first_later_transaction_or_when_it_has_passed(bench: Bench) -> None:
    bench.loop.close()
    early = _watch(bench, RunEnd(until=_at(1.2)))
    bench.restart(bound=early.bound)
    _three_transactions(bench)
    drain(bench)
    assert (len(bench.rows(ORDERS)), early.until) == (3, 130)

    clock, wall, is_away = _Clock(), _Clock(), [True]

    def head() -> int:
        if is_away[0]:
            raise SourceUnreachable("away", "")
        return 250

    late = RunEndWatch(RunEnd(until=_at(9.0)), bench.log, 100, head=head, clock=clock, now=wall)
    found = []
    for wall.time, is_away[0] in ((8.0, False), (10.0, True), (10.0, False)):
        clock.time += 1.0
        late.look()
        found.append(late.until)
    assert found == [None, None, 250], "still to come; the source cannot be asked; passed"
    bench.seal(1000, (ORDERS, 990, insert("7", "a")))
    assert first_after(bench.log, 1_150_000) == 120
    assert first_after(bench.log, 1_150_000, since=125) == 130
    assert first_after(bench.log, 9_900_000) is None


def _at(seconds: float) -> datetime:
    """Transactions of these tests commit at a hundredth of their position, in seconds."""
    return datetime.fromtimestamp(seconds, UTC)


def test_quiet_ends_the_run_once_the_log_has_all_that_the_source_wrote(bench: Bench) -> None:
    clock = _Clock()
    watch = RunEndWatch(RunEnd(idle=30.0), bench.log, 100, head=lambda: 260, clock=clock)
    clock.time = 29.0
    watch.look()
    bench.seal(200, (ORDERS, 110, insert("1", "a")))
    watch._looked_at = None
    watch.look()
    clock.time = 58.0
    watch.look()
    assert watch.until is None, "29 seconds since the change"
    clock.time = 60.0
    watch.look()
    clock.time = 61.0
    watch.look()
    assert watch.until is None, "the source is at 260, and the log at 200: what is between may be changes"
    bench.seal(300, (ORDERS, 250, insert("2", "a")))
    clock.time = 62.0
    watch.look()
    assert watch.until is None, "they were"
    clock.time = 93.0
    watch.look()
    clock.time = 94.0
    watch.look()
    assert watch.until == 260


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(pipeline_file(tmp_path))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--once", "--idle", "3s"], "--once and --idle are two ways to end a run"),
        (["--once", "--snapshot-only"], "--once and --snapshot-only are two ways to end a run"),
        (["--snapshot-only", "--until", "0/1"], "--snapshot-only and --until are two ways"),
        (["--until", "tomorrow"], "--until tomorrow is neither a position nor a time"),
        (["--idle", "3 fortnights"], "--idle 3 fortnights must be a number of seconds"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    file: str, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert cli.main(["run", file, *options]) == 2
    assert said in capsys.readouterr().err.replace("\n", " ")


def test_a_position_is_refused_with_several_sources(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = [
        {"name": name, "type": "postgres", "url": f"postgresql://app@127.0.0.1:1/{name}"} for name in ("eu", "us")
    ]
    file = str(pipeline_file(tmp_path, source=None, sources=sources))
    assert cli.main(["run", file, "--until", "0/16B3748"]) == 2
    assert "is a position of one source, and pipeline shop has 2" in capsys.readouterr().err.replace("\n", " ")
