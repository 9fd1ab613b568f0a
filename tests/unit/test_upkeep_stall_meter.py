"""How long batches are held up, and that what is done between them ends when they may not wait longer."""

from __future__ import annotations

import time

import pytest
from structlog.testing import capture_logs

from loop_bench import ORDERS, PEOPLE, Bench, LoopReader
from penstock.config.destinations import Maintenance
from penstock.config.model import LogConfig
from penstock.destinations.contract import JobRunner, MaintenanceReport
from penstock.model.table import TableId
from penstock.runtime.upkeep import housekeeping
from penstock.runtime.upkeep.housekeeping import Housekeeping
from penstock.runtime.upkeep.log_retention import LogRetention
from penstock.runtime.upkeep.stall_meter import StallMeter
from pgoutput_messages import insert


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("took", "since", "held"),
    [
        (3.0, 990.0, 3.0),  # the changes waited before: maintenance is not to blame for that
        (3.0, 1001.0, 2.0),  # they came meanwhile
        (3.0, 1004.0, 0.0),  # by a clock that is ahead
        (3.0, None, 0.0),  # nothing waits
        (0.01, 990.0, 0.0),  # it is not worth a look at the log
    ],
)
def test_a_batch_is_held_from_when_both_are_there(took: float, since: float | None, held: float) -> None:
    clock = Clock()
    holds = StallMeter(lambda: since, clock)
    with holds.between_batches():
        clock.now += took
    assert holds.longest == pytest.approx(held)


def test_the_longest_is_kept_and_told_with_what_took_most_of_it() -> None:
    clock = Clock()
    holds = StallMeter(lambda: 0.0, clock)
    with capture_logs() as said:
        for first, second in ((0.1, 0.2), (0.2, 0.05), (0.6, 0.5), (1.5, 1.0), (2.1, 0.1)):
            with holds.between_batches():
                with holds.part("first"):
                    clock.now += first
                with holds.part("second"):
                    clock.now += second
    told = [(one["log_level"], one["seconds"], one["by"]) for one in said]
    assert told == [
        ("info", 0.3, "second"),
        ("info", 1.1, "first"),
        ("warning", 2.5, "first"),
        ("warning", 2.2, "first"),  # it is not the longest, but too long
    ]
    assert holds.longest == pytest.approx(2.5)


def test_what_fails_holds_nobody() -> None:
    clock = Clock()
    holds = StallMeter(lambda: 0.0, clock)

    def fail() -> None:
        clock.now += 10
        raise OSError("away")

    with pytest.raises(OSError, match="away"), holds.between_batches():
        fail()
    assert holds.longest == 0


def test_the_log_says_whether_a_batch_waits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    takes = 0.06

    def maintain(target: TableId, source: str, run: JobRunner) -> MaintenanceReport:
        time.sleep(takes)
        return MaintenanceReport()

    monkeypatch.setattr(bench.lake, "maintain", maintain)
    keeper = Housekeeping(bench.loop, Maintenance())
    bench.seal(150)
    keeper.run()
    assert keeper.holds.longest == 0, "an empty segment is no batch"
    bench.seal(200, (ORDERS, 160, insert("1", "a")))
    with capture_logs() as said:
        keeper.run()
    (told,) = [one for one in said if one["event"] == "batch held up"]
    assert told["by"].startswith("maintenance of public.")
    assert keeper.holds.longest >= 0.06
    while bench.loop.step(now=True):
        pass
    takes = before = keeper.holds.longest
    keeper.run()
    assert keeper.holds.longest == before, "all had been applied"


def test_idle_tables_move_on_a_few_at_a_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "ADVANCED_TOGETHER", 1)
    keeper = Housekeeping(bench.loop, Maintenance(pause=0.0, advance_idle_every=0.0))
    found = []
    for end in (200, 300, 400):
        bench.seal(end)
        bench.loop.step(now=True)
        keeper.run()
        found.append([bench.lake.position(table.table, "shop") for table in (ORDERS, PEOPLE)])
    assert found == [[200, 100], [200, 300], [400, 300]]


def test_segments_go_a_few_at_a_time(bench: Bench) -> None:
    for end in (200, 300, 400, 500):
        bench.seal(end, (ORDERS, end - 50, insert(str(end), "a")))
        bench.loop.step(now=True)
    keeper = Housekeeping(bench.loop, Maintenance(advance_idle_every=0.0))
    keeper.run()
    retention = LogRetention(bench.log, LogConfig(), [LoopReader(bench.loop)], lambda needs: needs["lake"])
    retention.retain(until=0.0)
    assert bench.log.start() == 200
    retention.retain()
    assert bench.log.start() == 400
