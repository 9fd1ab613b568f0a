"""What only Iceberg has: an index that is a cache, other writers, compaction, expiry, leftovers, readers, an absent
warehouse."""

from __future__ import annotations

import sqlite3
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from destination_rows import (
    ORDERS,
    SOURCE,
    START,
    Lake,
    Row,
    apply,
    iceberg_config,
    iceberg_lake,
    net,
    ordered,
    table,
    write,
)
from penstock.config.destinations import IcebergDestination as IcebergConfig
from penstock.destinations.contract import InProcessRunner, TableDestination
from penstock.destinations.iceberg.catalog import spark_settings
from penstock.destinations.iceberg.destination import IcebergDestination
from penstock.errors import CommitUnknown, DestinationUnreachable, StaleBase


def rows(numbers: range, note: str = "x") -> list[Row]:
    return [{"id": n, "amount": n, "note": note} for n in numbers]


def opened(lake: Lake) -> IcebergDestination:
    driver = lake.driver()
    driver.ensure_table(ORDERS.table, ORDERS, SOURCE, START)
    assert isinstance(driver, IcebergDestination)
    return driver


def foreign(spark: SparkSession, config: IcebergConfig) -> SparkSession:
    """Somebody else's Spark."""
    session = spark.newSession()
    for key, value in spark_settings(config).items():
        if key != "spark.sql.extensions":
            session.conf.set(key, value)
    return session


def rewrite(session: SparkSession) -> None:
    """Every data file and delete file, whatever it holds."""
    session.sql(
        "CALL lake.system.rewrite_data_files(table => 'public.orders', "
        "options => map('rewrite-all', 'true', 'remove-dangling-deletes', 'true'))"
    ).collect()


def count(session: SparkSession, metadata_table: str) -> int:
    return session.table(f"lake.public.orders.{metadata_table}").count()


def lose(folder: Path) -> None:
    for sidecar in folder.rglob("*.keys"):
        sidecar.unlink()


def truncate(folder: Path) -> None:
    for sidecar in folder.rglob("*.keys"):
        sidecar.write_bytes(sidecar.read_bytes()[:-20])


def empty(folder: Path) -> None:
    for sidecar in folder.rglob("*.keys"):
        sidecar.write_bytes(b"")


def mix_up(folder: Path) -> None:
    """Each has the content of another."""
    sidecars = sorted(folder.rglob("*.keys"))
    contents = [sidecar.read_bytes() for sidecar in sidecars]
    for sidecar, content in zip(sidecars, contents[1:] + contents[:1], strict=True):
        sidecar.write_bytes(content)


def shift_rows(folder: Path) -> None:
    """Sound Arrow, wrong rows: only the checksum tells."""
    for sidecar in folder.rglob("*.keys"):
        with pa.OSFile(str(sidecar), "rb") as source:
            read = ipc.open_file(source).read_all()
        shifted = read.set_column(
            1, "row", pa.chunked_array([pa.array([n + 1 for n in read["row"].to_pylist()], pa.int32())])
        )
        with ipc.new_file(str(sidecar), read.schema) as writer:
            writer.write_table(shifted.cast(read.schema))


@pytest.mark.parametrize("damage", [lose, truncate, empty, mix_up, shift_rows])
def test_the_index_is_only_a_cache(iceberg: Lake, damage: object) -> None:
    driver = opened(iceberg)
    for batch in range(4):
        apply(driver, ORDERS, START + batch + 1, net(ORDERS, rows(range(batch * 10, batch * 10 + 20), f"{batch}")))
    assert len(list((iceberg.root / "index").rglob("*.keys"))) == 4
    assert callable(damage)
    damage(iceberg.root / "index")
    upserts = [{"id": 5, "amount": 55, "note": None}, *rows(range(30, 45), "last")]
    apply(driver, ORDERS, START + 9, net(ORDERS, upserts, [{"id": 12}], fetches=[("note", 0, {"id": 5})]))
    expected = {row["id"]: row for batch in range(4) for row in rows(range(batch * 10, batch * 10 + 20), f"{batch}")}
    expected |= {row["id"]: row for row in upserts} | {5: {"id": 5, "amount": 55, "note": "0"}}
    del expected[12]
    assert iceberg.rows(ORDERS) == ordered(ORDERS, list(expected.values()))


