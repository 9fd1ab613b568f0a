"""Postgres as a destination of tables that somebody made: what they must have, and what is left out."""

from __future__ import annotations

import pyarrow as pa
import pytest

from databases import Database
from destination_rows import ORDERS, SOURCE, START, apply, net
from penstock.decode.schema import arrow_schema
from penstock.errors import RowRefused, SchemaChanged
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
    unsent = net(ORDERS, [{"id": 1, "amount": 6}], fetches=[("note", 0, {"id": 1})])
    apply(driver, ORDERS, START + 2, unsent)
    assert lake.rows(ORDERS) == [{"id": 1, "amount": 6}]
    row = {"id": 1, "amount": 6, "note": None}
    assert driver.plan(ORDERS.table, SOURCE).held(0, ["note", "id", "amount"]).to_pylist() == [row]
    copy = driver.plan_copy(ORDERS.table, SOURCE)
    part = copy.write_rows([pa.Table.from_pylist([{**row, "note": "left out"}], schema=arrow_schema(ORDERS))])
    catchup = driver.plan_catchup(ORDERS.table, SOURCE, [part], START + 3)
    assert catchup.held(0, ["id", "note", "amount"]).to_pylist() == [row]
    later = catchup.write(unsent)
    assert (later.rows, later.unresolved) == (1, 0)
    driver.commit_copy(ORDERS.table, SOURCE, [part, later], START + 4)
    assert lake.rows(ORDERS) == [{"id": 1, "amount": 6}]


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


def test_a_value_that_one_row_hands_to_another_passes_a_unique_index(postgres: Database) -> None:
    """Whatever the order of the rows; and what a person keeps beside them stays."""
    postgres.execute(
        "create table public.orders (id bigint primary key, amount int unique, note text, mine text default 'new')",
        "create table public.lines (id bigint references public.orders deferrable)",
    )
    driver = postgres_lake(postgres, create=False).driver()
    driver.ensure_table(ORDERS.table, ORDERS, SOURCE, START)
    rows = [{"id": n, "amount": n, "note": "x"} for n in range(1, 6)]
    apply(driver, ORDERS, START + 1, net(ORDERS, rows))
    postgres.execute("update orders set mine = id::text", "insert into lines values (1)")
    handed = [{"id": n, "amount": n % 5 + 1, "note": "y"} for n in range(1, 6)]
    apply(driver, ORDERS, START + 2, net(ORDERS, [*handed, {"id": 6, "amount": 6, "note": "z"}]))
    with postgres.connect() as connection:
        found = connection.execute("select id, amount, note, mine from orders order by id").fetchall()
    assert found == [*((n, n % 5 + 1, "y", str(n)) for n in range(1, 6)), (6, 6, "z", "new")]
    with pytest.raises(RowRefused, match="orders_amount_key"):
        apply(driver, ORDERS, START + 3, net(ORDERS, [{"id": 7, "amount": 6, "note": "twice"}]))
    assert postgres.value("select count(*) from orders") == 6


def test_rows_that_others_hang_on_are_never_taken_out(postgres: Database) -> None:
    """A foreign key would remove what points to them."""
    postgres.execute(
        "create table public.orders (id bigint primary key, amount int unique, note text)",
        "create table public.lines (id bigint references public.orders on delete cascade)",
    )
    driver = postgres_lake(postgres, create=False).driver()
    driver.ensure_table(ORDERS.table, ORDERS, SOURCE, START)
    apply(driver, ORDERS, START + 1, net(ORDERS, [{"id": n, "amount": n, "note": "x"} for n in (1, 2)]))
    postgres.execute("insert into lines values (1), (2)")
    with pytest.raises(RowRefused, match="orders_amount_key"):
        apply(driver, ORDERS, START + 2, net(ORDERS, [{"id": n, "amount": 3 - n, "note": "y"} for n in (1, 2)]))
    assert postgres.value("select count(*) from lines") == 2


@pytest.mark.parametrize(
    "key",
    [
        "primary key (id) deferrable",
        "exclude (id with =)",
    ],
)
def test_a_key_that_finds_no_row_to_replace_will_do(postgres: Database, key: str) -> None:
    postgres.execute(f"create table public.orders (id bigint, amount int, note text, {key})")
    postgres.execute("create unique index on orders (id, (amount + id))")
    driver = postgres_lake(postgres, create=False).driver()
    driver.ensure_table(ORDERS.table, ORDERS, SOURCE, START)
    for number in (1, 2):
        apply(driver, ORDERS, START + number, net(ORDERS, [{"id": 1, "amount": number, "note": "x"}]))
    assert postgres.value("select array_agg(amount) from orders") == [2]
