"""Tables that somebody dropped or replaced in the lake, and files that somebody lost: whose trouble it is."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from destination_rows import ORDERS, SOURCE, START, Lake, Row, apply, iceberg_config, iceberg_lake, net, table, write
from penstock.destinations.contract import TableDestination
from penstock.destinations.lake.lost_files import MOST_READS
from penstock.destinations.lake.upsert_plan import UpsertPlan
from penstock.errors import (
    DestinationUnreachable,
    FilesLost,
    FileUnreadable,
    PenstockError,
    PositionLost,
    StaleBase,
    TableDropped,
)

PEOPLE = table("people", "id int8, note text")


def rows(numbers: range, note: str = "x") -> list[Row]:
    return [{"id": n, "amount": n, "note": note} for n in numbers]


@contextmanager
def catalog(lake: Lake) -> Iterator[SqlCatalog]:
    """Somebody else's."""
    made = SqlCatalog("lake", uri=f"sqlite:///{lake.warehouse}/catalog.db", warehouse=str(lake.warehouse))
    try:
        yield made
    finally:
        made.close()


def drop(lake: Lake, *, purge: bool = False) -> None:
    with catalog(lake) as other:
        (other.purge_table if purge else other.drop_table)("public.orders")


def drop_namespace(lake: Lake) -> None:
    with catalog(lake) as other:
        for name in other.list_tables("public"):
            other.drop_table(name)
        other.drop_namespace("public")


def filled(lake: Lake) -> TableDestination:
    """A driver with a table of three data files, some rows of which are dead."""
    driver = lake.driver()
    driver.ensure_table(ORDERS.table, ORDERS, SOURCE, START)
    for number in range(3):
        apply(driver, ORDERS, START + number + 1, net(ORDERS, rows(range(number, number + 10))))
    return driver


def copied(driver: TableDestination, position: int) -> None:
    plan = driver.plan_copy(ORDERS.table, SOURCE)
    driver.commit_copy(ORDERS.table, SOURCE, [plan.write_rows([net(ORDERS, rows(range(5))).upserts])], position)


CALLS: dict[str, Callable[[TableDestination], object]] = {
    "plan": lambda driver: driver.plan(ORDERS.table, SOURCE),
    "plan_copy": lambda driver: driver.plan_copy(ORDERS.table, SOURCE),
    "advance": lambda driver: driver.advance(ORDERS.table, SOURCE, START + 3, START + 9),
    "bookmark": lambda driver: driver.bookmark(ORDERS.table, SOURCE, "penstock_pin_1"),
    "structure": lambda driver: driver.structure(ORDERS.table, SOURCE),
}


@pytest.mark.parametrize("how", [drop, lambda lake: drop(lake, purge=True), drop_namespace])
def test_a_dropped_table_is_made_again_and_copied(iceberg: Lake, how: Callable[[Lake], None]) -> None:
    driver = filled(iceberg)
    begun = driver.plan(ORDERS.table, SOURCE)
    parts = write(begun, net(ORDERS, rows(range(20, 25))))
    how(iceberg)
    with pytest.raises(StaleBase):
        driver.commit(begun, parts, truncated=False, position=START + 4)
    for _ in range(2):  # Iceberg says it once in one way, and from then on in another
        for call in CALLS.values():
            with pytest.raises(TableDropped):
                call(driver)
    driver.release(ORDERS.table, SOURCE, "penstock_pin_1")
    assert driver.position(ORDERS.table, SOURCE) is None
    assert driver.ensure_table(ORDERS.table, ORDERS, SOURCE, None) is None
    copied(driver, START + 10)
    assert len(iceberg.rows(ORDERS)) == 5
    apply(driver, ORDERS, START + 11, net(ORDERS, rows(range(3, 8), "y")))
    assert len(iceberg.rows(ORDERS)) == 8


def test_a_table_dropped_while_it_is_copied_or_maintained(spark: SparkSession, tmp_path: Path) -> None:
    lake = iceberg_lake(spark, tmp_path, iceberg_config(tmp_path, compact_files=3, expire_every=2, keep_snapshots=1))
    driver = filled(lake)
    plan = driver.plan_copy(ORDERS.table, SOURCE)
    part = plan.write_rows([net(ORDERS, rows(range(5))).upserts])
    drop(lake)
    with pytest.raises(StaleBase):
        lake.maintain(driver, ORDERS)
    with pytest.raises(TableDropped):
        driver.commit_copy(ORDERS.table, SOURCE, [part], START + 10)
    lake.maintain(driver, ORDERS)  # of a table whose state nobody knows nothing is done


def test_another_table_in_the_place_of_ours(iceberg: Lake) -> None:
    driver = filled(iceberg)
    with catalog(iceberg) as other:
        there = other.load_table("public.orders").schema()
        other.drop_table("public.orders")
        other.create_table("public.orders", there)
    with pytest.raises(TableDropped, match="another table in its place"):
        driver.plan(ORDERS.table, SOURCE)
    with pytest.raises(PositionLost, match="something else made it"):
        driver.ensure_table(ORDERS.table, ORDERS, SOURCE, None)


def files(lake: Lake, pattern: str) -> list[Path]:
    return sorted((lake.warehouse / "public" / "orders").glob(pattern), key=lambda path: path.stat().st_mtime_ns)


def unreadable(call: Callable[[], object]) -> FileUnreadable:
    with pytest.raises(FileUnreadable) as met:
        call()
    return met.value


def fetch(driver: TableDestination) -> object:
    """Reads a cell of each row from the table."""
    plan = driver.plan(ORDERS.table, SOURCE)
    keys = [{"id": n} for n in range(12)]
    wanted = [("note", number, key) for number, key in enumerate(keys)]
    return write(plan, net(ORDERS, [{**key, "amount": 1, "note": None} for key in keys], fetches=wanted))


