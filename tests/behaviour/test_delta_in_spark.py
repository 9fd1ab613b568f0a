"""Delta tables and other software: Spark with Delta's own library writes them too, and each reader reads what it can.

The table of readers in docs/delta.md is compared with what the readers do; DuckDB's column is left out, since its Delta
extension is not there for every version of DuckDB.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from databases import Database
from destination_rows import (
    ORDERS,
    SOURCE,
    START,
    TYPES,
    Lake,
    Row,
    apply,
    delta_config,
    delta_lake,
    net,
    ordered,
    write,
)
from penstock.destinations.lake.warehouse import table_folder
from penstock.errors import LineageLost, StaleBase
from penstock.model.table import Column, TableId, TableSchema
from running import make_pipeline, running

PAGE = Path(__file__).parents[2] / "docs" / "delta.md"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return delta_lake(tmp_path, delta_config(tmp_path, compact_files=50))


@pytest.fixture
def delta_spark(spark: SparkSession) -> SparkSession:
    session = spark.newSession()
    session.conf.set("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    session.conf.set("spark.databricks.delta.snapshotPartitions", "1")
    session.conf.set("spark.databricks.delta.writeChecksumFile.enabled", "false")
    session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    return session


def rows(numbers: range, note: str) -> list[Row]:
    return [{"id": n, "amount": n, "note": note} for n in numbers]


@pytest.mark.full
def test_what_spark_writes_is_met_and_a_restore_is_noticed(lake: Lake, delta_spark: SparkSession) -> None:
    """Before each statement a batch is planned: it is refused afterwards, and made again on what Spark has left."""
    driver = lake.driver()
    driver.ensure_table(ORDERS.table, ORDERS, SOURCE, START)
    location = table_folder(delta_config(lake.root), ORDERS.table)
    there = dict(enumerate(rows(range(40), "first")))
    apply(driver, ORDERS, START + 1, net(ORDERS, list(there.values())))

    def inserted() -> None:
        there[1000] = {"id": 1000, "amount": 1, "note": "theirs"}

    def deleted() -> None:
        for number in (20, 21):
            del there[number]

    def updated() -> None:
        there[22]["note"] = "theirs"

    foreign: dict[str, Callable[[], None]] = {
        f"INSERT INTO delta.`{location}` VALUES (1000, 1, 'theirs')": inserted,
        f"DELETE FROM delta.`{location}` WHERE id IN (20, 21)": deleted,
        f"UPDATE delta.`{location}` SET note = 'theirs' WHERE id = 22": updated,
        f"OPTIMIZE delta.`{location}`": lambda: None,
    }
    for batch, (statement, model) in enumerate(foreign.items()):
        number = START + 2 + batch
        upserts, gone = rows(range(batch, batch + 5), statement), {"id": 30 + batch}
        plan = driver.plan(ORDERS.table, SOURCE)
        parts = write(plan, net(ORDERS, upserts, [gone]))
        delta_spark.sql(statement).collect()
        model()
        with pytest.raises(StaleBase):
            driver.commit(plan, parts, truncated=False, position=number)
        driver.discard(parts)
        apply(driver, ORDERS, number, net(ORDERS, upserts, [gone]))
        there |= {row["id"]: row for row in upserts}
        del there[gone["id"]]
        assert lake.rows(ORDERS) == ordered(ORDERS, list(there.values())), statement
    plan = driver.plan(ORDERS.table, SOURCE)
    parts = write(plan, net(ORDERS, rows(range(3), "beside a VACUUM")))
    delta_spark.sql(f"VACUUM delta.`{location}` RETAIN 100 HOURS").collect()
    with pytest.raises(StaleBase):
        driver.commit(plan, parts, truncated=False, position=START + 10)
    apply(driver, ORDERS, START + 10, net(ORDERS, rows(range(3), "after a VACUUM")))
    there |= {row["id"]: row for row in rows(range(3), "after a VACUUM")}
    read = delta_spark.sql(f"SELECT id, amount, note FROM delta.`{location}`").toArrow()
    assert ordered(ORDERS, read.to_pylist()) == lake.rows(ORDERS) == ordered(ORDERS, list(there.values()))
    delta_spark.sql(f"RESTORE delta.`{location}` TO VERSION AS OF 2").collect()
    with pytest.raises(LineageLost, match="restored"):
        driver.plan(ORDERS.table, SOURCE)


def version(columns: str) -> TableSchema:
    """`columns` as in "1 id int8, 4 note text"."""
    described = [column.split() for column in columns.split(", ")]
    kept = tuple(Column(name, TYPES[type], number=int(number)) for number, name, type in described)
    return TableSchema(TableId("public", "seen"), 1, kept, ("id",))


STEPS = (
    version("1 id int8, 2 state int4, 3 at timestamp, 4 note text"),
    version("1 id int8, 2 state int4, 3 at timestamp, 4 remark text"),
    version("1 id int8, 2 state int8, 3 at timestamp, 4 remark text"),
)


def test_readers_read_what_the_page_says(lake: Lake, delta_spark: SparkSession) -> None:
    driver = lake.driver()
    driver.ensure_table(STEPS[0].table, STEPS[0], SOURCE, START)
    location = table_folder(delta_config(lake.root), STEPS[0].table)
    readers: dict[str, Callable[[], object]] = {
        "Spark": lambda: delta_spark.read.format("delta").load(location).toArrow(),
        "`QueryBuilder`": lambda: (
            QueryBuilder().register("t", DeltaTable(location)).execute("select * from t").read_all()
        ),
        "polars": lambda: polars.read_delta(location).to_arrow(),
        "`to_pyarrow_*`": lambda: DeltaTable(location).to_pyarrow_table(),
    }
    _, *page = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text().splitlines()
        if line.startswith("| a table with") or line.endswith(("| yes |", "| no |"))
    ]
    for step, (schema, said) in enumerate(zip(STEPS, page, strict=True)):
        made = [
            {column.name: _value(column, n, step) for column in schema.columns} for n in range(step * 3, step * 3 + 6)
        ]
        plan = driver.plan(schema.table, SOURCE, schema)
        driver.commit(plan, write(plan, net(schema, made)), truncated=False, position=START + step + 1)
        for name, read in readers.items():
            assert _reads(read, schema, lake) == (said[_place(name)] == "yes"), f"{said[0]}: {name}"


def _value(column: Column, number: int, step: int) -> object:
    match column.type.name:
        case "text":
            return f"row {number} of step {step}"
        case "timestamp":
            return datetime(2026, 1, 1 + number)
        case _:
            return number


def _place(name: str) -> int:
    head = next(line for line in PAGE.read_text().splitlines() if line.startswith("| a table with"))
    return next(at for at, cell in enumerate(head.strip("|").split("|")) if name in cell)


def _reads(read: Callable[[], object], schema: TableSchema, lake: Lake) -> bool:
    """Whether a reader reads the table. What it reads, if it does, must be what is there."""
    try:
        found = read()
    except Exception:  # noqa: BLE001 - a reader that refuses raises what it likes
        return False
    assert ordered(schema, pa.table(found).to_pylist()) == lake.rows(schema)
    return True


@pytest.mark.full
def test_what_spark_changed_is_found_repaired_and_queried(
    postgres: Database, tmp_path: Path, delta_spark: SparkSession
) -> None:
    postgres.execute(
        "create table people (id int primary key, name text, born date)",
        "insert into people select n, 'name ' || n, date '2000-01-01' + n from generate_series(1, 1000) n",
        "create table cities (id int primary key, name text)",
        "insert into cities values (7, 'Wien')",
    )
    delta = {"name": "lake", "type": "delta", "warehouse": "./delta"}
    pipeline = make_pipeline(tmp_path, postgres, destinations=[delta])
    with running(pipeline) as run:
        run.drain()
        location = tmp_path / "delta" / "public" / "people"
        for statement in ("DELETE FROM {} WHERE id = 5", "UPDATE {} SET name = 'other' WHERE id IN (6, 7)"):
            delta_spark.sql(statement.format(f"delta.`{location}`")).collect()
        found = pipeline.command("verify", "FILE", seconds=300)
        assert found.returncode == 1
        assert "(6) differs: name: source 'name 6', lake 'other'" in found.stdout
        repaired = pipeline.command("verify", "FILE", "--repair", seconds=300)
        assert repaired.returncode == 0, repaired.stdout + repaired.stderr
        again = pipeline.command("verify", "FILE", seconds=300)
        assert again.returncode == 0, again.stdout + again.stderr
    joined = "select p.name, c.name as city from public.people p join public.cities c on c.id = p.id"
    answer = pipeline.command("query", "FILE", joined, "--format", "csv")
    assert answer.stdout.splitlines()[1:] == ["name 7,Wien"], answer.stderr
