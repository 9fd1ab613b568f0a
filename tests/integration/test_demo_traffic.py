"""The shop's traffic: seeded, of every kind, and counted."""

from __future__ import annotations

from random import Random
from typing import Any

import psycopg
import pytest

from databases import Database, fresh_database
from penstock.demo.server import PostgresServer
from penstock.demo.shop_connection import PostgresShop
from penstock.demo.traffic import Traffic, Worker, fill

TABLES = ("customers", "order_items", "orders", "payments", "products")
TIMELESS = {
    "customers": "id, address, newsletter",
    "products": "sku, price, stock",
    "orders": "id, customer_id, status, total, note, delivery_day",
    "order_items": "*",
    "payments": "*",
}


def act(database: Database, seed: int, actions: int) -> tuple[int, dict[str, list[Any]]]:
    """One worker's actions, and what the shop holds afterwards."""
    with database.connect() as connection:
        opened = PostgresShop(connection)
        opened.create_schema()
        worker = Worker(opened, fill(opened, seed), Random(seed))
        for _ in range(actions):
            worker.act()
        return worker.changes, {
            table: sorted(map(repr, connection.execute(f"select {columns} from {table}".encode()).fetchall()))
            for table, columns in TIMELESS.items()
        }


def test_the_same_seed_makes_the_same_shop(postgres: Database, embedded_server: PostgresServer) -> None:
    with fresh_database(embedded_server) as other:
        first, again = act(postgres, 7, 400), act(other, 7, 400)
    assert first == again
    assert all(rows for rows in first[1].values())


def test_every_kind_of_change_happens_and_is_counted(postgres: Database) -> None:
    postgres.execute(
        "create table counted (op text)",
        "create function count_change() returns trigger language plpgsql as"
        " $$ begin insert into counted values (tg_table_name || ' ' || tg_op); return null; end $$",
    )
    with postgres.connect() as connection:
        opened = PostgresShop(connection)
        opened.create_schema()
        shop = fill(opened, 7)
        for table in TABLES:
            connection.execute(
                f"create trigger t after insert or update or delete on {table} for each row"
                " execute function count_change()".encode()
            )
    traffic = Traffic(lambda: PostgresShop.at(postgres.url), shop, seed=7, workers=3, actions_per_second=3000)
    traffic.start()
    while postgres.value("select count(distinct op) from counted") < 9:
        assert traffic.alive, "a worker failed"
    traffic.stop()
    assert postgres.value("select count(*) from counted") == traffic.changes
    assert postgres.value("select string_agg(distinct op, ', ' order by op) from counted").split(", ") == [
        "customers UPDATE",
        "order_items DELETE",
        "order_items INSERT",
        "orders DELETE",
        "orders INSERT",
        "orders UPDATE",
        "payments DELETE",
        "payments INSERT",
        "products UPDATE",
    ]


def test_a_worker_that_fails_is_heard_of(postgres: Database) -> None:
    with postgres.connect() as connection:
        opened = PostgresShop(connection)
        opened.create_schema()
        shop = fill(opened, 7)
        connection.execute("drop table payments, order_items, orders")
    traffic = Traffic(lambda: PostgresShop.at(postgres.url), shop, seed=7, workers=1, actions_per_second=1000)
    traffic.start()
    while traffic.alive:
        pass
    with pytest.raises(psycopg.errors.UndefinedTable):
        traffic.stop()
