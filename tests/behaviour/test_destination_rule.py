"""What rows were made under, held against every destination: replaced by a copy with the rows; and `drop_table`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from destination_rows import ORDERS as UNNUMBERED
from destination_rows import SOURCE, START, Lake, Row, apply, net
from penstock.decode.schema import arrow_schema
from penstock.destinations.contract import TableDestination
from penstock.destinations.structure import numbered
from penstock.errors import OtherLayout, TableError
from penstock.fold.layout import ROWS, Layout, layout_of
from penstock.fold.projection import kept_schema, project_rows
from penstock.model.feed import ColumnChoice, Feed, Mode, Projection

ORDERS = numbered(UNNUMBERED)
PLAIN = layout_of(Feed.clone(ORDERS.table))
FEED = replace(
    Feed.clone(ORDERS.table),
    projection=Projection(
        "id > 1", (ColumnChoice("note", masked=True), ColumnChoice("amount", dropped=True)), (("tier", 1),), "salt"
    ),
)
HIDING = layout_of(FEED)
SOURCES = [{"id": 1, "amount": 10, "note": "a"}, {"id": 2, "amount": 20, "note": "b"}]


def copied(driver: TableDestination, layout: Layout, position: int, content: Sequence[Row] = SOURCES) -> None:
    rows = project_rows(layout.projection, ORDERS, pa.Table.from_pylist(list(content), schema=arrow_schema(ORDERS)))
    plan = driver.plan_copy(ORDERS.table, SOURCE, ORDERS)
    driver.commit_copy(ORDERS.table, SOURCE, [plan.write_rows([rows])], position)


def test_a_copy_brings_its_rule_and_its_columns(any_lake: Lake) -> None:
    driver = any_lake.driver()
    assert driver.ensure_table(ORDERS.table, ORDERS, SOURCE, None, layout=PLAIN) is None
    copied(driver, PLAIN, START)
    assert driver.rule(ORDERS.table, SOURCE) == PLAIN.rule
    again = any_lake.driver()
    assert again.ensure_table(ORDERS.table, ORDERS, SOURCE, None, layout=HIDING) == START
    assert again.rule(ORDERS.table, SOURCE) == PLAIN.rule, "the rows are still those of the old rule"
    assert any_lake.rows(ORDERS) == SOURCES
    copied(again, HIDING, START + 1)
    assert again.rule(ORDERS.table, SOURCE) == HIDING.rule
    (row,) = any_lake.rows(kept_schema(FEED.projection, ORDERS))
    assert (row["id"], row["tier"], sorted(row)) == (2, 1, ["id", "note", "tier"])
    assert row["note"] not in ("b", None), "masked"
    third = any_lake.driver()
    assert third.ensure_table(ORDERS.table, ORDERS, SOURCE, None, layout=PLAIN) == START + 1
    copied(third, PLAIN, START + 2)
    apply(third, ORDERS, START + 3, net(ORDERS, [{"id": 3, "amount": 30, "note": "c"}], []))
    assert any_lake.rows(ORDERS) == [*SOURCES, {"id": 3, "amount": 30, "note": "c"}], "and back again"
    assert third.rule(ORDERS.table, SOURCE) == PLAIN.rule


def test_a_table_that_says_no_rule(any_lake: Lake) -> None:
    driver = any_lake.driver()
    driver.ensure_table(ORDERS.table, ORDERS, SOURCE, START, layout=ROWS)
    assert driver.rule(ORDERS.table, SOURCE) is None


def test_a_table_is_dropped_and_made_again(any_lake: Lake) -> None:
    driver = any_lake.driver()
    driver.ensure_table(ORDERS.table, ORDERS, SOURCE, None, layout=PLAIN)
    copied(driver, PLAIN, START)
    history = layout_of(replace(FEED, mode=Mode.HISTORY))
    other = any_lake.driver()
    with pytest.raises(OtherLayout):
        other.ensure_table(ORDERS.table, ORDERS, SOURCE, None, layout=history)
    with pytest.raises(TableError, match="orders"):
        other.drop_table(ORDERS.table, "another")
    assert any_lake.rows(ORDERS) == SOURCES
    other.drop_table(ORDERS.table, SOURCE)
    assert other.position(ORDERS.table, SOURCE) is None
    other.drop_table(ORDERS.table, SOURCE)  # one that is gone is fine
    assert other.ensure_table(ORDERS.table, ORDERS, SOURCE, None, layout=history) is None
