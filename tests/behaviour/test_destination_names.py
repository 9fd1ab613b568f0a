"""Names that readers of the lake cannot tell apart are that table's trouble: two are never taken for one."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from destination_rows import ORDERS, SOURCE, START, Lake, apply, iceberg_config, iceberg_lake, net, table, write
from penstock.errors import ColumnNotCarried, SchemaChanged
from penstock.fold.layout import RESERVED, Layout
from penstock.model.feed import Period
from penstock.model.table import TableId

ONE = {"id": 1, "amount": 10, "note": "one"}
TWO = {"id": 2, "amount": 20, "note": "two"}


def test_columns_that_readers_cannot_tell_apart_are_refused_before_anything_is_made(any_lake: Lake) -> None:
    driver = any_lake.driver()
    for name in [*sorted(RESERVED), "_FILE", "_RESCUED", "ID"]:
        schema = table("odd", f"id int8, {name} text")
        with pytest.raises(ColumnNotCarried, match=f'"{name}"'):
            driver.ensure_table(schema.table, schema, SOURCE, None)
        assert driver.position(schema.table, SOURCE) is None
    schema = table("odd", "id int8, Valid_From text")
    with pytest.raises(SchemaChanged, match="as its history has"):
        driver.ensure_table(schema.table, schema, SOURCE, None, layout=Layout(Period()))


def test_a_column_that_comes_later_under_such_a_name_is_refused_and_the_table_stays(any_lake: Lake) -> None:
    driver = any_lake.driver()
    driver.ensure_table(ORDERS.table, ORDERS, SOURCE, START)
    apply(driver, ORDERS, 0x2000, net(ORDERS, [ONE]))
    base = driver.structure(ORDERS.table, SOURCE)
    for columns in ("id int8, amount int4, note text, NOTE text", "id int8, amount int4, _pos text"):
        later = table("orders", columns)
        numbered = replace(later, columns=tuple(replace(c, number=n) for n, c in enumerate(later.columns, start=1)))
        with pytest.raises(ColumnNotCarried):
            driver.plan(ORDERS.table, SOURCE, numbered)
    apply(driver, ORDERS, 0x3000, net(ORDERS, [TWO]))
    assert driver.structure(ORDERS.table, SOURCE) == base
    assert any_lake.rows(ORDERS) == [ONE, TWO]


def test_tables_whose_names_differ_only_in_case_are_two(any_lake: Lake) -> None:
    driver, other = any_lake.driver(), replace(ORDERS, table=TableId("public", "Orders"))
    for schema, row in ((ORDERS, ONE), (other, TWO)):
        driver.ensure_table(schema.table, schema, SOURCE, START)
        apply(driver, schema, 0x2000, net(schema, [row]))
    assert (any_lake.rows(ORDERS), any_lake.rows(other)) == ([ONE], [TWO])


def test_where_the_catalog_ignores_case_the_second_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    lake = iceberg_lake(spark, tmp_path, iceberg_config(tmp_path))
    lake.driver().close()
    with sqlite3.connect(lake.warehouse / "catalog.db") as catalog:
        (made,) = catalog.execute("select sql from sqlite_master where name = 'iceberg_tables'").fetchone()
        catalog.execute("drop table iceberg_tables")
        catalog.execute(made.replace("table_name VARCHAR(255)", "table_name VARCHAR(255) COLLATE NOCASE"))
    driver, other = lake.driver(), replace(ORDERS, table=TableId("public", "Orders"))
    driver.ensure_table(ORDERS.table, ORDERS, SOURCE, START)
    apply(driver, ORDERS, 0x2000, net(ORDERS, [ONE]))
    for one in (driver, lake.driver()):
        with pytest.raises(SchemaChanged, match="it ignores case"):
            one.ensure_table(other.table, other, SOURCE, START)
    assert lake.rows(ORDERS) == [ONE]


def test_a_column_that_stays_makes_room_for_one_that_differs_in_case(any_lake: Lake) -> None:
    """The source drops `note` and adds `NOTE`: the lake keeps the first under another name."""
    driver = any_lake.driver()
    driver.ensure_table(ORDERS.table, ORDERS, SOURCE, START)
    apply(driver, ORDERS, 0x2000, net(ORDERS, [ONE]))
    base = driver.structure(ORDERS.table, SOURCE)
    note = replace(base.columns[2], name="NOTE", number=7)
    later = replace(base, columns=(*base.columns[:2], note), numbered=7)
    plan = driver.plan(ORDERS.table, SOURCE, later)
    driver.commit(
        plan, write(plan, net(later, [{"id": 2, "amount": 20, "NOTE": "new"}])), truncated=False, position=0x3000
    )
    assert any_lake.rows(later) == [
        {"id": 1, "amount": 10, "note_dropped_1": "one", "NOTE": None},
        {"id": 2, "amount": 20, "note_dropped_1": None, "NOTE": "new"},
    ]