@pytest.mark.parametrize(
    ("pattern", "met_by"),
    [
        ("data/*[0-9a-f].parquet", fetch),
        ("data/*-deletes.parquet", fetch),
        ("metadata/*-m0.avro", lambda driver: driver.ensure_table(ORDERS.table, ORDERS, SOURCE, START)),
        ("metadata/snap-*.avro", lambda driver: driver.ensure_table(ORDERS.table, ORDERS, SOURCE, START)),
        ("metadata/*.metadata.json", lambda driver: driver.ensure_table(ORDERS.table, ORDERS, SOURCE, START)),
    ],
)
def test_a_lost_file_is_its_tables_trouble(
    iceberg: Lake, pattern: str, met_by: Callable[[TableDestination], object]
) -> None:
    driver = filled(iceberg)
    driver.ensure_table(PEOPLE.table, PEOPLE, SOURCE, START)
    lost = files(iceberg, pattern)[-1]
    content = lost.read_bytes()
    lost.unlink()
    error = unreadable(lambda: met_by(driver))
    assert Path(error.location.removeprefix("file:")) == lost
    told = driver.diagnose(ORDERS.table, SOURCE, error)
    assert isinstance(told, FilesLost), told
    assert str(lost) in told.what
    assert ("resync" if pattern.startswith("data") else "drop public.orders") in told.solution
    lost.write_bytes(content)
    met_by(driver)


def test_a_damaged_file_is_believed_to_be_lost_when_it_fails_again(iceberg: Lake) -> None:
    driver = filled(iceberg)
    damaged = files(iceberg, "data/*[0-9a-f].parquet")[-1]
    damaged.write_bytes(b"PAR1" + bytes(damaged.stat().st_size))
    told: list[PenstockError] = []
    for _ in range(MOST_READS):
        told.append(driver.diagnose(ORDERS.table, SOURCE, unreadable(lambda: fetch(driver))))
    assert [type(one) for one in told] == [FileUnreadable] * (MOST_READS - 1) + [FilesLost]


def test_a_store_that_is_away_is_no_tables_trouble(iceberg: Lake) -> None:
    driver = filled(iceberg)
    plan = driver.plan(ORDERS.table, SOURCE)
    away = iceberg.warehouse.with_name("away")
    iceberg.warehouse.rename(away)
    iceberg.warehouse.mkdir()  # what is left of a mount
    wanted = [("note", 0, {"id": 3})]
    error = unreadable(lambda: write(plan, net(ORDERS, [{"id": 3, "amount": 1, "note": None}], fetches=wanted)))
    told = driver.diagnose(ORDERS.table, SOURCE, error)
    assert isinstance(told, DestinationUnreachable), told
    shutil.rmtree(iceberg.warehouse)
    assert isinstance(driver.diagnose(ORDERS.table, SOURCE, error), DestinationUnreachable)
    away.rename(iceberg.warehouse)
    fetch(driver)


def test_a_file_that_the_table_has_let_go_is_not_lost(iceberg: Lake) -> None:
    driver, other = filled(iceberg), iceberg.driver()
    plan = driver.plan(ORDERS.table, SOURCE)
    other.ensure_table(ORDERS.table, ORDERS, SOURCE, START)
    apply(other, ORDERS, START + 4, net(ORDERS, rows(range(2)), truncated=True))
    assert isinstance(plan, UpsertPlan)
    for old in plan.files:
        Path(old.path).unlink()
    wanted = [("note", 0, {"id": 3})]
    error = unreadable(lambda: write(plan, net(ORDERS, [{"id": 3, "amount": 1, "note": None}], fetches=wanted)))
    assert isinstance(driver.diagnose(ORDERS.table, SOURCE, error), StaleBase)


def test_compaction_meets_a_lost_file(spark: SparkSession, tmp_path: Path) -> None:
    lake = iceberg_lake(spark, tmp_path, iceberg_config(tmp_path, compact_files=3))
    driver = filled(lake)
    lost = files(lake, "data/*[0-9a-f].parquet")[0]
    lost.unlink()
    told = driver.diagnose(ORDERS.table, SOURCE, unreadable(lambda: lake.maintain(driver, ORDERS)))
    assert isinstance(told, FilesLost), told
    copied(driver, START + 10)  # the way out
    assert len(lake.rows(ORDERS)) == 5
    lake.maintain(driver, ORDERS)


def test_a_lost_file_of_an_old_snapshot_costs_a_line_in_the_log(spark: SparkSession, tmp_path: Path) -> None:
    lake = iceberg_lake(spark, tmp_path, iceberg_config(tmp_path, expire_every=2, keep_snapshots=1, time_travel=0))
    driver = filled(lake)
    files(lake, "metadata/snap-*.avro")[0].unlink()
    apply(driver, ORDERS, START + 4, net(ORDERS, rows(range(2)), truncated=True))
    (lake.warehouse / "public" / "orders" / "data" / "penstock-left.parquet").write_bytes(b"of a killed writer")
    with capture_logs() as logs:
        assert driver.ensure_table(ORDERS.table, ORDERS, SOURCE, START) == START + 4
        lake.maintain(driver, ORDERS)
        lake.maintain(driver, ORDERS)
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"]
    apply(driver, ORDERS, START + 5, net(ORDERS, rows(range(3))))
    assert len(lake.rows(ORDERS)) == 3


def test_a_folder_that_somebody_removed_is_made_again(iceberg: Lake) -> None:
    driver = filled(iceberg)
    shutil.rmtree(iceberg.warehouse / "public" / "orders" / "data")
    copied(driver, START + 10)
    assert len(iceberg.rows(ORDERS)) == 5
