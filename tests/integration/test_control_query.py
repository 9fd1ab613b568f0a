"""Queries on a lake: what is refused in the process, and `penstock query` from outside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lake import Lake
from penstock.control.query import run_query
from penstock.errors import DestinationUnreachable, PenstockError, UsageError
from running import PipelineFactory


@pytest.fixture
def orders(lake: Lake, tmp_path: Path) -> Lake:
    (tmp_path / "warehouse").mkdir()
    lake.sql("create namespace lake.public")
    lake.sql("create table lake.public.orders (id bigint, total decimal(10, 2), at timestamp) using iceberg")
    lake.sql(
        "insert into lake.public.orders values (1, 12.50, timestamp'2026-01-02 03:04:05.678901Z'), (2, null, null)"
    )
    return lake


READING = {
    "select id, total from lake.public.orders order by id": 2,
    "with x as (select 1 as one) select one from x": 1,
    "values (1), (2), (3)": 3,
    "show tables in lake.public": 1,
    "describe lake.public.orders": 3,
    "explain select * from lake.public.orders": 1,
}
WRITING = (
    "drop table lake.public.orders",
    "insert into lake.public.orders select * from lake.public.orders",
    "with x as (select * from lake.public.orders) insert into lake.public.orders select * from x",
    "from lake.public.orders insert into lake.public.orders select * insert into lake.public.orders select *",
    "delete from lake.public.orders",
    "create table lake.public.other as select 1 as one",
    "call lake.system.expire_snapshots(table => 'public.orders')",
    "set spark.sql.ansi.enabled = false",
)
WRONG = {
    "selekt 1": "PARSE_SYNTAX_ERROR",
    "select * from lake.public.nowhere": "`public`.`nowhere` cannot be found",
    "select 1 as a, 2 as a": "two columns of the answer are named a",
}


def test_what_is_answered_and_what_is_refused(orders: Lake, capfd: pytest.CaptureFixture[str]) -> None:
    for statement in WRITING:
        with pytest.raises(UsageError, match="only reads"):
            run_query(orders.spark, statement)
    for statement, said in WRONG.items():
        with pytest.raises(UsageError) as caught:
            run_query(orders.spark, statement)
        assert said in caught.value.what
        assert "\n" not in caught.value.what
    for statement, rows in READING.items():
        assert run_query(orders.spark, statement).num_rows == rows, statement
    with pytest.raises(PenstockError, match="DIVIDE_BY_ZERO") as failed:
        run_query(orders.spark, "select id / (id - 1) from lake.public.orders")
    assert failed.value.exit_code == 1
    assert "SQLQueryContextLogger" not in capfd.readouterr().err


def test_a_catalog_that_cannot_be_read_is_out_of_reach(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "warehouse").mkdir()
    (tmp_path / "warehouse" / "catalog.db").write_bytes(b"this is not a database" * 100)
    with pytest.raises(DestinationUnreachable, match="not a database") as caught:
        run_query(lake.spark, "select * from lake.public.orders")
    assert "\n" not in caught.value.what


def test_the_command(orders: Lake, pipeline: PipelineFactory) -> None:
    file = pipeline()
    asked = file.command("query", "FILE", "select * from public.orders order by id", "--format", "json")
    assert asked.returncode == 0, asked.stderr
    assert asked.stderr == ""
    assert json.loads(asked.stdout) == [
        {"id": 1, "total": "12.50", "at": "2026-01-02T03:04:05.678901Z"},
        {"id": 2, "total": None, "at": None},
    ]
    asked = file.command("query", "FILE", "select * from public.nowhere")
    assert asked.returncode == 2
    assert asked.stdout == ""
    (line,) = asked.stderr.splitlines()
    assert line.startswith("penstock: the query is wrong: ")


def test_no_warehouse_yet(pipeline: PipelineFactory, tmp_path: Path) -> None:
    asked = pipeline().command("query", "FILE", "select 1")
    assert asked.returncode == 3
    (line,) = asked.stderr.splitlines()
    assert str(tmp_path / "warehouse") in line
    assert "penstock run" in line
    assert not (tmp_path / "warehouse").exists()
