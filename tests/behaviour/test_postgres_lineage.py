"""What somebody does to a table's file at a Postgres destination: told from what leaves its rows as they were."""

from __future__ import annotations

import pytest

from databases import Database
from destination_rows import ORDERS, SOURCE, START, Lake, apply, net
from penstock.errors import LineageLost, StaleBase
from penstock.model.feed import Sid
from postgres_lake import postgres_lake

ONE = {"id": 1, "amount": 10, "note": "one"}
TWO = {"id": 2, "amount": 20, "note": "two"}
OTHER = "insert into public.orders (id, amount) values (9, 9)"


@pytest.fixture
def lake(postgres: Database) -> Lake:
    return postgres_lake(postgres)


@pytest.mark.parametrize(
    "statement",
    [
        "truncate public.orders",
        f"begin; truncate public.orders; {OTHER}; commit",
        "alter table public.orders alter amount type bigint",  # every row is another: it may as well be a reload
    ],
)
def test_rows_that_are_all_new_are_not_ours(postgres: Database, lake: Lake, statement: str) -> None:
    driver = lake.driver()
    driver.ensure_table(ORDERS.table, ORDERS, SOURCE, START)
    apply(driver, ORDERS, START + 1, net(ORDERS, [ONE, TWO]))
    postgres.execute(statement)
    with pytest.raises(LineageLost):
        driver.plan(ORDERS.table, SOURCE)
    with pytest.raises(LineageLost):
        driver.advance(ORDERS.table, SOURCE, START + 1, START + 2)


@pytest.mark.parametrize("statement", ["vacuum full public.orders", "cluster public.orders using orders_pkey", OTHER])
def test_rows_that_are_the_same_in_another_file_are_ours(postgres: Database, lake: Lake, statement: str) -> None:
    driver = lake.driver()
    driver.ensure_table(ORDERS.table, ORDERS, SOURCE, START)
    apply(driver, ORDERS, START + 1, net(ORDERS, [ONE]))
    apply(driver, ORDERS, START + 2, net(ORDERS, [TWO]))
    driver.advance(ORDERS.table, SOURCE, START + 2, START + 3)
    postgres.execute(statement)
    driver.advance(ORDERS.table, SOURCE, START + 3, START + 4)
    apply(driver, ORDERS, START + 5, net(ORDERS, [], [ONE]))
    assert TWO in lake.rows(ORDERS)
    assert ONE not in lake.rows(ORDERS)


def test_each_source_of_a_table_that_was_emptied_notices_it(postgres: Database, lake: Lake) -> None:
    """The rows that the copy of the first brings are none of the second's."""
    driver = lake.driver()
    for name in ("eu", "us"):
        driver.ensure_table(ORDERS.table, ORDERS, name, START, sid=Sid("sid", name, "shop"))
        plan = driver.plan(ORDERS.table, name)
        driver.commit(plan, [plan.write(net(ORDERS, [ONE]))], truncated=False, position=START + 1)
    postgres.execute("truncate public.orders", "insert into public.orders values ('eu', 1, 10, 'one')")
    for name in ("eu", "us"):
        with pytest.raises(LineageLost):
            driver.plan(ORDERS.table, name)


def test_a_partitioned_table_that_was_emptied_is_noticed(postgres: Database) -> None:
    postgres.execute(
        "create table public.orders (id bigint primary key, amount int, note text) partition by range (id)",
        "create table orders_low partition of orders for values from (0) to (10)",
        "create table orders_high partition of orders for values from (10) to (20)",
    )
    driver = postgres_lake(postgres, create=False).driver()
    driver.ensure_table(ORDERS.table, ORDERS, SOURCE, START)
    apply(driver, ORDERS, START + 1, net(ORDERS, [ONE, {**TWO, "id": 12}]))
    postgres.execute("create table orders_more partition of orders for values from (20) to (30)")
    driver.advance(ORDERS.table, SOURCE, START + 1, START + 2)
    postgres.execute("truncate orders_low")
    driver.advance(ORDERS.table, SOURCE, START + 2, START + 3)  # rows of the others are there: left to verify
    postgres.execute(f"truncate orders; {OTHER}")
    with pytest.raises(LineageLost):
        driver.plan(ORDERS.table, SOURCE)


def test_a_position_that_went_back_is_noticed_when_nothing_is_written(postgres: Database, lake: Lake) -> None:
    driver = lake.driver()
    driver.ensure_table(ORDERS.table, ORDERS, SOURCE, START)
    apply(driver, ORDERS, START + 1, net(ORDERS, [ONE]))
    postgres.execute(f"update penstock.tables set position = {START}")
    with pytest.raises(LineageLost, match="restored"):
        driver.advance(ORDERS.table, SOURCE, START + 1, START + 1)


def test_a_table_that_is_locked_is_looked_at_later(postgres: Database, lake: Lake) -> None:
    """A truncate that is under way must not look older than what is noted meanwhile."""
    driver = lake.driver()
    driver.ensure_table(ORDERS.table, ORDERS, SOURCE, START)
    apply(driver, ORDERS, START + 1, net(ORDERS, [ONE]))
    with postgres.connect() as person, person.transaction():
        person.execute("truncate public.orders")
        with pytest.raises(StaleBase, match="is locked at the destination"):
            driver.advance(ORDERS.table, SOURCE, START + 1, START + 2)
        person.execute(OTHER.encode())
    with pytest.raises(LineageLost):
        driver.advance(ORDERS.table, SOURCE, START + 1, START + 2)
