"""Postgres as a destination of tables that somebody made: what they must have, and what is left out."""

from __future__ import annotations

import pytest

from databases import Database
from destination_rows import ORDERS, SOURCE, START, apply, net
from penstock.errors import SchemaChanged
from penstock.model.feed import Sid
from postgres_lake import postgres_lake

MADE = "create table public.orders (id bigint primary key, amount int)"


def test_columns_that_the_table_lacks_are_left_out(postgres: Database) -> None:
    postgres.execute(MADE)
    lake = postgres_lake(postgres, create=False)
    driver = lake.driver()
    driver.ensure_table(ORDERS.table, ORDERS, SOURCE, START)
    apply(driver, ORDERS, START + 1, net(ORDERS, [{"id": 1, "amount": 5, "note": "left out"}]))
    assert lake.rows(ORDERS) == [{"id": 1, "amount": 5}]


def test_a_table_of_several_sources_needs_the_column_that_tells_them_apart(postgres: Database) -> None:
    """Otherwise the copy of one source would remove the rows of the others."""
    postgres.execute(MADE)
    driver = postgres_lake(postgres, create=False).driver()
    with pytest.raises(SchemaChanged, match="lacks column sid"):
        driver.ensure_table(ORDERS.table, ORDERS, SOURCE, START, sid=Sid("sid", "eu", "shop"))
    postgres.execute(
        "alter table public.orders add sid text not null, drop constraint orders_pkey, add primary key (sid, id)"
    )
    driver.ensure_table(ORDERS.table, ORDERS, SOURCE, START, sid=Sid("sid", "eu", "shop"))
