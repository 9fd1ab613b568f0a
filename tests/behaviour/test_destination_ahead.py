"""Plans that are made without looking: after our own last commit, as long as nobody else has touched the table."""

from __future__ import annotations

import pytest

from destination_rows import ORDERS, SOURCE, START, Lake, Row, net, write
from penstock.destinations.contract import Destination, InProcessRunner
from penstock.errors import StaleBase

ONE: Row = {"id": 1, "amount": 10, "note": "one"}
TWO: Row = {"id": 2, "amount": 20, "note": "two"}
THREE: Row = {"id": 3, "amount": 30, "note": "three"}


@pytest.fixture
def driver(any_lake: Lake) -> Destination:
    return _opened(any_lake)


def _opened(lake: Lake) -> Destination:
    driver = lake.driver()
    driver.ensure_table(ORDERS.table, ORDERS, SOURCE, START)
    return driver


def _presuming(driver: Destination, position: int, *upserts: Row) -> None:
    plan = driver.plan(ORDERS.table, SOURCE, presumed=True)
    driver.commit(plan, write(plan, net(ORDERS, upserts)), truncated=False, position=position)


def _somebody_else_commits(lake: Lake) -> None:
    other = _opened(lake)
    plan = other.plan(ORDERS.table, SOURCE)
    other.commit(plan, write(plan, net(ORDERS, [THREE])), truncated=False, position=plan.position)


def test_presumed_plans_follow_our_own_commits(any_lake: Lake, driver: Destination) -> None:
    for batch in range(12):
        _presuming(driver, START + 1 + batch, {**ONE, "amount": batch}, {**TWO, "id": 2 + batch})
        assert driver.plan(ORDERS.table, SOURCE, presumed=True).position == START + 1 + batch
        driver.maintain(ORDERS.table, SOURCE, InProcessRunner())
    assert any_lake.rows(ORDERS) == sorted(
        [{**ONE, "amount": 11}, *({**TWO, "id": 2 + batch} for batch in range(12))], key=lambda row: str(row["id"])
    )


def test_a_presumption_that_is_wrong_costs_one_try_at_most(any_lake: Lake, driver: Destination) -> None:
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


def test_a_plan_that_was_not_committed_is_not_built_upon(any_lake: Lake, driver: Destination) -> None:
    _presuming(driver, START + 1, ONE)
    plan = driver.plan(ORDERS.table, SOURCE, presumed=True)
    driver.discard(write(plan, net(ORDERS, [TWO])))
    _somebody_else_commits(any_lake)
    _presuming(driver, START + 2, TWO)
    assert any_lake.rows(ORDERS) == [ONE, TWO, THREE]


def test_bookmarks_are_no_surprise(any_lake: Lake, driver: Destination) -> None:
    _presuming(driver, START + 1, ONE)
    driver.bookmark(ORDERS.table, SOURCE, "proof")
    _presuming(driver, START + 2, TWO)
    driver.release(ORDERS.table, SOURCE, "proof")
    _presuming(driver, START + 3, THREE)
    assert any_lake.rows(ORDERS) == [ONE, TWO, THREE]
