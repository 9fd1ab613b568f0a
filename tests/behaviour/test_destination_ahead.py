"""Plans that are made without looking, as long as nobody else has touched the table: after our own last commit, and
after one that is still to be made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from destination_rows import ORDERS, SOURCE, START, Lake, Row, net, write
from penstock.decode.rescue import RESCUED
from penstock.destinations.contract import InProcessRunner, TableDestination, WritePlan, WrittenPart
from penstock.errors import StaleBase

ONE: Row = {"id": 1, "amount": 10, "note": "one"}
TWO: Row = {"id": 2, "amount": 20, "note": "two"}
THREE: Row = {"id": 3, "amount": 30, "note": "three"}


@pytest.fixture
def driver(any_lake: Lake) -> TableDestination:
    return _opened(any_lake)


def _opened(lake: Lake) -> TableDestination:
    driver = lake.driver()
    driver.ensure_table(ORDERS.table, ORDERS, SOURCE, START)
    return driver


def _presuming(driver: TableDestination, position: int, *upserts: Row) -> None:
    plan = driver.plan(ORDERS.table, SOURCE, presumed=True)
    driver.commit(plan, write(plan, net(ORDERS, upserts)), truncated=False, position=position)


def _somebody_else_commits(lake: Lake) -> None:
    other = _opened(lake)
    plan = other.plan(ORDERS.table, SOURCE)
    other.commit(plan, write(plan, net(ORDERS, [THREE])), truncated=False, position=plan.position)


def test_presumed_plans_follow_our_own_commits(any_lake: Lake, driver: TableDestination) -> None:
    for batch in range(12):
        _presuming(driver, START + 1 + batch, {**ONE, "amount": batch}, {**TWO, "id": 2 + batch})
        assert driver.plan(ORDERS.table, SOURCE, presumed=True).position == START + 1 + batch
        driver.maintain(ORDERS.table, SOURCE, InProcessRunner())
    assert any_lake.rows(ORDERS) == sorted(
        [{**ONE, "amount": 11}, *({**TWO, "id": 2 + batch} for batch in range(12))], key=lambda row: str(row["id"])
    )


def test_a_presumption_that_is_wrong_costs_one_try_at_most(any_lake: Lake, driver: TableDestination) -> None:
    _presuming(driver, START + 1, ONE)
    _somebody_else_commits(any_lake)
    plan = driver.plan(ORDERS.table, SOURCE, presumed=True)
    parts = write(plan, net(ORDERS, [{**THREE, "amount": 31}]))
    try:
        driver.commit(plan, parts, truncated=False, position=START + 2)
    except StaleBase:
        driver.discard(parts)
        plan = driver.plan(ORDERS.table, SOURCE)
        driver.commit(plan, write(plan, net(ORDERS, [{**THREE, "amount": 31}])), truncated=False, position=START + 2)
    assert any_lake.rows(ORDERS) == [ONE, {**THREE, "amount": 31}]
    _somebody_else_commits(any_lake)
    _presuming(driver, START + 3, TWO)  # who has seen others looks
    assert any_lake.rows(ORDERS) == [ONE, TWO, THREE]


def test_a_presumed_plan_does_not_look(iceberg: Lake) -> None:
    driver = _opened(iceberg)
    _presuming(driver, START + 1, ONE)
    _somebody_else_commits(iceberg)
    with pytest.raises(StaleBase):
        _presuming(driver, START + 2, TWO)
    assert iceberg.rows(ORDERS) == [ONE, THREE]


def test_a_plan_that_was_not_committed_is_not_built_upon(any_lake: Lake, driver: TableDestination) -> None:
    _presuming(driver, START + 1, ONE)
    plan = driver.plan(ORDERS.table, SOURCE, presumed=True)
    driver.discard(write(plan, net(ORDERS, [TWO])))
    _somebody_else_commits(any_lake)
    _presuming(driver, START + 2, TWO)
    assert any_lake.rows(ORDERS) == [ONE, TWO, THREE]


def test_bookmarks_are_no_surprise(any_lake: Lake, driver: TableDestination) -> None:
    _presuming(driver, START + 1, ONE)
    driver.bookmark(ORDERS.table, SOURCE, "proof")
    _presuming(driver, START + 2, TWO)
    driver.release(ORDERS.table, SOURCE, "proof")
    _presuming(driver, START + 3, THREE)
    assert any_lake.rows(ORDERS) == [ONE, TWO, THREE]


class Ahead:
    """Batches, each written before the one before it is committed."""

    def __init__(self, driver: TableDestination) -> None:
        self.driver, self.position = driver, START
        self.plan: WritePlan | None = driver.plan(ORDERS.table, SOURCE)
        self.waiting: tuple[WritePlan, list[WrittenPart], int] | None = None

    def write(self, upserts: Sequence[Row], deletes: Sequence[Row] = (), **more: Any) -> None:
        assert self.plan is not None
        parts = write(self.plan, net(ORDERS, upserts, deletes, **more))
        self.commit()
        self.position += 1
        self.waiting = self.plan, parts, self.position
        self.plan = self.driver.plan_after(self.plan, parts, position=self.position)

    def commit(self) -> None:
        if self.waiting is not None:
            plan, parts, position = self.waiting
            self.waiting = None
            self.driver.commit(plan, parts, truncated=False, position=position)


def test_a_batch_is_written_over_what_is_not_committed_yet(any_lake: Lake, driver: TableDestination) -> None:
    ahead = Ahead(driver)
    ahead.write([ONE, TWO])
    ahead.write([{**ONE, "amount": 11, "note": None}], [{"id": 2}], fetches=[("note", 0, {"id": 1})])
    ahead.write([TWO, THREE])
    ahead.write([{**ONE, "id": 4, "note": None}], [{"id": 1}], fetches=[("note", 0, {"id": 1})])
    for amount in range(20):
        ahead.write([{**TWO, "amount": amount}], [{"id": 3}] if amount == 7 else [])
    assert any_lake.rows(ORDERS)[0] == {**TWO, "amount": 18}  # the last one waits
    ahead.commit()
    assert any_lake.rows(ORDERS) == [{**TWO, "amount": 19}, {**ONE, "id": 4}]
    assert driver.position(ORDERS.table, SOURCE) == START + 24
    any_lake.maintain(driver, ORDERS)
    _presuming(driver, START + 30, THREE)
    assert any_lake.rows(ORDERS) == [{**TWO, "amount": 19}, THREE, {**ONE, "id": 4}]


def test_what_was_written_over_a_commit_that_was_not_made_is_refused(any_lake: Lake, driver: TableDestination) -> None:
    first = driver.plan(ORDERS.table, SOURCE)
    parts = write(first, net(ORDERS, [ONE]))
    second = driver.plan_after(first, parts, position=START + 1)
    assert second is not None
    assert second.position == START + 1
    written = write(second, net(ORDERS, [TWO]))
    with pytest.raises(StaleBase):
        driver.commit(second, written, truncated=False, position=START + 2)
    _somebody_else_commits(any_lake)
    with pytest.raises(StaleBase):
        driver.commit(first, parts, truncated=False, position=START + 1)
    with pytest.raises(StaleBase):
        driver.commit(second, written, truncated=False, position=START + 2)
    assert any_lake.rows(ORDERS) == [THREE]


def test_who_commits_between_the_two_makes_the_second_void(any_lake: Lake, driver: TableDestination) -> None:
    ahead = Ahead(driver)
    ahead.write([ONE])
    plan, parts, position = ahead.waiting or pytest.fail("nothing waits")
    after = ahead.plan
    assert after is not None
    written = write(after, net(ORDERS, [TWO]))
    driver.commit(plan, parts, truncated=False, position=position)
    _somebody_else_commits(any_lake)
    with pytest.raises(StaleBase):
        driver.commit(after, written, truncated=False, position=START + 2)
    driver.discard(written)
    plan = driver.plan(ORDERS.table, SOURCE)
    driver.commit(plan, write(plan, net(ORDERS, [TWO])), truncated=False, position=START + 2)
    assert any_lake.rows(ORDERS) == [ONE, TWO, THREE]


def test_a_column_that_comes_with_the_commit_is_waited_for(iceberg: Lake) -> None:
    driver = _opened(iceberg)
    plan = driver.plan(ORDERS.table, SOURCE)
    parts = write(plan, net(ORDERS, [{**ONE, "amount": None, RESCUED: {"amount": "1e99"}}]))
    assert driver.plan_after(plan, parts, position=START + 1) is None
    driver.commit(plan, parts, truncated=False, position=START + 1)
    plan = driver.plan(ORDERS.table, SOURCE, presumed=True)
    parts = write(plan, net(ORDERS, [{**TWO, "amount": None, RESCUED: {"amount": "1e98"}}]))
    after = driver.plan_after(plan, parts, position=START + 2)
    assert after is not None
    written = write(after, net(ORDERS, [THREE], [{"id": 1}]))
    driver.commit(plan, parts, truncated=False, position=START + 2)
    driver.commit(after, written, truncated=False, position=START + 3)
    assert [row[RESCUED] for row in iceberg.rows(ORDERS)] == [[("amount", "1e98")], None]
