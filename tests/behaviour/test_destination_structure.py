"""Changes of structure, held against every destination: columns move in one step with the rows that have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from destination_rows import FILE_IO, SOURCE, START, TYPES, Lake, Row, apply, iceberg_config, iceberg_lake, net, write
from penstock.decode.rescue import RESCUED, RESCUED_TYPE
from penstock.decode.schema import arrow_schema
from penstock.destinations.contract import TableDestination
from penstock.destinations.iceberg.catalog import spark_settings
from penstock.destinations.structure import OnDrop
from penstock.errors import RangeVoid, SchemaChanged, StaleBase, TableDropped
from penstock.fold.net_effect import NetEffect
from penstock.model.table import Column, TableId, TableSchema


def version(columns: str, key: Sequence[str] = ("id",)) -> TableSchema:
    """`columns` as in "1 id int8, 4 note text"."""
    described = [column.split() for column in columns.split(", ")]
    return TableSchema(
        TableId("public", "orders"),
        1,
        tuple(Column(name, TYPES[type], number=int(number)) for number, name, type in described),
        tuple(key),
    )


BASE = version("1 id int8, 2 amount int4, 3 note text")
ONE, TWO = {"id": 1, "amount": 10, "note": "one"}, {"id": 2, "amount": 20, "note": "two"}


@pytest.fixture
def driver(any_lake: Lake) -> TableDestination:
    """With two rows under BASE."""
    destination = any_lake.driver()
    destination.ensure_table(BASE.table, BASE, SOURCE, START)
    apply(destination, BASE, START + 1, net(BASE, [ONE, TWO]))
    return destination


@pytest.fixture
def typed_driver(typed_lake: Lake) -> TableDestination:
    destination = typed_lake.driver()
    destination.ensure_table(BASE.table, BASE, SOURCE, START)
    apply(destination, BASE, START + 1, net(BASE, [ONE, TWO]))
    return destination


def move(
    destination: TableDestination, after: TableSchema, position: int, *effects: NetEffect, on_drop: OnDrop = "keep"
) -> None:
    plan = destination.plan(after.table, SOURCE, after, on_drop)
    destination.commit(plan, write(plan, *effects), truncated=False, position=position)


def again(lake: Lake) -> TableDestination:
    """A new driver, which finds the table as it is, whatever the source has become."""
    destination = lake.driver()
    destination.ensure_table(BASE.table, version("1 id int8, 9 other text"), SOURCE, START)
    return destination


@pytest.mark.parametrize(
    ("after", "new", "kept"),
    [
        ("1 id int8, 2 amount int4, 3 note text, 4 at date", {"at": None}, {"at": None}),
        ("1 id int8, 2 sum int4, 3 note text", {"sum": 30}, {"sum": 10}),
        ("1 id int8, 2 amount int8, 3 note text", {"amount": 1 << 40}, {"amount": 10}),
        ("1 key int8, 2 amount int4, 3 note text", {"key": 3}, {"key": 1}),
        ("1 id int8, 3 note text, 2 amount int4", {"amount": 30}, {"amount": 10}),
    ],
    ids=["added", "renamed", "widened", "key renamed", "reordered"],
)
def test_rows_and_structure_move_together(
    any_lake: Lake, driver: TableDestination, after: str, new: Row, kept: Row
) -> None:
    schema = version(after, key=("key",) if "key" in after else ("id",))
    plan = driver.plan(schema.table, SOURCE, schema)
    row = {
        name: new.get(name, {"id": 3, "amount": 30, "note": "three"}.get(name)) for name in arrow_schema(schema).names
    }
    parts = write(plan, net(schema, [row]))
    assert any_lake.rows(BASE) == [ONE, TWO]
    driver.commit(plan, parts, truncated=False, position=START + 2)
    found = any_lake.rows(schema)
    assert set(found[0]) == {column.name for column in schema.columns}
    assert row in found
    assert kept.items() <= found[0].items()
    following = again(any_lake)
    assert following.structure(schema.table, SOURCE) == schema
    deleted = {schema.key[0]: 1}
    apply(following, schema, START + 3, net(schema, deletes=[deleted]))
    assert len(any_lake.rows(schema)) == 2


def test_names_may_change_places(any_lake: Lake, driver: TableDestination) -> None:
    swapped = version("1 id int8, 3 amount text, 2 note int4")
    move(driver, swapped, START + 2, net(swapped, [{"id": 3, "amount": "three", "note": 30}]))
    assert any_lake.rows(swapped) == [
        {"id": 1, "amount": "one", "note": 10},
        {"id": 2, "amount": "two", "note": 20},
        {"id": 3, "amount": "three", "note": 30},
    ]


@pytest.mark.parametrize(
    ("on_drop", "names"),
    [("keep", {"id", "amount", "note"}), ("drop", {"id", "amount"}), ("rename", {"id", "amount", "note_dropped_1"})],
)
def test_a_dropped_column_stays_goes_or_is_renamed(
    any_lake: Lake, driver: TableDestination, on_drop: OnDrop, names: set[str]
) -> None:
    narrow = version("1 id int8, 2 amount int4")
    move(driver, narrow, START + 2, net(narrow, [{"id": 2, "amount": 21}]), on_drop=on_drop)
    one, two = any_lake.rows(narrow)
    assert set(one) == names
    assert [one["amount"], two["amount"]] == [10, 21]
    kept = next(iter(names - {"id", "amount"}), None)
    assert kept is None or (one[kept], two[kept]) == ("one", None)


def test_a_kept_column_makes_room_for_one_of_its_name(any_lake: Lake, driver: TableDestination) -> None:
    """Dropped and made again: another column, though it looks the same. Compaction keeps what is kept."""
    after = version("1 id int8, 2 amount int4, 4 note text")
    move(driver, after, START + 2, net(after, [{"id": 2, "amount": 21, "note": "new"}]))
    for number in range(3, 9):
        apply(driver, after, START + number, net(after, [{"id": number, "amount": 0, "note": "n"}]))
        any_lake.maintain(driver, after)
    one, two = any_lake.rows(after)[:2]
    assert one == {"id": 1, "amount": 10, "note": None, "note_dropped_1": "one"}
    assert two == {"id": 2, "amount": 21, "note": "new", "note_dropped_1": None}


def test_a_cell_is_fetched_by_the_name_that_its_column_has_now(any_lake: Lake, driver: TableDestination) -> None:
    renamed = version("1 id int8, 2 amount int4, 3 text text")
    unsent = net(renamed, [{"id": 1, "amount": 11, "text": None}], fetches=[("text", 0, {"id": 1})])
    move(driver, renamed, START + 2, unsent)
    assert any_lake.rows(renamed)[0] == {"id": 1, "amount": 11, "text": "one"}


def test_what_was_rescued_follows_its_column(typed_lake: Lake, typed_driver: TableDestination) -> None:
    """Into a row that is fetched, and when files are merged; also if another column has the name now."""
    lost = [("amount", "NaN"), ("note", "x")]
    rows = [{"id": number, "amount": None, "note": None, RESCUED: lost} for number in (1, 2)]
    apply(typed_driver, BASE, START + 2, net(BASE, rows))
    renamed = version("1 id int8, 2 sum int4, 3 amount text")
    unsent = net(renamed, [{"id": 1, "sum": None, "amount": "sent"}], fetches=[("sum", 0, {"id": 1})])
    move(typed_driver, renamed, START + 3, unsent)
    assert typed_lake.rows(renamed)[0] == {"id": 1, "sum": None, "amount": "sent", RESCUED: [("sum", "NaN")]}
    for number in range(4, 10):
        apply(typed_driver, renamed, START + number, net(renamed, [{"id": number, "sum": 0, "amount": "n"}]))
        typed_lake.maintain(typed_driver, renamed)
    assert sorted(typed_lake.rows(renamed)[1][RESCUED]) == [("amount", "x"), ("sum", "NaN")]


@pytest.mark.parametrize("on_drop", ["keep", "drop"])
def test_what_was_rescued_is_not_another_columns(
    typed_lake: Lake, typed_driver: TableDestination, on_drop: OnDrop
) -> None:
    row = {"id": 1, "amount": 1, "note": None, RESCUED: [("note", "x")]}
    apply(typed_driver, BASE, START + 2, net(BASE, [row]))
    after = version("1 id int8, 2 amount int4, 4 note text")
    unsent = net(after, [{"id": 1, "amount": 2, "note": None}], fetches=[("note", 0, {"id": 1})])
    move(typed_driver, after, START + 3, unsent, on_drop=on_drop)
    found = typed_lake.rows(after)[0]
    assert (found["amount"], found["note"], found[RESCUED]) == (2, None, None)


def test_a_structure_alone_may_move(any_lake: Lake, driver: TableDestination) -> None:
    wider = version("1 id int8, 2 amount int4, 3 note text, 4 more text")
    move(driver, wider, START + 2)
    assert any_lake.rows(wider)[0] == {**ONE, "more": None}
    assert driver.position(wider.table, SOURCE) == START + 2


def test_a_refused_commit_moves_no_structure(any_lake: Lake, driver: TableDestination) -> None:
    wider = version("1 id int8, 2 amount int4, 3 note text, 4 more text")
    plan = driver.plan(wider.table, SOURCE, wider)
    parts = write(plan, net(wider, [{"id": 3, "amount": 3, "note": "x", "more": "y"}]))
    apply(again(any_lake), BASE, START + 2, net(BASE, [{"id": 4, "amount": 4, "note": "other"}]))
    with pytest.raises(StaleBase):
        driver.commit(plan, parts, truncated=False, position=START + 2)
    assert set(any_lake.rows(BASE)[0]) == {"id", "amount", "note"}
    assert driver.structure(BASE.table, SOURCE) == BASE


def copied(destination: TableDestination, schema: TableSchema, rows: Sequence[Row], position: int) -> None:
    plan = destination.plan_copy(schema.table, SOURCE, schema)
    part = plan.write_rows([pa.Table.from_pylist(list(rows), schema=arrow_schema(schema))])
    over = destination.plan_catchup(schema.table, SOURCE, [part], position)
    first = {**rows[0], schema.columns[-1].name: None}
    parts = [part, *write(over, net(schema, [first]))]
    destination.commit_copy(schema.table, SOURCE, parts, position)


@pytest.mark.parametrize(
    ("after", "key", "row"),
    [
        ("1 id int8, 2 amount text, 3 note text", ("id",), {"id": 7, "amount": "many", "note": "n"}),
        ("1 id int8, 2 amount int4, 3 note text", ("id", "amount"), {"id": 7, "amount": 1, "note": "n"}),
        ("1 id int8, 2 amount int4, 3 note text", (), {"id": 7, "amount": 1, "note": "n"}),
        ("1 code uuid, 2 other text", ("code",), {"code": "00000000-0000-0000-0000-00000000000a", "other": "o"}),
        ("3 id text, 2 amount int4, 4 more text", ("id",), {"id": "seven", "amount": 1, "more": "m"}),
    ],
    ids=["another type", "longer key", "no key", "all other", "key is another column"],
)
def test_a_copy_brings_any_structure(
    any_lake: Lake, driver: TableDestination, after: str, key: Sequence[str], row: Row
) -> None:
    schema = replace(version(after, key), relation_id=2)
    if not key:
        plan = driver.plan_copy(schema.table, SOURCE, schema)
        part = plan.write_rows([pa.Table.from_pylist([row], schema=arrow_schema(schema))])
        driver.commit_copy(schema.table, SOURCE, [part], START + 5)
        expected: Row = row
    else:
        copied(driver, schema, [row], START + 5)
        expected = {**row, schema.columns[-1].name: None}
    found = any_lake.rows(schema)
    assert [{name: one[name] for name in row} for one in found] == [expected]
    following = again(any_lake)
    assert following.structure(schema.table, SOURCE) == schema
    apply(following, schema, START + 6, net(schema, [row]))
    assert len(any_lake.rows(schema)) == (1 if key else 2)


def test_a_copy_of_another_structure_than_planned_is_void(any_lake: Lake, driver: TableDestination) -> None:
    wider = version("1 id int8, 2 amount int4, 3 note text, 4 more text")
    part = driver.plan_copy(BASE.table, SOURCE, BASE).write_rows([pa.Table.from_pylist([ONE], arrow_schema(BASE))])
    driver.plan_copy(wider.table, SOURCE, wider)
    with pytest.raises(RangeVoid):
        driver.commit_copy(wider.table, SOURCE, [part], START + 9)
    assert any_lake.rows(BASE) == [ONE, TWO]


def sql(spark: Any, lake: Lake, statement: str) -> None:
    """As a person does."""
    session = spark.newSession()
    for key, value in spark_settings(iceberg_config(lake.root), local_file_io=FILE_IO).items():
        if key != "spark.sql.extensions":
            session.conf.set(key, value)
    session.sql(statement)


def test_a_persons_columns_stay_and_make_room(spark: Any, tmp_path: Any) -> None:
    lake = iceberg_lake(spark, tmp_path, iceberg_config(tmp_path, compact_files=2))
    driver = lake.driver()
    driver.ensure_table(BASE.table, BASE, SOURCE, START)
    apply(driver, BASE, START + 1, net(BASE, [ONE]))
    sql(spark, lake, "alter table lake.public.orders add columns (more string, tags array<string>)")
    apply(driver, BASE, START + 2, net(BASE, [TWO]))
    lake.maintain(driver, BASE)
    wider = version("1 id int8, 2 amount int4, 3 note text, 4 more int4")
    move(driver, wider, START + 3, net(wider, [{**TWO, "more": 5}]))
    one, two = lake.rows(wider)
    assert one == {**ONE, "more": None, "more_dropped_1": None, "tags": None}
    assert two["more"] == 5


BY_A_PERSON = {
    "drop column note": "column note is gone",
    "rename column note to comment": "column note is called comment",
    "alter column amount type bigint": "column amount is long, should be int",
    "set tblproperties ('format-version' = '3')": "it has Iceberg's format version 3",
}


def test_what_a_person_changed_is_that_tables_trouble(spark: Any, tmp_path: Any) -> None:
    lake = iceberg_lake(spark, tmp_path, iceberg_config(tmp_path))
    driver = lake.driver()
    for number, (change, said) in enumerate(BY_A_PERSON.items()):
        schema = replace(BASE, table=TableId("public", f"orders_{number}"))
        driver.ensure_table(schema.table, schema, SOURCE, START)
        apply(driver, schema, START + 1, net(schema, [ONE, TWO]))
        sql(spark, lake, f"alter table lake.public.{schema.table.name} {change}")
        with pytest.raises(SchemaChanged, match=said):
            driver.plan(schema.table, SOURCE)
        with pytest.raises(SchemaChanged, match=said):
            lake.driver().ensure_table(schema.table, schema, SOURCE, None)
        sql(spark, lake, f"drop table lake.public.{schema.table.name}")
        with pytest.raises(TableDropped):
            driver.plan(schema.table, SOURCE)


def test_a_copy_with_rescued_cells_is_void_when_their_column_gets_another_number(spark: Any, tmp_path: Any) -> None:
    lake = iceberg_lake(spark, tmp_path, iceberg_config(tmp_path))
    driver = lake.driver()
    driver.ensure_table(BASE.table, BASE, SOURCE, None)
    rescuing = arrow_schema(BASE).append(pa.field(RESCUED, RESCUED_TYPE))
    lost = {**ONE, "amount": None, RESCUED: [("amount", "NaN")]}
    part = driver.plan_copy(BASE.table, SOURCE).write_rows([pa.Table.from_pylist([lost], rescuing)])
    driver.plan_catchup(BASE.table, SOURCE, [part], START)
    sql(spark, lake, "alter table lake.public.orders add columns (mine string)")
    plain = driver.plan_copy(BASE.table, SOURCE).write_rows([pa.Table.from_pylist([ONE], arrow_schema(BASE))])
    driver.plan_catchup(BASE.table, SOURCE, [plain], START)
    with pytest.raises(RangeVoid, match="its columns have changed"):
        driver.plan_catchup(BASE.table, SOURCE, [part], START)
