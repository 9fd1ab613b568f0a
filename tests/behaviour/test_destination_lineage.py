"""A table whose rows somebody takes back, while its position stays, is never gone on with: LineageLost, until it is
copied again or its snapshot is put back. What others do on top of our commits is no such thing."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from destination_rows import ORDERS, SOURCE, START, Lake, Row, apply, iceberg_config, iceberg_lake, net, table, write
from penstock.decode.schema import arrow_schema
from penstock.destinations.contract import TableDestination
from penstock.destinations.iceberg.catalog import spark_settings
from penstock.destinations.iceberg.lineage import Snapshot, why_not_descended
from penstock.errors import LineageLost, StaleBase, TableError
from penstock.model.table import TableSchema

ONE = {"id": 1, "amount": 10, "note": "one"}
TWO = {"id": 2, "amount": 20, "note": "two"}
THREE = {"id": 3, "amount": 30, "note": "three"}


def opened(lake: Lake) -> TableDestination:
    driver = lake.driver()
    driver.ensure_table(ORDERS.table, ORDERS, SOURCE, START)
    return driver


def copied(driver: TableDestination, schema: TableSchema, position: int, *rows: Row) -> None:
    plan = driver.plan_copy(schema.table, SOURCE)
    part = plan.write_rows([pa.Table.from_pylist(list(rows), schema=arrow_schema(schema))])
    driver.commit_copy(schema.table, SOURCE, [part], position)


def test_a_table_that_was_rolled_back_is_not_gone_on_with_until_it_is_copied_again(any_lake: Lake) -> None:
    driver = opened(any_lake)
    apply(driver, ORDERS, 0x2000, net(ORDERS, [ONE]))
    apply(driver, ORDERS, 0x3000, net(ORDERS, [TWO]))
    presumed = driver.plan(ORDERS.table, SOURCE, presumed=True)
    any_lake.roll_back(ORDERS.table)
    assert any_lake.rows(ORDERS) in ([ONE], [])  # Postgres knows no earlier rows: it was truncated
    assert driver.position(ORDERS.table, SOURCE) == 0x3000, "the position says more than is there"
    with pytest.raises((StaleBase, LineageLost)):
        driver.commit(presumed, write(presumed, net(ORDERS, [THREE])), truncated=False, position=0x4000)
    for one in (driver, opened(any_lake)):
        with pytest.raises(LineageLost):
            one.plan(ORDERS.table, SOURCE)
        with pytest.raises(LineageLost):
            one.advance(ORDERS.table, SOURCE, 0x3000, 0x4000)
        with pytest.raises(LineageLost):
            one.advance(ORDERS.table, SOURCE, 0x3000, 0x3000)
        with pytest.raises(LineageLost):
            one.structure(ORDERS.table, SOURCE)
    copied(driver, ORDERS, 0x5000, ONE, TWO, THREE)
    apply(driver, ORDERS, 0x6000, net(ORDERS, [], [ONE]))
    driver.advance(ORDERS.table, SOURCE, 0x6000, 0x7000)
    assert any_lake.rows(ORDERS) == [TWO, THREE]
    assert opened(any_lake).structure(ORDERS.table, SOURCE).table == ORDERS.table


def test_an_advance_to_the_same_position_looks_and_changes_nothing(any_lake: Lake) -> None:
    driver = opened(any_lake)
    apply(driver, ORDERS, 0x2000, net(ORDERS, [ONE]))
    plan = driver.plan(ORDERS.table, SOURCE)
    driver.advance(ORDERS.table, SOURCE, 0x2000, 0x2000)
    driver.commit(plan, write(plan, net(ORDERS, [TWO])), truncated=False, position=0x3000)
    assert any_lake.rows(ORDERS) == [ONE, TWO]


def test_a_snapshot_descends_from_those_that_are_known_to_be_before_it() -> None:
    chain = {number: Snapshot(number, number, number - 1 or None) for number in range(1, 10)}
    side = Snapshot(20, 10, 4)
    assert why_not_descended(chain[9], 9, 9, chain.get) == ""
    assert why_not_descended(chain[9], 3, 3, chain.get) == ""
    assert "rolled back" in why_not_descended(side, 7, 7, chain.get)
    assert "rolled back" in why_not_descended(chain[3], 7, 7, chain.get)
    assert "rolled back" in why_not_descended(Snapshot(30, 11, None), 7, 7, chain.get)
    assert why_not_descended(chain[9], 8, 8, lambda number: None) == "", "its parent is named, though it has expired"
    assert "it is not known whether" in why_not_descended(chain[9], 7, 7, lambda number: None)


@dataclass
class Shared:
    """One Spark session of somebody else, and a driver of ours, for many tables of one lake."""

    session: SparkSession
    lake: Lake
    driver: TableDestination
    used: int = 0

    def table(self) -> TableSchema:
        """One that we have committed to three times: (1), (1, 2), (1, 2, 3)."""
        self.used += 1
        schema = table(f"orders_{self.used}", "id int8, amount int4, note text")
        self.driver.ensure_table(schema.table, schema, SOURCE, START)
        for number, row in enumerate((ONE, TWO, THREE)):
            apply(self.driver, schema, 0x2000 + number, net(schema, [row]))
        return schema

    def sql(self, schema: TableSchema, statement: str) -> None:
        """TABLE stands for the table, SNAPSHOTn for the id of its n-th snapshot."""
        name = f"lake.{schema.table}"
        for number, row in enumerate(self.session.table(f"{name}.snapshots").orderBy("committed_at").collect()):
            statement = statement.replace(f"SNAPSHOT{number}", str(row.snapshot_id))
        for one in statement.split("; "):
            self.session.sql(one.replace("'TABLE'", f"'{schema.table}'").replace("TABLE_", name)).collect()


@pytest.fixture(scope="module")
def shared(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Shared:
    return _shared(spark, tmp_path_factory.mktemp("lineage"), compact_files=2)


def _shared(spark: SparkSession, root: Path, **maintenance: int) -> Shared:
    config = iceberg_config(root, **maintenance)
    lake = iceberg_lake(spark, root, config)
    session = spark.newSession()
    for key, value in spark_settings(config).items():
        if key != "spark.sql.extensions":
            session.conf.set(key, value)
    session.conf.set("spark.sql.catalog.lake.cache-enabled", "false")
    return Shared(session, lake, lake.driver())


ROLLED_BACK = {
    "rollback_to_snapshot": "CALL lake.system.rollback_to_snapshot('TABLE', SNAPSHOT1)",
    "set_current_snapshot": "CALL lake.system.set_current_snapshot('TABLE', SNAPSHOT0)",
    "rolled back, and written to": "CALL lake.system.rollback_to_snapshot('TABLE', SNAPSHOT1); "
    "INSERT INTO TABLE_ VALUES (9, 9, 'foreign')",
    "rolled back, written to and expired": "CALL lake.system.rollback_to_snapshot('TABLE', SNAPSHOT1); "
    "INSERT INTO TABLE_ VALUES (9, 9, 'foreign'); "
    "CALL lake.system.expire_snapshots(table => 'TABLE', older_than => timestamp '2100-01-01', retain_last => 1)",
    "replaced": "CREATE OR REPLACE TABLE TABLE_ (id bigint NOT NULL, amount int, note string) USING iceberg",
    "replaced with rows": "CREATE OR REPLACE TABLE TABLE_ USING iceberg AS SELECT * FROM TABLE_ WHERE id = 1",
}
ON_TOP = {
    "compacted": "CALL lake.system.rewrite_data_files(table => 'TABLE', options => map('rewrite-all', 'true'))",
    "expired": "CALL lake.system.expire_snapshots(table => 'TABLE', older_than => timestamp '2100-01-01', "
    "retain_last => 1)",
    "compacted and expired": "CALL lake.system.rewrite_data_files(table => 'TABLE', "
    "options => map('rewrite-all', 'true')); CALL lake.system.rewrite_manifests('TABLE'); "
    "CALL lake.system.rewrite_data_files(table => 'TABLE', options => map('rewrite-all', 'true')); "
    "CALL lake.system.expire_snapshots(table => 'TABLE', older_than => timestamp '2100-01-01', retain_last => 1)",
    "tagged and branched": "ALTER TABLE TABLE_ CREATE TAG release AS OF VERSION SNAPSHOT1; "
    "ALTER TABLE TABLE_ CREATE BRANCH audit; INSERT INTO TABLE_.branch_audit VALUES (9, 9, 'elsewhere')",
    "rolled back and forward": "CALL lake.system.rollback_to_snapshot('TABLE', SNAPSHOT0); "
    "CALL lake.system.set_current_snapshot('TABLE', SNAPSHOT2)",
    "a property set": "ALTER TABLE TABLE_ SET TBLPROPERTIES ('team' = 'somebody')",
}


def _start(driver: TableDestination, schema: TableSchema) -> None:
    driver.ensure_table(schema.table, schema, SOURCE, None)
    driver.structure(schema.table, SOURCE)


@pytest.mark.parametrize("how", ROLLED_BACK)
def test_rows_that_somebody_took_back_are_noticed(shared: Shared, how: str) -> None:
    schema, driver = shared.table(), shared.driver
    shared.sql(schema, ROLLED_BACK[how])
    with pytest.raises(TableError) as first:
        driver.plan(schema.table, SOURCE)
    assert isinstance(first.value, LineageLost) or "somebody changed it" in first.value.what
    again = shared.lake.driver()
    with pytest.raises(TableError):
        _start(again, schema)
    if isinstance(first.value, LineageLost):
        copied(driver, schema, 0x5000, ONE, TWO, THREE)
        apply(driver, schema, 0x6000, net(schema, [], [ONE]))
        assert shared.lake.rows(schema) == [TWO, THREE]


@pytest.mark.parametrize("how", ON_TOP)
def test_what_others_do_on_top_of_our_commits_is_no_rollback(shared: Shared, how: str) -> None:
    schema, driver = shared.table(), shared.driver
    shared.sql(schema, ON_TOP[how])
    again = shared.lake.driver()
    assert again.ensure_table(schema.table, schema, SOURCE, None) == 0x2002
    for number, one in enumerate((driver, again)):
        one.structure(schema.table, SOURCE)
        apply(one, schema, 0x3000 + number, net(schema, [{**ONE, "amount": number}]))
    again.advance(schema.table, SOURCE, 0x3001, 0x4000)
    assert shared.lake.rows(schema) == [{**ONE, "amount": 1}, TWO, THREE]


def test_our_own_maintenance_is_on_our_lineage(shared: Shared) -> None:
    schema, driver = shared.table(), shared.driver
    shared.lake.maintain(driver, schema)
    apply(driver, schema, 0x3000, net(schema, [{**ONE, "amount": 7}]))
    shared.sql(schema, "CALL lake.system.set_current_snapshot('TABLE', SNAPSHOT2)")
    with pytest.raises(LineageLost, match="does not descend from ours"):
        driver.plan(schema.table, SOURCE)


@pytest.mark.parametrize("maintenance", [{"expire_every": 3, "compact_files": 100}, {"compact_files": 2}])
def test_our_own_maintenance_hides_no_rollback(
    spark: SparkSession, tmp_path: Path, maintenance: dict[str, int]
) -> None:
    """Maintenance may be the first to meet a table that was rolled back. It leaves it as it is, so that the next look
    finds it, and the snapshot that was ours can be put back."""
    shared = _shared(spark, tmp_path, **maintenance)
    schema, driver = shared.table(), shared.driver
    shared.sql(schema, ROLLED_BACK["rollback_to_snapshot"])
    for _ in range(2):
        with suppress(StaleBase):
            shared.lake.maintain(driver, schema)
        with pytest.raises(LineageLost):
            driver.advance(schema.table, SOURCE, 0x2002, 0x3000)
    shared.sql(schema, "CALL lake.system.set_current_snapshot('TABLE', SNAPSHOT2)")
    driver.advance(schema.table, SOURCE, 0x2002, 0x3000)
    assert shared.lake.rows(schema) == [ONE, TWO, THREE]
