"""The contract of destinations that commit all tables of a batch in one step: the twin, and Iceberg on its catalogs."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from destination_rows import (
    ORDERS,
    SOURCE,
    START,
    Lake,
    apply,
    iceberg_config,
    iceberg_lake,
    memory_lake,
    net,
    table,
    write,
)
from penstock.destinations.contract import TableCommit, TableDestination, WholeBatches, committing_whole_batches
from penstock.destinations.iceberg.catalog import database
from penstock.destinations.memory import MemoryDestination
from penstock.destinations.memory_tables import MemoryStore
from penstock.errors import FileUnreadable, StaleBase
from penstock.model.table import TableSchema

LINES = table("order_lines", "id int8, amount int4, note text")
CUSTOMERS = table("customers", "id int8, amount int4, note text")
BOTH = (ORDERS, LINES)


def row(id: int, amount: int) -> dict[str, object]:
    return {"id": id, "amount": amount, "note": ""}


@pytest.fixture(params=["memory", "iceberg", "rest", pytest.param("nessie", marks=pytest.mark.full)])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    if request.param in ("rest", "nessie"):
        lake: Lake = request.getfixturevalue(f"{request.param}_lake")
        return lake
    if request.param == "iceberg":
        spark: SparkSession = request.getfixturevalue("spark")
        return iceberg_lake(spark, tmp_path, iceberg_config(tmp_path))
    made, store = memory_lake(), MemoryStore()
    made.driver = lambda: MemoryDestination(store=store, whole_batches=True)
    made.read = lambda target: MemoryDestination(store=store).rows(target)
    return made


def opened(lake: Lake, *tables: TableSchema) -> TableDestination:
    driver = lake.driver()
    for one in tables:
        driver.ensure_table(one.table, one, SOURCE, START)
    return driver


def whole(driver: TableDestination) -> WholeBatches:
    found = committing_whole_batches(driver)
    assert found is not None
    return found


def batch(driver: TableDestination, amount: int, position: int, tables: Sequence[TableSchema]) -> list[TableCommit]:
    """A commit of each table that sets its row 1 to an amount."""
    commits = []
    for one in tables:
        plan = driver.plan(one.table, SOURCE)
        commits.append(TableCommit(plan, write(plan, net(one, [row(1, amount)])), False, position))
    return commits


def positions(driver: TableDestination, tables: Sequence[TableSchema]) -> list[int | None]:
    return [driver.position(one.table, SOURCE) for one in tables]


def test_all_tables_move_together_and_go_on(lake: Lake) -> None:
    tables = (*BOTH, CUSTOMERS)
    driver = opened(lake, *tables)
    for number in range(1, 4):
        made = whole(driver).commit_batch(batch(driver, number, START + number, tables))
        assert list(made) == [None] * 3
        assert [lake.rows(one) for one in tables] == [[row(1, number)]] * 3
        assert positions(driver, tables) == [START + number] * 3
    apply(driver, ORDERS, START + 9, net(ORDERS, [row(2, 2)]))  # alone, over what the group has made
    assert lake.rows(ORDERS) == [row(1, 3), row(2, 2)]


def test_a_table_that_somebody_else_changed_refuses_the_whole_group(lake: Lake) -> None:
    driver = opened(lake, *BOTH)
    whole(driver).commit_batch(batch(driver, 1, START + 1, BOTH))
    commits = batch(driver, 2, START + 2, BOTH)
    apply(opened(lake, LINES), LINES, START + 2, net(LINES, [row(1, 99)]))  # a second driver

    with pytest.raises(StaleBase):
        whole(driver).commit_batch(commits)
    assert (lake.rows(ORDERS), lake.rows(LINES)) == ([row(1, 1)], [row(1, 99)])
    assert positions(driver, BOTH) == [START + 1, START + 2]

    whole(driver).commit_batch(batch(driver, 3, START + 3, BOTH))
    assert (lake.rows(ORDERS), lake.rows(LINES)) == ([row(1, 3)], [row(1, 3)])


def test_the_next_batch_can_be_written_before_the_commit(lake: Lake) -> None:
    driver = opened(lake, *BOTH)
    whole(driver).commit_batch(batch(driver, 1, START + 1, BOTH))
    first = batch(driver, 2, START + 2, BOTH)
    ahead = []
    for commit, one in zip(first, BOTH, strict=True):
        plan = driver.plan_after(commit.plan, commit.parts, position=START + 2)
        assert plan is not None
        ahead.append(TableCommit(plan, write(plan, net(one, [row(1, 3)])), False, START + 3))
    whole(driver).commit_batch(first)
    whole(driver).commit_batch(ahead)
    assert [lake.rows(one) for one in BOTH] == [[row(1, 3)]] * 2
    assert positions(driver, BOTH) == [START + 3] * 2


def test_a_truncate_and_a_table_that_only_moves_its_position_are_part_of_it(lake: Lake) -> None:
    driver = opened(lake, *BOTH)
    whole(driver).commit_batch(batch(driver, 1, START + 1, BOTH))
    plans = [driver.plan(one.table, SOURCE) for one in BOTH]
    emptied = TableCommit(plans[0], write(plans[0], net(ORDERS, truncated=True)), True, START + 2)
    moved = TableCommit(plans[1], [], False, START + 2)
    assert list(whole(driver).commit_batch([emptied, moved])) == [None, None]
    assert (lake.rows(ORDERS), lake.rows(LINES)) == ([], [row(1, 1)])
    assert positions(driver, BOTH) == [START + 2] * 2


def test_the_catalog_moves_all_pointers_in_one_transaction(spark: SparkSession, tmp_path: Path) -> None:
    """Seen from the catalog's own database: if the pointer of one table does not move, none does."""
    lake = iceberg_lake(spark, tmp_path, iceberg_config(tmp_path))
    driver = opened(lake, *BOTH)
    whole(driver).commit_batch(batch(driver, 1, START + 1, BOTH))
    with closing(sqlite3.connect(tmp_path / "warehouse" / "catalog.db", isolation_level=None)) as catalog:
        names = "select table_name, metadata_location from iceberg_tables order by 1"
        before = catalog.execute(names).fetchall()
        catalog.execute(
            "create trigger held before update on iceberg_tables when new.table_name = 'order_lines' "
            "begin select raise(ignore); end"
        )
        with pytest.raises(StaleBase, match=r"table public\.order_lines has changed"):
            whole(driver).commit_batch(batch(driver, 2, START + 2, BOTH))
        assert catalog.execute(names).fetchall() == before
        catalog.execute("drop trigger held")
    whole(driver).commit_batch(batch(driver, 3, START + 3, BOTH))
    assert [lake.rows(one) for one in BOTH] == [[row(1, 3)]] * 2