def test_a_rewrite_by_somebody_else_between_batches(spark: SparkSession, iceberg: Lake, tmp_path: Path) -> None:
    driver, other = opened(iceberg), foreign(spark, iceberg_config(tmp_path))
    apply(driver, ORDERS, START + 1, net(ORDERS, rows(range(50))))
    apply(driver, ORDERS, START + 2, net(ORDERS, rows(range(20), "y"), [{"id": 49}]))
    rewrite(other)
    assert count(other, "files") == 1
    apply(driver, ORDERS, START + 3, net(ORDERS, rows(range(10), "z"), [{"id": 48}]))
    assert iceberg.rows(ORDERS) == ordered(
        ORDERS, rows(range(10), "z") + rows(range(10, 20), "y") + rows(range(20, 48))
    )


def test_a_rewrite_by_somebody_else_during_a_batch(spark: SparkSession, iceberg: Lake, tmp_path: Path) -> None:
    driver, other = opened(iceberg), foreign(spark, iceberg_config(tmp_path))
    apply(driver, ORDERS, START + 1, net(ORDERS, rows(range(50))))
    apply(driver, ORDERS, START + 2, net(ORDERS, rows(range(20), "y")))
    plan = driver.plan(ORDERS.table, SOURCE)
    parts = write(plan, net(ORDERS, rows(range(10), "z")))
    rewrite(other)
    with pytest.raises(StaleBase):
        driver.commit(plan, parts, truncated=False, position=START + 3)
    driver.discard(parts)
    apply(driver, ORDERS, START + 3, net(ORDERS, rows(range(10), "z")))
    assert iceberg.rows(ORDERS) == ordered(
        ORDERS, rows(range(10), "z") + rows(range(10, 20), "y") + rows(range(20, 50))
    )


