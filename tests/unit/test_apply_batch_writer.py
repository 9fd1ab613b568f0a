"""Batches that are written beside the commits of the one before, against the in-memory twin."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import pytest

from loop_bench import ORDERS, PEOPLE, Bench, drain, numbered, schema
from penstock.config.model import BatchConfig
from penstock.errors import DestinationUnreachable
from pgoutput_messages import INT8, TEXT, UNSENT, delete, insert, truncate, update

Task = TypeVar("Task")
Result = TypeVar("Result")
PATIENCE = 20.0  # seconds, until a test that waits for what never comes fails
ONE_BY_ONE = BatchConfig(max_age=0.0, max_changes=1)


class Counting:
    """Tells when its second job begins."""

    def __init__(self) -> None:
        self.slots, self.begun, self.second_job = 1, 0, threading.Event()

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        self.begun += 1
        if self.begun == 2:
            self.second_job.set()
        return [function(task) for task in tasks]


@pytest.fixture
def one_by_one(bench: Bench) -> Bench:
    bench.loop.close()
    bench.restart(limits=ONE_BY_ONE)
    return bench


def test_the_next_batch_is_written_beside_the_commits_of_the_one_before(one_by_one: Bench) -> None:
    bench, runner = one_by_one, Counting()
    bench.runner.by = runner
    bench.lake.before_commit = lambda: waited.append(runner.second_job.wait(PATIENCE))
    waited: list[bool] = []
    bench.seal(200, (ORDERS, 110, insert("1", "new")), (PEOPLE, 110, insert("7", "Ada", "photo")))
    bench.seal(300, (ORDERS, 210, update("1", "paid")), (PEOPLE, 210, update("7", "Ada L.", UNSENT)))
    bench.seal(400, (ORDERS, 310, delete("1", None)), (ORDERS, 320, insert("2", "new")))
    assert bench.loop.step()
    assert bench.loop.processed == 400
    assert (bench.rows(ORDERS), bench.rows(PEOPLE)) == ([(2, "new")], [(7, "Ada L.", "photo")])
    assert bench.lake.position(ORDERS.table, "shop") == 400
    assert waited == [True] * 5, "the next batch waits for the commit"
    assert not bench.loop.step()


@pytest.mark.parametrize("failure", ["stale", "unknown, not done", "unknown, done"])
def test_what_was_written_over_a_commit_that_came_to_something_else_is_written_again(
    one_by_one: Bench, failure: str
) -> None:
    bench = one_by_one
    for number in range(4):
        begin = 100 * (number + 1)
        changes = [insert("7", "Ada", "photo")] if number == 0 else [update("7", f"Ada {number}", UNSENT)]
        bench.seal(begin + 100, *((PEOPLE, begin + 10, change) for change in changes))
    bench.lake.failures = ["", failure]
    drain(bench)
    assert bench.rows(PEOPLE) == [(7, "Ada 3", "photo")]
    assert len(bench.lake.commits) == 4
    assert bench.state.progress("lake")[PEOPLE.table].changes == 4


def test_a_destination_that_is_away_leaves_nothing_of_the_batch_that_was_written_beside(one_by_one: Bench) -> None:
    bench = one_by_one
    bench.seal(200, (ORDERS, 110, insert("1", "new")))
    bench.seal(300, (ORDERS, 210, update("1", "paid")))
    bench.lake.failures = ["gone"]
    with pytest.raises(DestinationUnreachable):
        bench.loop.step()
    assert bench.loop.processed == 100
    assert len(bench.store.discarded) == 1
    drain(bench)
    assert bench.rows(ORDERS) == [(1, "paid")]


class Failing(Counting):
    """Its second job fails."""

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        results = super().run(function, tasks)
        if self.begun == 2:
            raise DestinationUnreachable("no room", "Free some")
        return results


def test_a_job_that_fails_beside_commits_leaves_those_standing(one_by_one: Bench) -> None:
    bench = one_by_one
    bench.runner.by = Failing()
    bench.seal(200, (ORDERS, 110, insert("1", "new")))
    bench.seal(300, (ORDERS, 210, update("1", "paid")))
    with pytest.raises(DestinationUnreachable):
        bench.loop.step()
    assert (bench.loop.processed, bench.lake.position(ORDERS.table, "shop")) == (200, 200)
    assert bench.state.processed("lake") == 200
    drain(bench)
    assert bench.rows(ORDERS) == [(1, "paid")]


def test_a_table_that_becomes_errored_keeps_what_was_under_way(one_by_one: Bench) -> None:
    bench = one_by_one
    bench.seal(200, (ORDERS, 110, insert("1", "new")), (PEOPLE, 110, insert("7", "Ada", "p")))
    bench.seal(300, (ORDERS, 210, insert("no number", "new")), (PEOPLE, 210, insert("8", "Bob", "q")))
    bench.seal(400, (PEOPLE, 310, insert("9", "Cleo", "r")))
    drain(bench)
    assert bench.loop.tables[ORDERS.table].errored
    assert bench.loop.tables[ORDERS.table].position == bench.lake.position(ORDERS.table, "shop") == 200
    assert bench.rows(ORDERS) == [(1, "new")]
    assert [row[0] for row in bench.rows(PEOPLE)] == [7, 8, 9]


def test_truncates_and_new_structures_are_waited_for(one_by_one: Bench) -> None:
    bench = one_by_one
    before = numbered(schema("later", 3, id=INT8, state=TEXT), 1, 2)
    wider = numbered(schema("later", 3, id=INT8, state=TEXT, note=TEXT), 1, 2, 3)
    bench.loop.close()
    bench.restart(before, limits=ONE_BY_ONE)
    bench.seal(200, (before, 110, insert("1", "new")))
    bench.seal(300, (before, 210, truncate(3)))
    bench.seal(400, (before, 310, insert("2", "new")))
    bench.seal(500, (wider, 410, insert("3", "new", "a")))
    bench.seal(600, (wider, 510, update("2", "paid", "b")))
    drain(bench)
    assert bench.rows(before) == [(2, "paid", "b"), (3, "new", "a")]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_fails_on_the_way_every_change_takes_effect_once(bench: Bench, seed: int) -> None:
    chance = np.random.default_rng(seed)
    bench.loop.close()
    bench.restart(limits=BatchConfig(max_age=0.0, max_changes=int(chance.integers(1, 4))))
    expected: dict[int, tuple[object, ...]] = {}
    for number in range(30):
        begin, key = 100 * (number + 1), int(chance.integers(5))
        if key not in expected:
            expected[key], change = (key, f"n{number}", f"p{number}"), insert(str(key), f"n{number}", f"p{number}")
        elif chance.random() < 0.3:
            del expected[key]
            change = delete(str(key), None, None)
        else:
            expected[key], change = (key, f"n{number}", expected[key][2]), update(str(key), f"n{number}", UNSENT)
        state = (ORDERS, begin + 20, insert(str(number), "new"))
        bench.seal(begin + 100, (PEOPLE, begin + 10, change), *([state] if chance.random() < 0.5 else []))
    kinds = ["", "", "", "stale", "gone", "unknown, done", "unknown, not done"]
    bench.lake.failures = [str(chance.choice(kinds)) for _ in range(40)]
    for _ in range(200):
        try:
            if not bench.loop.step(now=True):
                break
        except DestinationUnreachable:
            if chance.random() < 0.3:  # the driver is killed, and another begins
                left = bench.lake.failures
                bench.loop.close()
                bench.restart(limits=ONE_BY_ONE)
                bench.lake.failures = left
    assert bench.rows(PEOPLE) == sorted(expected.values())
    assert len(bench.rows(ORDERS)) == len({row[0] for row in bench.rows(ORDERS)})
    assert bench.loop.processed == 3100
