"""Delta tables as others read and change them: delta-rs sees what was written, and what others did is noticed."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from destination_rows import (
    ORDERS,
    SOURCE,
    START,
    Lake,
    Row,
    apply,
    delta_config,
    delta_lake,
    net,
    ordered,
    restore,
    table,
    write,
)
from penstock.destinations.delta.destination import DeltaDestination
from penstock.destinations.delta.log import TableLog, entry_name
from penstock.destinations.lake.warehouse import table_folder
from penstock.errors import LineageLost, SchemaChanged, StaleBase
from penstock.model.table import TableSchema

KINDS = table(
    "kinds",
    "id int8, amount numeric, day date, at timestamptz, local timestamp, ratio float8, note text, raw bytea, yes bool",
)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return delta_lake(tmp_path, delta_config(tmp_path, compact_files=3, expire_every=4, keep_snapshots=2, keep_for=0))


def opened(lake: Lake, schema: TableSchema = ORDERS) -> DeltaDestination:
    driver = lake.driver()
    assert isinstance(driver, DeltaDestination)
    driver.ensure_table(schema.table, schema, SOURCE, START)
    return driver


def location(lake: Lake, schema: TableSchema = ORDERS) -> str:
    return table_folder(delta_config(lake.root), schema.table)


def by_delta_rs(lake: Lake, schema: TableSchema = ORDERS) -> list[Row]:
    found = QueryBuilder().register("t", DeltaTable(location(lake, schema))).execute("select * from t").read_all()
    return ordered(schema, pa.table(found).to_pylist())


def rows(numbers: range, note: str = "x") -> list[Row]:
    return [{"id": n, "amount": n, "note": note} for n in numbers]


def test_delta_rs_reads_what_was_written_at_every_step(lake: Lake) -> None:
    driver = opened(lake)
    for number in range(12):
        upserts = rows(range(number * 3, number * 3 + 40), f"{number}")
        apply(driver, ORDERS, START + number + 1, net(ORDERS, upserts, [{"id": number}]))
        lake.maintain(driver, ORDERS)
        assert by_delta_rs(lake) == lake.rows(ORDERS)
    log = Path(location(lake)) / "_delta_log"
    assert (log / "_last_checkpoint").exists()
    assert not (log / f"{0:020d}.json").exists(), "the log is cut"
    assert lake.rows(ORDERS) == lake.rows(ORDERS)
    again = opened(lake)
    apply(again, ORDERS, START + 20, net(ORDERS, rows(range(5), "again")))
    assert by_delta_rs(lake) == lake.rows(ORDERS)
    assert again.position(ORDERS.table, SOURCE) == START + 20


def test_bounds_never_hide_a_row(lake: Lake) -> None:
    driver = opened(lake, KINDS)
    moment = datetime(2026, 1, 1, 0, 0, 0, 123456, UTC)
    row = {
        "id": 1,
        "amount": Decimal("12345678.91"),
        "day": date(2026, 1, 1),
        "at": moment,
        "local": moment.replace(tzinfo=None),
        "ratio": float("nan"),
        "note": "z" * 50,
        "raw": b"\x00\xff",
        "yes": True,
    }
    apply(driver, KINDS, START + 1, net(KINDS, [row, {**row, "id": 2, "ratio": 1.5}]))
    read = QueryBuilder().register("t", DeltaTable(location(lake, KINDS)))
    for condition in (
        "amount >= cast('12345678.91' as decimal(12, 2))",
        "day = date '2026-01-01'",
        "at >= timestamp '2026-01-01T00:00:00.123456Z'",
        "local >= timestamp '2026-01-01T00:00:00.123456'",
        f"note = '{'z' * 50}'",
        "id = 2",
    ):
        found = read.execute(f"select id from t where {condition}").read_all().column(0).to_pylist()
        assert 2 in found, condition


def test_of_two_drivers_only_one_makes_the_next_version(lake: Lake) -> None:
    first, second = opened(lake), opened(lake)
    for number in range(20):
        one, other = (first, second) if number % 2 else (second, first)
        plans = [driver.plan(ORDERS.table, SOURCE) for driver in (one, other)]
        parts = [write(plan, net(ORDERS, rows(range(number, number + 5), f"{number}"))) for plan in plans]
        one.commit(plans[0], parts[0], truncated=False, position=START + number + 1)
        with pytest.raises(StaleBase):
            other.commit(plans[1], parts[1], truncated=False, position=START + number + 1)
        other.discard(parts[1])
    expected = {row["id"]: row for number in range(20) for row in rows(range(number, number + 5), f"{number}")}
    assert by_delta_rs(lake) == ordered(ORDERS, list(expected.values()))


def test_an_entry_that_somebody_replaced_is_noticed(lake: Lake) -> None:
    """Delta in Spark renames over an entry that came meanwhile: ours is lost then, and the batch is redone."""
    driver = opened(lake)
    apply(driver, ORDERS, START + 1, net(ORDERS, rows(range(3))))
    entry = Path(location(lake)) / "_delta_log" / entry_name(1)
    other = entry.with_name("other")
    other.write_text(json.dumps({"commitInfo": {"operation": "OPTIMIZE"}}) + "\n")
    presumed = driver.plan(ORDERS.table, SOURCE, presumed=True)
    other.rename(entry)
    with pytest.raises(StaleBase):
        driver.commit(presumed, write(presumed, net(ORDERS, rows(range(3, 6)))), truncated=False, position=START + 2)
    assert driver.position(ORDERS.table, SOURCE) == START
    apply(driver, ORDERS, START + 1, net(ORDERS, rows(range(3))))
    assert lake.rows(ORDERS) == rows(range(3))


def test_a_restore_is_noticed_and_one_forward_puts_back_what_was_there(lake: Lake) -> None:
    driver = opened(lake)
    for number in range(3):
        apply(driver, ORDERS, START + number + 1, net(ORDERS, rows(range(number, number + 1))))
    restore(location(lake), 2)
    with pytest.raises(LineageLost, match="restored to what it was before our version 3"):
        driver.plan(ORDERS.table, SOURCE)
    lake.maintain(driver, ORDERS)
    with pytest.raises(LineageLost):
        opened(lake).plan(ORDERS.table, SOURCE)
    restore(location(lake), 3)
    apply(driver, ORDERS, START + 9, net(ORDERS, rows(range(5, 6))))
    assert lake.rows(ORDERS) == rows(range(3)) + rows(range(5, 6))


def test_a_feature_that_is_not_ours_is_refused_with_its_name(lake: Lake) -> None:
    driver = opened(lake)
    log = TableLog(location(lake))
    log.refresh()
    features = [*log.state.protocol["writerFeatures"], "rowTracking", "domainMetadata"]
    log.put([{"protocol": {**log.state.protocol, "writerFeatures": features}}], "SET TBLPROPERTIES")
    with pytest.raises(SchemaChanged, match="domainMetadata, rowTracking"):
        driver.plan(ORDERS.table, SOURCE)