def test_rows_that_somebody_else_deleted_by_position(spark: SparkSession, iceberg: Lake, tmp_path: Path) -> None:
    driver, other = opened(iceberg), foreign(spark, iceberg_config(tmp_path))
    apply(driver, ORDERS, START + 1, net(ORDERS, rows(range(30))))
    other.sql("ALTER TABLE lake.public.orders SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    other.sql("DELETE FROM lake.public.orders WHERE id < 5")
    for batch in range(9):
        apply(driver, ORDERS, START + 2 + batch, net(ORDERS, rows(range(4, 8), f"{batch}")))
        driver.maintain(ORDERS.table, SOURCE, InProcessRunner())
    assert iceberg.rows(ORDERS) == ordered(ORDERS, rows(range(4, 8), "8") + rows(range(8, 30)))


def test_compaction_keeps_files_few_and_rows_equal(spark: SparkSession, iceberg: Lake, tmp_path: Path) -> None:
    driver, other = opened(iceberg), foreign(spark, iceberg_config(tmp_path))
    expected: dict[int, Row] = {}
    merged = 0
    for batch in range(40):
        upserts = rows(range(batch * 3, batch * 3 + 9), f"{batch}")
        expected = {n: row for n, row in expected.items() if n != batch} | {row["id"]: row for row in upserts}
        apply(driver, ORDERS, START + 1 + batch, net(ORDERS, upserts, [{"id": batch}] if batch else []))
        if batch < batch * 3:
            expected.pop(batch, None)
        merged += driver.maintain(ORDERS.table, SOURCE, InProcessRunner()).merged_files
    assert merged > 0
    assert count(other, "data_files") <= 8
    assert count(other, "delete_files") <= 8
    assert iceberg.rows(ORDERS) == ordered(ORDERS, list(expected.values()))
    assert len(list((iceberg.root / "index").rglob("*.keys"))) == count(other, "data_files")


def test_a_compaction_over_a_changed_table_is_refused(iceberg: Lake, tmp_path: Path) -> None:
    driver = opened(iceberg)
    for batch in range(8):
        apply(driver, ORDERS, START + 1 + batch, net(ORDERS, rows(range(batch, batch + 5), f"{batch}")))
    before = iceberg.rows(ORDERS)
    other = opened(iceberg)
    other.advance(ORDERS.table, SOURCE, START + 8, START + 20)
    with pytest.raises(StaleBase):
        driver.maintain(ORDERS.table, SOURCE, InProcessRunner())
    assert iceberg.rows(ORDERS) == before
    driver.plan(ORDERS.table, SOURCE)
    assert driver.maintain(ORDERS.table, SOURCE, InProcessRunner()).merged_files == 8
    assert iceberg.rows(ORDERS) == before
    assert driver.position(ORDERS.table, SOURCE) == START + 20


def test_snapshots_expire(spark: SparkSession, tmp_path: Path) -> None:
    config = iceberg_config(tmp_path, expire_every=6, keep_snapshots=2, keep_for=0, compact_files=4)
    lake = iceberg_lake(spark, tmp_path, config)
    driver, other = opened(lake), foreign(spark, config)
    for batch in range(20):
        apply(driver, ORDERS, START + 1 + batch, net(ORDERS, rows(range(batch, batch + 4), f"{batch}")))
        driver.maintain(ORDERS.table, SOURCE, InProcessRunner())
    assert count(other, "snapshots") <= 2 + 6 + 1
    files = list((lake.warehouse / "public" / "orders" / "data").glob("*.parquet"))
    assert len(files) <= 2 * (2 + 6 + 8)
    assert [row["id"] for row in lake.rows(ORDERS)] == sorted(range(23), key=str)
    restarted = opened(lake)
    apply(restarted, ORDERS, START + 30, net(ORDERS, [], [{"id": 3}]))
    assert 3 not in [row["id"] for row in lake.rows(ORDERS)]


def test_a_query_in_flight_reads_on_after_its_snapshot_has_expired(spark: SparkSession, tmp_path: Path) -> None:
    config = iceberg_config(tmp_path, expire_every=4, keep_snapshots=2, keep_for=3600, compact_files=2)
    lake = iceberg_lake(spark, tmp_path, config)
    driver = opened(lake)
    apply(driver, ORDERS, START + 1, net(ORDERS, rows(range(10))))
    begun, folder = _catalog(lake).load_table("public.orders"), lake.warehouse / "public" / "orders"
    before = {path.name for path in folder.glob("*/*")}
    for batch in range(12):
        apply(driver, ORDERS, START + 2 + batch, net(ORDERS, rows(range(10), f"{batch}")))
        driver.maintain(ORDERS.table, SOURCE, InProcessRunner())
    driver = opened(lake)  # where leftovers are looked for
    now = _catalog(lake).load_table("public.orders")
    assert len(now.snapshots()) <= 2 + 4
    snapshot = begun.current_snapshot()
    assert snapshot is not None
    assert now.snapshot_by_id(snapshot.snapshot_id) is None
    assert begun.scan().to_arrow().sort_by("id").to_pylist() == rows(range(10))

    (lists,) = (tmp_path / "index").rglob("*.leaving")
    for path in list(lists.iterdir()):
        path.rename(path.with_name("0" * 15 + path.name[15:]))  # as if an hour had passed
    driver = opened(lake)
    while list(lists.glob("0" * 15 + "*")):
        driver.maintain(ORDERS.table, SOURCE, InProcessRunner())
    assert not {name for name in before if name.endswith((".parquet", ".avro"))} & {
        path.name for path in folder.glob("*/*")
    }
    assert lake.rows(ORDERS) == ordered(ORDERS, rows(range(10), "11"))


def test_an_expiry_that_cannot_note_its_files_stands_and_says_so(spark: SparkSession, tmp_path: Path) -> None:
    config = iceberg_config(tmp_path, expire_every=4, keep_snapshots=1, keep_for=0, compact_files=50)
    lake = iceberg_lake(spark, tmp_path, config)
    driver, other = opened(lake), foreign(spark, config)
    (tmp_path / "index" / "public" / "orders.leaving").touch()  # where the folder of lists is to be
    with capture_logs() as said:
        for batch in range(4):
            apply(driver, ORDERS, START + 1 + batch, net(ORDERS, rows(range(10), f"{batch}")))
            driver.maintain(ORDERS.table, SOURCE, InProcessRunner())
    (told,) = [one for one in said if "not noted" in one["event"]]
    assert (told["log_level"], told["table"]) == ("warning", "public.orders")
    assert count(other, "snapshots") == 1
    apply(driver, ORDERS, START + 9, net(ORDERS, [], [{"id": 0}]))
    assert lake.rows(ORDERS) == ordered(ORDERS, rows(range(1, 10), "3"))


def test_snapshots_stay_for_time_travel(spark: SparkSession, tmp_path: Path) -> None:
    config = iceberg_config(tmp_path, expire_every=2, keep_snapshots=1, keep_for=0, compact_files=50, time_travel=3600)
    lake = iceberg_lake(spark, tmp_path, config)
    driver, other = opened(lake), foreign(spark, config)
    for batch in range(6):
        apply(driver, ORDERS, START + 1 + batch, net(ORDERS, rows(range(10), f"{batch}")))
        driver.maintain(ORDERS.table, SOURCE, InProcessRunner())
    assert count(other, "snapshots") == 6


def test_what_killed_writers_left_behind_goes(iceberg: Lake) -> None:
    driver = opened(iceberg)
    apply(driver, ORDERS, START + 1, net(ORDERS, rows(range(10))))
    plan = driver.plan(ORDERS.table, SOURCE)
    parts = write(plan, net(ORDERS, rows(range(5), "never committed")))
    folder = iceberg.warehouse / "public" / "orders" / "data"
    assert len(list(folder.glob("*.parquet"))) == 3
    after = opened(iceberg)
    assert len(list(folder.glob("*.parquet"))) == 1
    assert len(list((iceberg.root / "index").rglob("*.keys"))) == 1
    with pytest.raises(StaleBase):  # the one who wrote them lives after all, and is shut out
        driver.commit(plan, parts, truncated=False, position=START + 2)
    apply(after, ORDERS, START + 2, net(ORDERS, [], [{"id": 0}]))
    assert iceberg.rows(ORDERS) == ordered(ORDERS, rows(range(1, 10)))


def test_the_state_that_is_carried_on_is_what_the_table_says(iceberg: Lake) -> None:
    driver = opened(iceberg)
    for batch in range(12):
        truncated = batch == 6
        apply(driver, ORDERS, START + 1 + batch, net(ORDERS, rows(range(batch, batch + 6)), truncated=truncated))
        driver.maintain(ORDERS.table, SOURCE, InProcessRunner())
        carried, anew = driver.plan(ORDERS.table, SOURCE), opened(iceberg).plan(ORDERS.table, SOURCE)
        assert sorted(carried.files, key=lambda file: file.path) == sorted(anew.files, key=lambda file: file.path)
        assert sorted(carried.delete_files) == sorted(anew.delete_files)
        assert carried.metadata == anew.metadata


def _catalog(lake: Lake) -> SqlCatalog:
    return SqlCatalog("lake", uri=f"sqlite:///{lake.warehouse}/catalog.db", warehouse=str(lake.warehouse))


WIDE = table(
    "wide",
    "id int8, flag bool, small int4, ratio float8, price numeric, "
    "day date, at timestamp, seen timestamptz, note text, raw bytea",
)


def test_readers_find_rows_by_every_column(spark: SparkSession, iceberg: Lake, tmp_path: Path) -> None:
    """Readers skip files by their bounds: a wrong bound hides rows."""
    driver, other = iceberg.driver(), foreign(spark, iceberg_config(tmp_path))
    driver.ensure_table(WIDE.table, WIDE, SOURCE, START)
    written = [
        {
            "id": n,
            "flag": n % 2 == 0,
            "small": -n,
            "ratio": [float("nan"), 0.0, float("inf"), n / 3][n % 4],
            "price": Decimal(n - 3) * Decimal("-1234567.25"),
            "day": date(1969, 12, 30 - n),
            "at": datetime(1900 + n, 1, 1, 12, 0, 0, 1),
            "seen": datetime(2100 + n, 1, 1, tzinfo=UTC),
            "note": ["", "~" * 40, "\U0010ffff" * 20, "a" * 16 + "b", None][n % 5],
            "raw": [b"", b"\xff" * 20, b"\x00" * 17, bytes([n])][n % 4],
        }
        for n in range(8)
    ]
    for n, row in enumerate(written):
        apply(driver, WIDE, START + 1 + n, net(WIDE, [row]))
    catalog = _catalog(iceberg)
    for column in [column.name for column in WIDE.columns if column.name != "ratio"]:
        for row in written:
            if row[column] is not None:
                equal: Any = EqualTo  # its types know less than it does
                scan = catalog.load_table("public.wide").scan(equal(column, row[column]))
                assert row["id"] in scan.to_arrow()["id"].to_pylist(), (column, row[column])
    catalog.close()
    finite = other.sql("SELECT id FROM lake.public.wide WHERE ratio >= 0 AND ratio < 100 ORDER BY id").collect()
    assert [row[0] for row in finite] == [1, 3, 5, 7]
    cut = other.sql(
        "SELECT id FROM lake.public.wide WHERE note > '~~~~~~~~~~~~~~~~~' AND price < -1 ORDER BY id"
    ).collect()
    assert [row[0] for row in cut] == [6, 7]
    assert [row["raw"] for row in iceberg.rows(WIDE)] == [row["raw"] for row in ordered(WIDE, written)]
    by_spark = other.table("lake.public.wide").orderBy("id").toArrow()
    assert by_spark.column("price").to_pylist() == [row["price"] for row in written]
    assert by_spark.column("seen").to_pylist() == [row["seen"] for row in written]


def test_a_commit_whose_outcome_is_unknown(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    catalog = {
        "type": "jdbc",
        "uri": f"jdbc:sqlite:{warehouse}/catalog.db",
        "jdbc.schema-version": "V1",
        "jdbc.busy_timeout": "200",
    }
    config = iceberg_config(tmp_path).model_copy(update={"catalog": catalog})
    lake = iceberg_lake(spark, tmp_path, config)
    driver = opened(lake)
    apply(driver, ORDERS, START + 1, net(ORDERS, rows(range(5))))
    plan = driver.plan(ORDERS.table, SOURCE)
    parts = write(plan, net(ORDERS, rows(range(3, 8), "y")))
    blocker = sqlite3.connect(warehouse / "catalog.db")
    blocker.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(CommitUnknown):
            driver.commit(plan, parts, truncated=False, position=START + 2)
        assert driver.position(ORDERS.table, SOURCE) == START + 1
    finally:
        blocker.rollback()
        blocker.close()
    driver.discard(parts)
    apply(driver, ORDERS, START + 2, net(ORDERS, rows(range(3, 8), "y")))
    assert lake.rows(ORDERS) == rows(range(3)) + rows(range(3, 8), "y")


def test_a_warehouse_that_is_away_is_not_made_anew(iceberg: Lake) -> None:
    driver: TableDestination = opened(iceberg)
    apply(driver, ORDERS, START + 1, net(ORDERS, rows(range(5))))
    plan = driver.plan(ORDERS.table, SOURCE)
    parts = write(plan, net(ORDERS, rows(range(2), "y")))
    away = iceberg.warehouse.rename(iceberg.root / "elsewhere")
    with pytest.raises(DestinationUnreachable):
        write(plan, net(ORDERS, rows(range(2), "z")))
    with pytest.raises(DestinationUnreachable):
        iceberg.driver()
    assert not iceberg.warehouse.exists()
    with pytest.raises(DestinationUnreachable):
        driver.commit(plan, parts, truncated=False, position=START + 2)
    with pytest.raises(DestinationUnreachable):
        driver.plan(ORDERS.table, SOURCE)
    assert not iceberg.warehouse.exists()
    iceberg.warehouse.write_text("a file stands in its place")
    with pytest.raises(DestinationUnreachable):
        driver.commit(plan, parts, truncated=False, position=START + 2)
    iceberg.warehouse.unlink()
    away.rename(iceberg.warehouse)
    driver.commit(plan, parts, truncated=False, position=START + 2)
    assert iceberg.rows(ORDERS) == rows(range(2), "y") + rows(range(2, 5))


def _snapshot(lake: Lake) -> int | None:
    snapshot = _catalog(lake).load_table("public.orders").current_snapshot()
    return snapshot.snapshot_id if snapshot else None


def test_where_a_catalog_compares_snapshots_alone_every_change_makes_one(
    iceberg: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.destinations.iceberg.tables.is_rest", lambda settings: True)
    driver = opened(iceberg)
    seen = [_snapshot(iceberg)]
    apply(driver, ORDERS, START + 1, net(ORDERS, rows(range(5))))
    seen.append(_snapshot(iceberg))
    driver.advance(ORDERS.table, SOURCE, START + 1, START + 2)
    seen.append(_snapshot(iceberg))
    apply(driver, ORDERS, START + 3, net(ORDERS, [], [{"id": 99}]))
    seen.append(_snapshot(iceberg))
    write(driver.plan(ORDERS.table, SOURCE), net(ORDERS, rows(range(2), "never committed")))
    again = opened(iceberg)
    seen.append(_snapshot(iceberg))
    assert len(set(seen)) == len(seen)
    apply(again, ORDERS, START + 4, net(ORDERS, [], [{"id": 0}]))
    assert iceberg.rows(ORDERS) == rows(range(1, 5))


def test_a_thorough_write_ends_every_row_of_a_key_that_somebody_else_doubled(
    spark: SparkSession, iceberg: Lake, tmp_path: Path
) -> None:
    driver, other = opened(iceberg), foreign(spark, iceberg_config(tmp_path))
    apply(driver, ORDERS, START + 1, net(ORDERS, rows(range(10))))
    other.sql("INSERT INTO lake.public.orders VALUES (3, 0, 'again'), (3, 0, 'and again'), (4, 0, 'again')")
    plan = driver.plan(ORDERS.table, SOURCE, thorough=True)
    parts = write(plan, net(ORDERS, rows(range(3, 4), "right"), [{"id": 4}]))
    driver.commit(plan, parts, truncated=False, position=START + 2)
    assert iceberg.rows(ORDERS) == ordered(ORDERS, rows(range(3)) + rows(range(3, 4), "right") + rows(range(5, 10)))


def test_a_bookmark_outlives_compaction_and_expiry_until_it_is_released(spark: SparkSession, tmp_path: Path) -> None:
    config = iceberg_config(tmp_path, expire_every=1, keep_snapshots=1, keep_for=0.0, compact_files=2)
    lake = iceberg_lake(spark, tmp_path, config)
    driver, other = opened(lake), foreign(spark, config)
    assert driver.bookmark(ORDERS.table, SOURCE, "none") == "", "it holds nothing yet"
    apply(driver, ORDERS, START + 1, net(ORDERS, rows(range(10))))
    snapshot = driver.bookmark(ORDERS.table, SOURCE, "kept")
    for batch in range(6):
        apply(driver, ORDERS, START + 2 + batch, net(ORDERS, rows(range(10), f"{batch}")))
        driver.maintain(ORDERS.table, SOURCE, InProcessRunner())
    then = other.sql(f"SELECT id, note FROM lake.public.orders VERSION AS OF {snapshot} ORDER BY id").collect()
    assert [tuple(row) for row in then] == [(n, "x") for n in range(10)]
    driver.release(ORDERS.table, SOURCE, "kept")
    driver.release(ORDERS.table, SOURCE, "kept")
    apply(driver, ORDERS, START + 20, net(ORDERS, rows(range(1), "last")))
    driver.maintain(ORDERS.table, SOURCE, InProcessRunner())
    left = [row.snapshot_id for row in other.sql("SELECT snapshot_id FROM lake.public.orders.snapshots").collect()]
    assert int(snapshot) not in left
