"""Which segments may go: the oldest first, never the newest, never what a healthy table needs."""

from __future__ import annotations

from pathlib import Path

from penstock.changelog.chain import SegmentName
from penstock.changelog.log import ChangeLog
from penstock.changelog.retention import removable
from penstock.changelog.writer import SegmentWriter
from raw_rows import ORDERS, raw_slice

NOW = 10_000.0
CHAIN = [SegmentName(i * 10, i * 10 + 10, 0, f"{i}", 100, NOW - 100 + i) for i in range(5)]


def count(
    needed_from: int,
    held_from: int | None = None,
    replay: float = 0,
    max_bytes: int = 10_000,
    max_age: float = 1000.0,
) -> int:
    held = needed_from if held_from is None else held_from
    return removable(
        CHAIN, needed_from=needed_from, held_from=held, replay=replay, max_bytes=max_bytes, max_age=max_age, now=NOW
    )


def test_what_every_table_has_passed_may_go_but_never_the_newest() -> None:
    assert count(0) == 0
    assert count(9) == 0
    assert count(10) == 1
    assert count(39) == 3
    assert count(1000) == 4


def test_time_to_replay_keeps_young_segments() -> None:
    assert count(1000, replay=99) == 2


def test_an_errored_table_holds_the_log() -> None:
    assert count(1000, held_from=20) == 2


def test_it_holds_it_only_up_to_max_age() -> None:
    assert count(1000, held_from=0, max_age=98.5) == 2


def test_it_holds_it_only_up_to_max_bytes_with_headroom_for_capture() -> None:
    assert count(1000, held_from=0, max_bytes=400) == 3
    assert count(1000, held_from=0, max_bytes=699) == 1
    assert count(1000, held_from=0, max_bytes=5000) == 0


def test_max_bytes_never_takes_what_a_healthy_table_needs() -> None:
    assert count(20, held_from=0, max_bytes=100) == 2


def test_leftovers_go_before_the_segment_that_replaced_them(tmp_path: Path) -> None:
    log = ChangeLog(str(tmp_path))
    with SegmentWriter(log) as writer:
        writer.begin(100, "77")
        writer.advance(110)
        writer.advance(120)
        writer.append(200, [raw_slice(ORDERS, [150])])
        going = log.removable(needed_from=200, held_from=200, replay=0, max_bytes=10**9, max_age=10**9)
        assert [(name.start, name.end) for name in going] == [(100, 110), (100, 120)]
        for name in going:
            log.remove(name)
            assert log.end() == 200, "the chain is whole at every step"
        assert log.start() == 120


def test_parts_count_towards_their_segment(tmp_path: Path) -> None:
    log = ChangeLog(str(tmp_path))
    with SegmentWriter(log) as writer:
        writer.begin(100, "77")
        writer.write_part(150, [raw_slice(ORDERS, [150] * 1000)])
        writer.append(200, [])
        writer.append(300, [raw_slice(ORDERS, [250])])
    assert log.removable(needed_from=300, held_from=100, replay=0, max_bytes=50_000, max_age=10**9)
    assert not log.removable(needed_from=300, held_from=100, replay=0, max_bytes=500_000, max_age=10**9)