def test_which_catalogs_commit_whole_batches(tmp_path: Path) -> None:
    embedded = iceberg_config(tmp_path)
    assert database(embedded) is not None
    jdbc = embedded.model_copy(update={"catalog": {"type": "jdbc", "uri": "jdbc:postgresql://db/c", "jdbc.user": "u"}})
    assert database(jdbc) == ("jdbc:postgresql://db/c", {"user": "u"})
    assert database(embedded.model_copy(update={"catalog": {"type": "rest", "uri": "http://catalog"}})) is None


def test_a_table_that_cannot_be_written_over_keeps_no_other_from_its_commit(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Of two ordinary changes, which Java makes ready together: the manifest list under one of them is lost."""
    lake = iceberg_lake(spark, tmp_path, iceberg_config(tmp_path))
    driver = opened(lake, *BOTH)
    whole(driver).commit_batch(batch(driver, 1, START + 1, BOTH))
    commits = batch(driver, 2, START + 2, BOTH)
    metadata = tmp_path / "warehouse" / "public" / "order_lines" / "metadata"
    for lost in metadata.glob("snap-*.avro"):
        lost.rename(lost.with_suffix(".away"))
    first, second = whole(driver).commit_batch(commits)
    assert first is None
    assert isinstance(second, FileUnreadable)
    assert lake.rows(ORDERS) == [row(1, 2)]
    for lost in metadata.glob("snap-*.away"):
        lost.rename(lost.with_suffix(".avro"))
    whole(driver).commit_batch(batch(driver, 3, START + 3, BOTH))
    assert [lake.rows(one) for one in BOTH] == [[row(1, 3)]] * 2
