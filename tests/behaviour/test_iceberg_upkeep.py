"""Maintenance beside batches: merges that take long, and sweeps. Batches go on, whatever happens meanwhile."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyspark.sql import SparkSession

from destination_rows import ORDERS, SOURCE, START, Lake, Row, apply, iceberg_config, iceberg_lake, net, ordered, write
from penstock.destinations.contract import InProcessRunner, MaintenanceReport
from penstock.destinations.iceberg.destination import IcebergDestination
from penstock.destinations.lake import compaction_tasks, deferred_deletes, orphan_sweep
from penstock.destinations.lake.compaction import CountHits, MergeData, MoveDeletes
from penstock.destinations.lake.storage import remove
from penstock.errors import DestinationUnreachable, StaleBase

Task = TypeVar("Task")
Result = TypeVar("Result")
LONG = 60.0


class HeldRunner:
    """Merges, or other tasks of one kind, wait until they are let go."""

    slots = 1

    def __init__(self, kind: type = MergeData) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self._kind = kind

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        if any(isinstance(task, self._kind) for task in tasks):
            self.begun.set()
            assert self.go.wait(LONG)
        return InProcessRunner().run(function, tasks)


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """One in which every merge is worth a job."""
    monkeypatch.setattr(compaction_tasks, "WORTH_A_JOB", 0)
    config = iceberg_config(tmp_path, compact_files=4, expire_every=1000, sweep_age=3600)
    return iceberg_lake(spark, tmp_path, config)


def opened(lake: Lake) -> IcebergDestination:
    driver = lake.driver()
    driver.ensure_table(ORDERS.table, ORDERS, SOURCE, START)
    assert isinstance(driver, IcebergDestination)
    return driver


def rows(numbers: Sequence[int], note: str = "x") -> list[Row]:
    return [{"id": n, "amount": n, "note": note} for n in numbers]


def parquet(lake: Lake) -> set[str]:
    return {path.name for path in (lake.warehouse / "public" / "orders" / "data").glob("*.parquet")}


def ended(driver: IcebergDestination, runner: Any) -> MaintenanceReport:
    """Calls until what goes on beside batches has been ended."""
    until = time.monotonic() + LONG
    while time.monotonic() < until:
        report = driver.maintain(ORDERS.table, SOURCE, runner)
        if report.did_something:
            return report
        time.sleep(0.01)
    raise AssertionError("it does not end")


def begun(driver: IcebergDestination, kind: type = MergeData) -> HeldRunner:
    """A merge of all that is there, or something else that takes long, that has begun and waits."""
    runner = HeldRunner(kind)
    assert not driver.maintain(ORDERS.table, SOURCE, runner).did_something
    assert runner.begun.wait(LONG)
    return runner


def filled(driver: IcebergDestination) -> dict[int, Row]:
    """Four files, with rows that are dead in all but the last."""
    held: dict[int, Row] = {}
    for batch in range(4):
        upserts = rows(range(batch * 10, batch * 10 + 25), f"{batch}")
        apply(driver, ORDERS, START + 1 + batch, net(ORDERS, upserts, [{"id": batch}] if batch else []))
        held |= {row["id"]: row for row in upserts}
        if batch:
            held.pop(batch)
    return held


def test_rows_that_end_while_their_files_are_merged(lake: Lake) -> None:
    driver = opened(lake)
    held = filled(driver)
    files = parquet(lake)
    runner = begun(driver)
    for batch in range(3):
        upserts = [
            {"id": 20 + batch, "amount": -1, "note": None},
            *rows(range(batch * 7, batch * 7 + 5), f"late {batch}"),
        ]
        fetches = [("note", 0, {"id": 20 + batch})]
        deleted = [30 + batch, 54 - batch, 5]
        apply(driver, ORDERS, START + 10 + batch, net(ORDERS, upserts, [{"id": n} for n in deleted], fetches=fetches))
        held |= {row["id"]: row for row in upserts} | {20 + batch: {**held[20 + batch], "amount": -1}}
        for number in deleted:
            held.pop(number, None)
        assert not driver.maintain(ORDERS.table, SOURCE, runner).did_something
        assert lake.rows(ORDERS) == ordered(ORDERS, list(held.values()))
    runner.go.set()
    report = ended(driver, runner)
    assert (report.merged_files, files & parquet(lake)) == (4, files), "old files stay until they expire"
    assert lake.rows(ORDERS) == ordered(ORDERS, list(held.values()))
    carried, anew = driver.plan(ORDERS.table, SOURCE), opened(lake).plan(ORDERS.table, SOURCE)
    assert sorted(carried.files, key=lambda file: file.path) == sorted(anew.files, key=lambda file: file.path)
    driver = opened(lake)
    for batch in range(8):
        upserts = rows(range(batch * 5, batch * 5 + 8), f"after {batch}")
        apply(driver, ORDERS, START + 20 + batch, net(ORDERS, upserts, [{"id": 50 - batch}]))
        held |= {row["id"]: row for row in upserts}
        held.pop(50 - batch, None)
        driver.maintain(ORDERS.table, SOURCE, InProcessRunner())
        assert lake.rows(ORDERS) == ordered(ORDERS, list(held.values()))
    driver.close()


def test_the_first_rows_of_a_table_end_while_its_files_are_merged(lake: Lake) -> None:
    driver = opened(lake)
    for batch in range(4):
        apply(driver, ORDERS, START + 1 + batch, net(ORDERS, rows(range(batch * 10, batch * 10 + 10))))
    runner = begun(driver)
    apply(driver, ORDERS, START + 9, net(ORDERS, rows(range(5, 8), "late"), [{"id": 39}]))
    runner.go.set()
    assert ended(driver, runner).merged_files == 4
    kept = [n for n in range(39) if n not in range(5, 8)]
    assert lake.rows(ORDERS) == ordered(ORDERS, rows(kept) + rows(range(5, 8), "late"))
    driver.close()


def test_rows_end_while_a_merge_follows_up_what_ended_before(lake: Lake) -> None:
    driver = opened(lake)
    held = filled(driver)
    merging = begun(driver)
    apply(driver, ORDERS, START + 10, net(ORDERS, rows(range(20, 30), "late"), [{"id": 40}]))
    merging.go.set()
    merged_by(driver)
    moving = begun(driver, MoveDeletes)
    apply(driver, ORDERS, START + 11, net(ORDERS, rows(range(25, 35), "later"), [{"id": 41}, {"id": 20}]))
    assert not driver.maintain(ORDERS.table, SOURCE, moving).did_something
    held |= {row["id"]: row for row in (*rows(range(20, 30), "late"), *rows(range(25, 35), "later"))}
    held = {number: row for number, row in held.items() if number not in (20, 40, 41)}
    assert lake.rows(ORDERS) == ordered(ORDERS, list(held.values()))
    moving.go.set()
    assert ended(driver, moving).merged_files == 4
    assert lake.rows(ORDERS) == ordered(ORDERS, list(held.values()))
    carried, anew = driver.plan(ORDERS.table, SOURCE), opened(lake).plan(ORDERS.table, SOURCE)
    assert sorted(carried.delete_files) == sorted(anew.delete_files)
    apply(opened(lake), ORDERS, START + 12, net(ORDERS, rows([21, 50], "after"), [{"id": 34}, {"id": 53}]))
    held |= {row["id"]: row for row in rows([21, 50], "after")}
    held = {number: row for number, row in held.items() if number not in (34, 53)}
    assert lake.rows(ORDERS) == ordered(ORDERS, list(held.values()))
    driver.close()


def merged_by(driver: IcebergDestination) -> None:
    """Waits for the files of the merge that goes on, which is not committed then."""
    merging = driver._tables.known(ORDERS.table, SOURCE).upkeep.merging
    assert merging is not None
    assert any(merging.written.result(LONG))


def test_what_was_merged_and_not_committed_goes_with_the_run(lake: Lake) -> None:
    driver = opened(lake)
    held = filled(driver)
    runner = begun(driver)
    apply(driver, ORDERS, START + 10, net(ORDERS, rows(range(20, 30), "late")))
    files = parquet(lake)
    runner.go.set()
    merged_by(driver)
    assert files < parquet(lake)
    driver.close()
    assert files == parquet(lake)
    held |= {row["id"]: row for row in rows(range(20, 30), "late")}
    assert lake.rows(ORDERS) == ordered(ORDERS, list(held.values()))


def test_batches_go_on_while_delete_files_of_an_earlier_run_are_counted(lake: Lake) -> None:
    first = opened(lake)
    held = filled(first)
    first.close()
    driver = opened(lake)
    runner = begun(driver, CountHits)
    apply(driver, ORDERS, START + 10, net(ORDERS, rows(range(3), "new"), [{"id": 40}]))
    assert not driver.maintain(ORDERS.table, SOURCE, runner).did_something
    held |= {row["id"]: row for row in rows(range(3), "new")}
    held.pop(40)
    runner.go.set()
    assert ended(driver, runner).merged_files == 5
    assert lake.rows(ORDERS) == ordered(ORDERS, list(held.values()))
    driver.close()


def test_a_table_is_truncated_while_it_is_merged(lake: Lake) -> None:
    driver = opened(lake)
    filled(driver)
    runner = begun(driver)
    apply(driver, ORDERS, START + 10, net(ORDERS, rows(range(3), "new"), truncated=True))
    before = parquet(lake)
    runner.go.set()
    driver.close()
    again = opened(lake)
    assert lake.rows(ORDERS) == rows(range(3), "new")
    assert parquet(lake) <= before
    again.close()


def test_a_merge_whose_files_were_removed_as_leftovers_is_refused(lake: Lake) -> None:
    driver = opened(lake)
    held = filled(driver)
    runner = begun(driver)
    runner.go.set()
    merged_by(driver)
    other = opened(lake)
    driver.plan(ORDERS.table, SOURCE)
    with pytest.raises(StaleBase):
        ended(driver, runner)
    assert lake.rows(ORDERS) == ordered(ORDERS, list(held.values()))
    other.close()
    driver.close()


def test_sweeping_goes_on_after_a_kill_and_leaves_what_is_needed(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = opened(lake)
    held = filled(driver)
    assert ended(driver, InProcessRunner()).merged_files == 4
    expire_without_removing(driver)  # as one that was killed before it had removed a file
    plan = driver.plan(ORDERS.table, SOURCE)
    parts = write(plan, net(ORDERS, rows(range(5), "slow")))  # whose writer is slower than any safe age
    folders = [lake.warehouse / "public" / "orders" / name for name in ("data", "metadata")]
    for path in [path for folder in folders for path in folder.iterdir()]:
        os.utime(path, (0, 0))
    young, foreign = folders[0] / "penstock-young.parquet", folders[0] / "theirs.parquet"
    foreign.touch()
    os.utime(foreign, (0, 0))
    before = [path.name for folder in folders for path in folder.iterdir()]
    (marker,) = (tmp_path / "index").rglob("*.swept")
    os.utime(marker, (0, 0))
    left = 3

    def killed(location: str) -> None:
        nonlocal left
        if left == 0:
            raise OSError("killed")
        left -= 1
        remove(location)

    monkeypatch.setattr(deferred_deletes, "remove", killed)
    with pytest.raises(DestinationUnreachable):
        ended(driver, InProcessRunner())
    monkeypatch.setattr(deferred_deletes, "remove", remove)
    monkeypatch.setattr(orphan_sweep, "AT_ONCE", 4)
    again = lake.driver()
    again.ensure_table(ORDERS.table, ORDERS, SOURCE, START)
    assert isinstance(again, IcebergDestination)
    young.touch()
    assert again.maintain(ORDERS.table, SOURCE, InProcessRunner()).shape is not None
    swept = 0
    while marker.stat().st_mtime == 0:
        swept += ended(again, InProcessRunner()).swept_files
    after = [path.name for folder in folders for path in folder.iterdir()]
    assert swept > 8
    assert len(after) < len(before) - 8
    assert {young.name, foreign.name} <= set(after)
    assert lake.rows(ORDERS) == ordered(ORDERS, list(held.values()))
    with pytest.raises(StaleBase):
        driver.commit(plan, parts, truncated=False, position=START + 50)
    apply(again, ORDERS, START + 50, net(ORDERS, rows(range(5), "again")))
    held |= {row["id"]: row for row in rows(range(5), "again")}
    assert lake.rows(ORDERS) == ordered(ORDERS, list(held.values()))
    assert not is_sweeping(again), "the next one is not due"
    again.close()


def expire_without_removing(driver: IcebergDestination) -> None:
    table = driver._tables.known(ORDERS.table, SOURCE).table
    expiry = table.expireSnapshots().expireOlderThan(int((time.time() + 60) * 1000)).retainLast(1)
    expiry.cleanExpiredFiles(False).commit()


def is_sweeping(driver: IcebergDestination) -> bool:
    report = driver.maintain(ORDERS.table, SOURCE, InProcessRunner())
    return report.shape is not None and report.shape.doing == "sweeping"


def test_a_random_life_with_merges_beside_it(lake: Lake) -> None:
    chance = random.Random(7)
    driver = opened(lake)
    held: dict[int, Row] = {}
    runner = HeldRunner()
    merged = 0
    for batch in range(60):
        upserts = rows(sorted(chance.sample(range(60), chance.randrange(1, 20))), f"{batch}")
        there = {row["id"] for row in upserts}
        deleted = [n for n in chance.sample(range(60), 5) if n not in there]
        truncated = chance.random() < 0.03
        apply(
            driver, ORDERS, START + 1 + batch, net(ORDERS, upserts, [{"id": n} for n in deleted], truncated=truncated)
        )
        held = {} if truncated else {n: row for n, row in held.items() if n not in deleted}
        held |= {row["id"]: row for row in upserts}
        merged += driver.maintain(ORDERS.table, SOURCE, runner).merged_files
        if chance.random() < 0.3:
            runner.go.set()
            time.sleep(0.05)
        elif chance.random() < 0.5:
            runner.go.clear()
        assert lake.rows(ORDERS) == ordered(ORDERS, list(held.values())), batch
    runner.go.set()
    driver.close()
    assert merged > 8
