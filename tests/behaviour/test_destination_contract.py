"""The destination contract, held against every destination: the memory twin and Iceberg."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from destination_rows import ORDERS, SOURCE, START, Lake, Row, apply, in_buckets, net, ordered, table, write
from penstock.destinations.contract import TableDestination
from penstock.errors import CopyNeeded, PositionLost, StaleBase
from penstock.model.table import Column, ColumnType, TableId, TableSchema

ONE = {"id": 1, "amount": 10, "note": "one"}
TWO = {"id": 2, "amount": 20, "note": "two"}
THREE = {"id": 3, "amount": 30, "note": None}


@pytest.fixture
def driver(any_lake: Lake) -> TableDestination:
    destination = any_lake.driver()
    destination.ensure_table(ORDERS.table, ORDERS, SOURCE, START)
    return destination


def test_a_new_table_is_empty_and_at_its_start(any_lake: Lake, driver: TableDestination) -> None:
    assert any_lake.rows(ORDERS) == []
    assert driver.position(ORDERS.table, SOURCE) == START
    assert driver.position(ORDERS.table, "another") is None
    assert driver.position(TableId("public", "unknown"), SOURCE) is None


def test_upserts_and_deletes(any_lake: Lake, driver: TableDestination) -> None:
    apply(driver, ORDERS, START + 1, net(ORDERS, [ONE, TWO, THREE]))
    changed = {"id": 2, "amount": None, "note": ""}
    apply(driver, ORDERS, START + 2, net(ORDERS, [changed, {**ONE, "id": 4}], deletes=[{"id": 1}, {"id": 99}]))
    assert any_lake.rows(ORDERS) == [changed, THREE, {**ONE, "id": 4}]
    apply(driver, ORDERS, START + 3, net(ORDERS, [ONE], deletes=[{"id": 2}, {"id": 3}, {"id": 4}]))
    assert any_lake.rows(ORDERS) == [ONE]
    assert driver.position(ORDERS.table, SOURCE) == START + 3


def test_parts_of_several_tasks_are_one_commit(any_lake: Lake, driver: TableDestination) -> None:
    rows = [{"id": number, "amount": number, "note": "x"} for number in range(100)]
    apply(driver, ORDERS, START + 1, *in_buckets(ORDERS, rows, [], 3))
    later = [{**row, "note": "y"} for row in rows[:50]]
    apply(driver, ORDERS, START + 2, *in_buckets(ORDERS, later, rows[90:], 4))
    assert any_lake.rows(ORDERS) == ordered(ORDERS, later + rows[50:90])


def test_truncate_clears_what_came_before(any_lake: Lake, driver: TableDestination) -> None:
    apply(driver, ORDERS, START + 1, net(ORDERS, [ONE, TWO]))
    apply(driver, ORDERS, START + 2, net(ORDERS, [THREE], truncated=True))
    assert any_lake.rows(ORDERS) == [THREE]
    apply(driver, ORDERS, START + 3, net(ORDERS, [ONE, {**THREE, "amount": 1}]))
    assert any_lake.rows(ORDERS) == [ONE, {**THREE, "amount": 1}]
    apply(driver, ORDERS, START + 4, net(ORDERS, truncated=True))
    assert any_lake.rows(ORDERS) == []
    apply(driver, ORDERS, START + 5, net(ORDERS, truncated=True))
    apply(driver, ORDERS, START + 6, net(ORDERS, [TWO]))
    assert any_lake.rows(ORDERS) == [TWO]
    assert driver.position(ORDERS.table, SOURCE) == START + 6


def test_a_table_without_a_key_takes_rows(any_lake: Lake) -> None:
    schema = table("events", "at timestamptz, what text", key=())
    driver = any_lake.driver()
    driver.ensure_table(schema.table, schema, SOURCE, START)
    row = {"at": datetime(2026, 1, 2, tzinfo=UTC), "what": "same"}
    apply(driver, schema, START + 1, net(schema, [row, row]))
    apply(driver, schema, START + 2, net(schema, [row]))
    any_lake.maintain(driver, schema)
    assert any_lake.rows(schema) == [row] * 3
    apply(driver, schema, START + 3, net(schema, [row], truncated=True))
    assert any_lake.rows(schema) == [row]


def test_cells_that_did_not_change_keep_their_value(any_lake: Lake, driver: TableDestination) -> None:
    apply(driver, ORDERS, START + 1, net(ORDERS, [ONE, TWO]))
    apply(driver, ORDERS, START + 2, net(ORDERS, [THREE, {**TWO, "note": "newer"}]))
    upserts: list[Row] = [
        {"id": 1, "amount": 11, "note": None},
        {"id": 7, "amount": 22, "note": None},
        {"id": 3, "amount": 33, "note": "sent"},
        {"id": 8, "amount": None, "note": None},
    ]
    fetches = [("note", 0, {"id": 1}), ("note", 1, {"id": 2}), ("note", 3, {"id": 3}), ("amount", 3, {"id": 1})]
    apply(driver, ORDERS, START + 3, net(ORDERS, upserts, [{"id": 2}], fetches=fetches))
    assert any_lake.rows(ORDERS) == [
        {"id": 1, "amount": 11, "note": "one"},
        {"id": 3, "amount": 33, "note": "sent"},
        {"id": 7, "amount": 22, "note": "newer"},
        {"id": 8, "amount": 10, "note": None},
    ]


def test_cells_of_rows_that_are_not_there_are_null(any_lake: Lake, driver: TableDestination) -> None:
    apply(driver, ORDERS, START + 1, net(ORDERS, [ONE, TWO]))
    apply(driver, ORDERS, START + 2, net(ORDERS, deletes=[{"id": 1}]))
    upserts = [{"id": 1, "amount": 1, "note": None}, {"id": 5, "amount": 5, "note": None}]
    unsent = net(ORDERS, upserts, fetches=[("note", 0, {"id": 1}), ("note", 1, {"id": 5})])
    if driver.capabilities.looks_up == "commit":  # who writes cannot tell, so the commit is not made
        with pytest.raises(CopyNeeded):
            apply(driver, ORDERS, START + 3, unsent)
        assert (any_lake.rows(ORDERS), driver.position(ORDERS.table, SOURCE)) == ([TWO], START + 2)
        return
    apply(driver, ORDERS, START + 3, unsent)
    assert any_lake.rows(ORDERS) == [upserts[0], TWO, upserts[1]]


def test_a_batch_cannot_be_committed_twice(any_lake: Lake, driver: TableDestination) -> None:
    plan = driver.plan(ORDERS.table, SOURCE)
    parts = write(plan, net(ORDERS, [ONE]))
    driver.commit(plan, parts, truncated=False, position=START + 1)
    again = write(plan, net(ORDERS, [ONE]))
    with pytest.raises(StaleBase):
        driver.commit(plan, again, truncated=False, position=START + 1)
    driver.discard(again)
    assert any_lake.rows(ORDERS) == [ONE]
    assert driver.plan(ORDERS.table, SOURCE).position == START + 1


def test_a_stale_driver_cannot_roll_a_table_back(any_lake: Lake, driver: TableDestination) -> None:
    apply(driver, ORDERS, START + 1, net(ORDERS, [ONE]))
    stale = driver.plan(ORDERS.table, SOURCE)
    other = any_lake.driver()
    assert other.ensure_table(ORDERS.table, ORDERS, SOURCE, START) == START + 1
    apply(other, ORDERS, START + 2, net(ORDERS, [{**ONE, "amount": 99}, TWO]))
    for truncated in (False, True):
        parts = write(stale, net(ORDERS, [{**ONE, "amount": 0}], truncated=truncated))
        with pytest.raises(StaleBase):
            driver.commit(stale, parts, truncated=truncated, position=START + 2)
    assert any_lake.rows(ORDERS) == [{**ONE, "amount": 99}, TWO]
    apply(driver, ORDERS, START + 3, net(ORDERS, [THREE], deletes=[{"id": 2}]))
    assert any_lake.rows(ORDERS) == [{**ONE, "amount": 99}, THREE]


def test_the_position_advances_alone(any_lake: Lake, driver: TableDestination) -> None:
    apply(driver, ORDERS, START + 1, net(ORDERS, [ONE]))
    driver.advance(ORDERS.table, SOURCE, START + 1, START + 5)
    assert driver.position(ORDERS.table, SOURCE) == START + 5
    with pytest.raises(StaleBase):
        driver.advance(ORDERS.table, SOURCE, START + 1, START + 6)
    plan = driver.plan(ORDERS.table, SOURCE)
    parts = write(plan, net(ORDERS, [TWO]))
    other = any_lake.driver()
    other.ensure_table(ORDERS.table, ORDERS, SOURCE, START)
    other.advance(ORDERS.table, SOURCE, START + 5, START + 7)
    with pytest.raises(StaleBase):
        driver.commit(plan, parts, truncated=False, position=START + 6)
    assert any_lake.rows(ORDERS) == [ONE]
    assert driver.position(ORDERS.table, SOURCE) == START + 7


def test_a_batch_without_effect_moves_the_position(any_lake: Lake, driver: TableDestination) -> None:
    plan = driver.plan(ORDERS.table, SOURCE)
    parts = write(plan, net(ORDERS, deletes=[{"id": 5}]))
    assert all(part.empty for part in parts) or driver.capabilities.looks_up == "commit"
    driver.commit(plan, parts, truncated=False, position=START + 1)
    assert driver.position(ORDERS.table, SOURCE) == START + 1
    assert any_lake.rows(ORDERS) == []


def test_an_existing_table_keeps_its_position(any_lake: Lake, driver: TableDestination) -> None:
    apply(driver, ORDERS, START + 1, net(ORDERS, [ONE]))
    driver.close()
    again = any_lake.driver()
    assert again.ensure_table(ORDERS.table, ORDERS, SOURCE, START) == START + 1
    apply(again, ORDERS, START + 2, net(ORDERS, [TWO], deletes=[{"id": 1}]))
    assert any_lake.rows(ORDERS) == [TWO]


def test_a_table_of_somebody_else_is_refused(any_lake: Lake, driver: TableDestination) -> None:
    with pytest.raises(PositionLost, match="another"):
        any_lake.driver().ensure_table(ORDERS.table, ORDERS, "another", START)


def test_names_may_be_anything(any_lake: Lake) -> None:
    schema = TableSchema(
        TableId("Shop & Co", 'weird "name" ключ/.. 50%'),
        1,
        tuple(Column(name, ColumnType(25, "text")) for name in ("Key Column", 'quo"te', "ключ", "select", "a.b")),
        ("Key Column", "ключ"),
    )
    driver = any_lake.driver()
    driver.ensure_table(schema.table, schema, SOURCE, START)
    row = {"Key Column": "1", 'quo"te': "x", "ключ": "ü", "select": None, "a.b": "dot"}
    apply(driver, schema, START + 1, net(schema, [row]))
    apply(driver, schema, START + 2, net(schema, [{**row, "select": "now"}]))
    assert any_lake.rows(schema) == [{**row, "select": "now"}]


def _instant(number: int) -> datetime:
    return datetime(1960, 1, 1, tzinfo=UTC) + timedelta(days=number * 700, microseconds=number)


KEYS: dict[str, Callable[[int], dict[str, Any]]] = {
    "id int8": lambda n: {"id": (n - 20) * 2**58},
    "id int4": lambda n: {"id": (n - 20) * 2**26},
    "id text": lambda n: {"id": ["", "a", "ä", "😀", "a" * 30][n % 5] + str(n // 5)},
    "id uuid": lambda n: {"id": str(uuid.UUID(int=n * 2**120 % 2**128))},
    "id numeric": lambda n: {"id": Decimal(n - 20) / 4},
    "id date": lambda n: {"id": date(1900, 1, 1) + timedelta(days=n * 999)},
    "id timestamptz": lambda n: {"id": _instant(n)},
    "id timestamp": lambda n: {"id": _instant(n).replace(tzinfo=None)},
    "id float8": lambda n: {"id": float(n - 20) / 3},
    "id bytea": lambda n: {"id": bytes([n, 0, 255 - n])},
    "id text, part text": lambda n: {"id": "x" * (n % 4), "part": "x" * (n // 4)},
    "id int4, part bool": lambda n: {"id": n // 2, "part": bool(n % 2)},
    "id int8, part timestamptz": lambda n: {"id": n % 3, "part": _instant(n)},
}


@pytest.mark.parametrize("columns", KEYS)
def test_every_type_of_key(any_lake: Lake, columns: str) -> None:
    key = [column.split()[0] for column in columns.split(", ")]
    schema = table("keyed", f"{columns}, version int4, note text", key=key)
    driver = any_lake.driver()
    driver.ensure_table(schema.table, schema, SOURCE, START)
    rng, expected = random.Random(columns), dict[int, Row]()
    for batch in range(8):
        chosen = rng.sample(range(40), 12)
        upserted, deleted = chosen[:8], chosen[8:]
        rows = {n: {**KEYS[columns](n), "version": batch, "note": f"{n}"} for n in upserted}
        effects = in_buckets(schema, list(rows.values()), [KEYS[columns](n) for n in deleted], 1 + batch % 2)
        apply(driver, schema, START + batch + 1, *effects)
        expected = {n: row for n, row in expected.items() if n not in deleted} | rows
        any_lake.maintain(driver, schema)
    assert any_lake.rows(schema) == ordered(schema, list(expected.values()))


@pytest.mark.parametrize("seed", [1, 2])
def test_a_long_life_equals_the_model(any_lake: Lake, seed: int) -> None:
    """Upserts, deletes, truncates, fetches, maintenance and restarts in any order."""
    rng, model, position = random.Random(seed), dict[int, Row](), START
    driver = any_lake.driver()
    driver.ensure_table(ORDERS.table, ORDERS, SOURCE, START)
    for step in range(30):
        deeds = rng.choices(["batch", "fetch", "truncate", "restart", "advance"], [12, 4, 1, 2, 1])[0]
        position += 1
        if deeds == "restart":
            driver = any_lake.driver()
            position -= 1
            assert driver.ensure_table(ORDERS.table, ORDERS, SOURCE, 0) == position
            continue
        if deeds == "advance":
            driver.advance(ORDERS.table, SOURCE, position - 1, position)
            continue
        touched = rng.sample(range(30), rng.randint(1, 12))
        cut = rng.randint(0, len(touched))
        upserts: list[Row] = [{"id": n, "amount": step, "note": f"{step}-{n}"} for n in touched[:cut]]
        fetches = []
        if deeds == "fetch":
            for number, row in enumerate(upserts):
                if row["id"] in model:
                    row["note"] = None
                    fetches.append(("note", number, {"id": row["id"]}))
        deletes = [{"id": n} for n in touched[cut:]]
        apply(driver, ORDERS, position, net(ORDERS, upserts, deletes, truncated=deeds == "truncate", fetches=fetches))
        noted = {
            row["id"]: (model[row["id"]]["note"] if deeds == "fetch" and row["id"] in model else row["note"])
            for row in upserts
        }
        model = {n: row for n, row in model.items() if n not in touched and deeds != "truncate"}
        model |= {row["id"]: {**row, "note": noted[row["id"]]} for row in upserts}
        any_lake.maintain(driver, ORDERS)
        if step % 5 == 4:
            assert any_lake.rows(ORDERS) == ordered(ORDERS, list(model.values())), f"step {step}"
    assert any_lake.rows(ORDERS) == ordered(ORDERS, list(model.values()))
    assert driver.position(ORDERS.table, SOURCE) == position
