"""Cells that fit no column, and columns of lists, structs and maps, held against every destination."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import pgoutput_messages as messages
from destination_rows import ORDERS, SOURCE, START, Lake, Row, apply, iceberg_config, net, ordered, write
from penstock.decode.rescue import RESCUED, RESCUED_TYPE
from penstock.decode.schema import arrow_schema
from penstock.destinations.contract import InProcessRunner, TableDestination
from penstock.destinations.iceberg.catalog import spark_settings
from penstock.errors import ColumnNotCarried, StaleBase
from penstock.fold.envelope import fold_events
from penstock.fold.evolution import follow
from penstock.fold.history import fold_history
from penstock.fold.layout import Layout
from penstock.model.feed import Period
from penstock.model.table import Column, ColumnType, TableId, TableSchema
from penstock.runtime.copy.merge_into_past import merge_copy

ONE = {"id": 1, "amount": 10, "note": "one"}
LOST = [("amount", "NaN"), ("note", "\\xff")]


def rescued(row: Row, cells: list[tuple[str, str]] | None) -> Row:
    return {**row, RESCUED: cells}


def opened(lake: Lake, schema: TableSchema = ORDERS, start: int | None = START) -> TableDestination:
    driver = lake.driver()
    driver.ensure_table(schema.table, schema, SOURCE, start)
    return driver


def test_the_column_comes_with_the_first_row_that_needs_it(typed_lake: Lake) -> None:
    driver = opened(typed_lake)
    apply(driver, ORDERS, START + 1, net(ORDERS, [ONE]))
    assert typed_lake.rows(ORDERS) == [ONE]
    two = {"id": 2, "amount": None, "note": None}
    apply(driver, ORDERS, START + 2, net(ORDERS, [rescued(two, LOST), {**ONE, "id": 3}]))
    three = rescued({**ONE, "id": 3}, None)
    assert typed_lake.rows(ORDERS) == [rescued(ONE, None), rescued(two, LOST), three]
    apply(driver, ORDERS, START + 3, net(ORDERS, [{"id": 2, "amount": 2, "note": "fits"}]))
    assert typed_lake.rows(ORDERS)[1] == rescued({"id": 2, "amount": 2, "note": "fits"}, None)
    driver = opened(typed_lake)
    apply(driver, ORDERS, START + 4, net(ORDERS, [rescued(two, LOST[:1])], truncated=True))
    assert typed_lake.rows(ORDERS) == [rescued(two, LOST[:1])]


def test_compaction_keeps_it(typed_lake: Lake) -> None:
    driver = opened(typed_lake)
    expected = {}
    for number in range(20):
        row = rescued(
            {"id": number, "amount": None, "note": "x"}, [("amount", f"{number} NaN")] if number % 3 else None
        )
        apply(driver, ORDERS, START + 1 + number, net(ORDERS, [row]))
        expected[number] = row
        typed_lake.maintain(driver, ORDERS)
        if number % 7 == 5:
            driver = opened(typed_lake)
    assert typed_lake.rows(ORDERS) == ordered(ORDERS, list(expected.values()))


def test_a_fetched_cell_brings_it_along(typed_lake: Lake) -> None:
    driver = opened(typed_lake)
    lost = rescued({"id": 1, "amount": None, "note": None}, LOST)
    apply(driver, ORDERS, START + 1, net(ORDERS, [lost, {**ONE, "id": 2}]))
    typed_lake.maintain(driver, ORDERS)
    upserts: list[Row] = [
        {"id": 1, "amount": 5, "note": None},
        {"id": 7, "amount": None, "note": None},
        rescued({"id": 3, "amount": None, "note": None}, [("amount", "Infinity")]),
    ]
    fetches = [("note", 0, {"id": 1}), ("note", 1, {"id": 2}), ("note", 2, {"id": 1})]
    apply(driver, ORDERS, START + 2, net(ORDERS, upserts, [{"id": 2}], fetches=fetches))
    found = {row["id"]: row for row in typed_lake.rows(ORDERS)}
    assert found[1] == rescued({"id": 1, "amount": 5, "note": None}, LOST[1:])
    assert found[7] == rescued({"id": 7, "amount": None, "note": "one"}, None)
    assert sorted(found[3][RESCUED]) == [("amount", "Infinity"), LOST[1]]
    later: list[Row] = [{"id": 1, "amount": 6, "note": None}]
    apply(driver, ORDERS, START + 3, net(ORDERS, later, fetches=[("note", 0, {"id": 1})]))
    assert typed_lake.rows(ORDERS)[0] == rescued(later[0], LOST[1:])


def test_a_driver_that_does_not_know_it_yet_is_told(typed_lake: Lake) -> None:
    first, second = opened(typed_lake), opened(typed_lake)
    lost = rescued({"id": 1, "amount": None, "note": None}, LOST)
    stale = second.plan(ORDERS.table, SOURCE)
    apply(first, ORDERS, START + 1, net(ORDERS, [lost]))
    with pytest.raises(StaleBase):
        second.commit(stale, write(stale, net(ORDERS, [lost])), truncated=False, position=START + 1)
    apply(second, ORDERS, START + 2, net(ORDERS, [{**lost, "id": 2}]))
    for number in range(3, 9):
        apply(second, ORDERS, START + number, net(ORDERS, [{**ONE, "id": number}]))
        typed_lake.maintain(second, ORDERS)
    assert typed_lake.rows(ORDERS)[:2] == [lost, {**lost, "id": 2}]


def batches(rows: Sequence[Row]) -> Iterator[pa.RecordBatch]:
    """One a row; with the column only where it is needed."""
    for row in rows:
        schema = arrow_schema(ORDERS)
        if row.get(RESCUED):
            schema = schema.append(pa.field(RESCUED, RESCUED_TYPE))
        yield pa.RecordBatch.from_pylist([row], schema=schema)


@pytest.mark.parametrize("places", [(), (0,), (2,), (0, 3), (1, 2, 3)])
def test_copies_keep_it(typed_lake: Lake, places: tuple[int, ...]) -> None:
    driver = opened(typed_lake, start=None)
    plan = driver.plan_copy(ORDERS.table, SOURCE)
    rows = [
        rescued({"id": number, "amount": None, "note": "x"}, [("amount", "NaN")] if number in places else None)
        for number in range(4)
    ]
    parts = [plan.write_rows(batches(rows)), plan.write_rows(batches([{**ONE, "id": 9}]))]
    assert [part.rows for part in parts] == [4, 1]
    over = driver.plan_catchup(ORDERS.table, SOURCE, parts, START)
    changed: list[Row] = [{"id": 2, "amount": None, "note": "changed"}]
    parts += write(over, net(ORDERS, changed, [{"id": 1}], fetches=[("amount", 0, {"id": 2})]))
    assert all(driver.parts_intact(parts))
    driver.commit_copy(ORDERS.table, SOURCE, parts, START + 1)
    expected = [rows[0], {**rows[2], "note": "changed"}, rows[3], rescued({**ONE, "id": 9}, None)]
    if set(places) <= {1}:
        expected = [{name: value for name, value in row.items() if name != RESCUED} for row in expected]
    assert typed_lake.rows(ORDERS) == expected
    apply(driver, ORDERS, START + 2, net(ORDERS, [rescued({"id": 5, "amount": None, "note": None}, LOST)]))
    assert typed_lake.rows(ORDERS)[3][RESCUED] == LOST


INT, TEXT = ColumnType(23, "int4"), ColumnType(25, "text")
FREE = ColumnType(1700, "numeric", held_as="decimal(38,18)")
LIST = ColumnType(1007, "_int4", kind="array", element=INT)
PAIR = ColumnType(50_000, "pair", kind="composite", fields=(("a", INT), ("b.c", LIST), ("free", FREE)))
PAIRS = ColumnType(50_001, "_pair", kind="array", element=PAIR)
NESTED = TableSchema(
    TableId("public", "nested"),
    1,
    tuple(
        Column(name, type)
        for name, type in {
            "numbers": LIST,
            "id": INT,
            "pair": PAIR,
            "pairs": PAIRS,
            "map": ColumnType(50_002, "hstore"),
            "pair_a": TEXT,
        }.items()
    ),
    ("id",),
)


def nested(number: int) -> Row:
    pair: dict[str, Any] = {"a": number, "b.c": [number, None], "free": None}
    kinds: list[Row] = [
        {"numbers": [1, None], "pair": pair, "pairs": [pair, None], "map": [("k", None), ("l", "v")], "pair_a": "x"},
        {"numbers": [], "pair": dict.fromkeys(pair), "pairs": [], "map": [], "pair_a": ""},
        dict.fromkeys(("numbers", "pair", "map", "pair_a")) | {"pairs": []},  # pyiceberg reads a NULL there as empty
    ]
    return {**kinds[number % 3], "id": number}


def test_lists_structs_and_maps(typed_lake: Lake) -> None:
    driver = opened(typed_lake, NESTED)
    driver = opened(typed_lake, NESTED)
    for number in range(0, 18, 3):
        rows = [nested(number + offset) for offset in range(3)]
        apply(driver, NESTED, START + 1 + number, net(NESTED, rows))
        typed_lake.maintain(driver, NESTED)
    unsent: Row = {"numbers": None, "id": 0, "pair": None, "pairs": None, "map": None, "pair_a": "later"}
    fetches = [(name, 0, {"id": 0}) for name in ("numbers", "pair", "pairs", "map")]
    apply(driver, NESTED, START + 30, net(NESTED, [unsent], fetches=fetches))
    expected = [nested(0) | {"pair_a": "later"}, *(nested(number) for number in range(1, 18))]
    assert typed_lake.rows(NESTED) == ordered(NESTED, expected)


def test_a_name_that_iceberg_gives_twice_is_refused(iceberg: Lake) -> None:
    columns = (*NESTED.columns, Column("pairs.element.b.c", TEXT))
    with pytest.raises(ColumnNotCarried, match=r'"pairs\.element\.b\.c" has the name'):
        opened(iceberg, replace(NESTED, columns=columns))


def test_spark_reads_them(iceberg: Lake, spark: SparkSession) -> None:
    driver = opened(iceberg, NESTED)
    lost = [("numbers", "{{1}}")]
    empty = {**nested(2), "pairs": None}
    apply(driver, NESTED, START + 1, net(NESTED, [nested(0), nested(1), rescued(empty, lost)]))
    apply(driver, NESTED, START + 2, net(NESTED, [{**nested(0), "id": 3}]))
    session = spark.newSession()
    for key, value in spark_settings(iceberg_config(iceberg.root)).items():
        if key != "spark.sql.extensions":
            session.conf.set(key, value)
    read = session.table("lake.public.nested").orderBy("id").toArrow().to_pylist()
    assert [row.pop(RESCUED) for row in read] == [None, None, lost, None]
    assert read == [nested(0), nested(1), empty, {**nested(0), "id": 3}]
    (only,) = session.sql("SELECT id FROM lake.public.nested WHERE pair.a = 0 AND id > 0").collect()
    assert only.id == 3


@pytest.mark.parametrize("layout", [Layout(events=True), Layout(period=Period())], ids=["events", "history"])
def test_it_may_come_together_with_a_column(typed_lake: Lake, layout: Layout) -> None:
    """In tables that keep the past: the structure moves, and the first value is rescued, in one commit."""
    columns = {"id": messages.INT8, "n": messages.numeric(5, 1)}
    pairs = ColumnType(0, "pair", kind="composite", fields=(("a", INT), ("b", LIST)))
    before, after = (messages.table_schema(one) for one in (columns, {**columns, "more": pairs, "last": FREE}))
    driver = typed_lake.driver()
    driver.ensure_table(before.table, before, SOURCE, 0, layout=layout)
    followed = follow(driver.structure(before.table, SOURCE), [before, after], driver.capabilities.types).schema
    stream = messages.Stream().transaction(messages.insert("1", "1.0"))
    later = messages.Stream(transactions=1).transaction(messages.insert("2", "NaN", '(1,"{2}")', "NaN"))
    fold = fold_events if layout.events else fold_history
    for schema, changes, position in ((None, stream.raw(before), 0), (followed, later.raw(followed), 200)):
        plan = driver.plan(before.table, SOURCE, schema)
        parts = write(plan, fold([changes], position=position, schema=schema))
        driver.commit(plan, parts, truncated=False, position=position + 200, moment=None if layout.events else position)
        typed_lake.maintain(driver, before)
    rows = typed_lake.read(before.table).to_pylist()
    found = [(row["after"]["id"] if layout.events else row["id"], row[RESCUED]) for row in rows]
    side = "after." if layout.events else ""
    assert sorted(found) == [(1, None), (2, [(f"{side}n", "NaN"), (f"{side}last", "NaN")])]
    images = [row["after"] if layout.events else row for row in rows]
    assert [one["more"] for one in images if one["id"] == 2] == [{"a": 1, "b": [2]}]


def test_a_copy_that_is_merged_into_a_history_is_compared_with_it(typed_lake: Lake) -> None:
    driver, layout = typed_lake.driver(), Layout(period=Period())
    driver.ensure_table(ORDERS.table, ORDERS, SOURCE, None, layout=layout)
    read: list[list[Row]] = [
        [{"id": 1, "amount": None, "note": "x", RESCUED: LOST[:1]}, {"id": 2, "amount": 2, "note": "x"}],
        [{"id": 1, "amount": None, "note": "x", RESCUED: LOST[:1]}, {"id": 2, "amount": None, RESCUED: LOST}],
        [{"id": 1, "amount": None, "note": "x", RESCUED: [("amount", "Infinity")]}],
    ]
    for number, rows in enumerate(read, start=1):
        parts = [driver.plan_copy(ORDERS.table, SOURCE).write_rows(batches(rows))]
        copy = driver.plan_catchup(ORDERS.table, SOURCE, parts, number)
        plan = driver.plan_merge(ORDERS.table, SOURCE)
        merged = merge_copy(InProcessRunner(), copy, plan, ORDERS, number * 1_000_000, first=number == 1)
        driver.commit_merge(plan, merged, START + number, number * 1_000_000, f"history {number}")
        assert driver.history(ORDERS.table, SOURCE) == f"history {number}"
        typed_lake.maintain(driver, ORDERS)
    found = [
        (row["id"], row["amount"], row[RESCUED], row["valid_to"].second, row["deleted"])
        for row in typed_lake.rows(ORDERS)
    ]
    assert sorted(found, key=repr) == [
        (1, None, [("amount", "Infinity")], 0, False),
        (1, None, LOST[:1], 3, False),
        (2, 2, None, 2, False),
        (2, None, LOST, 3, True),
    ]
