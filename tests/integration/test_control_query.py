"""Queries on a lake: what is refused in the process, and `penstock query` from outside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lake import Lake
from penstock.config.load import load
from penstock.control.query.direct_query import answer
from penstock.control.query.result_view import as_csv, as_json
from penstock.control.query.spark_sql import run_query
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


DIRECT = (
    "select * from public.plain",
    "select id, name from lake.public.plain where id > 1 and name <> 'x and y'",
    "SELECT count(*) FROM public.plain",
    "select count(1) as n from `public`.`plain` where name = 'it'",
    "select at, day, ok, ratio, total, local, small from public.plain where small <= -1;",
    "select id from public.plain where id = 99",
)
FOR_SPARK = (
    "select distinct id from public.plain",
    "select id from public.plain order by id",
    "select id + 1 from public.plain",
    "select ID from public.plain where nobody = 1",
    "select * from public.nested",
    "select id from public.plain where ratio > 1",
    "select id from public.plain where name = 'a\\'b'",
    "select id from public.plain where name = 1 or id = 1",
    "select id from public.nowhere",
    "select id from other.public.plain",
    "select id from public.plain where id > 1 limit all",
    "with x as (select 1 as one) select one from x",
)


def test_simple_reads_need_no_spark_and_give_its_answers(orders: Lake, pipeline: PipelineFactory) -> None:
    orders.sql(
        "create table lake.public.plain (id bigint, small int, name string, total decimal(10, 2), at timestamp,"
        " local timestamp_ntz, day date, ok boolean, ratio double) using iceberg"
        " tblproperties ('format-version' = '2', 'write.delete.mode' = 'merge-on-read')"
    )
    orders.sql(
        "insert into lake.public.plain values (1, -1, 'it', 12.50, timestamp'2026-01-02 03:04:05.678901Z',"
        " timestamp_ntz'2026-01-02 03:04:05', date'0001-01-01', true, double('NaN')),"
        " (2, 7, 'x and y', null, null, null, null, null, null),"
        " (3, -2, '', -0.01, timestamp'1969-12-31 23:59:59Z', null, date'9999-12-31', false, -0.0D),"
        " (4, 0, 'gone', 0, null, null, null, null, 1e300D)"
    )
    orders.sql("delete from lake.public.plain where id = 4")
    orders.sql("create table lake.public.nested (id bigint, tags array<string>) using iceberg")
    file = pipeline()
    loaded = load(file.path)
    for statement in DIRECT:
        direct = answer(loaded, statement)
        assert direct is not None, statement
        asked = statement.replace(" public.", " lake.public.").replace("`public`", "lake.`public`").rstrip(";")
        theirs = run_query(orders.spark, asked)
        assert direct.schema.names == theirs.schema.names, statement
        assert sorted(as_json(direct).splitlines()) == sorted(as_json(theirs).splitlines()), statement
        assert sorted(as_csv(direct).splitlines()) == sorted(as_csv(theirs).splitlines()), statement
    limited = answer(loaded, "select id from public.plain limit 2")
    assert limited is not None
    assert limited.num_rows == 2
    for statement in FOR_SPARK:
        assert answer(loaded, statement) is None, statement
    first = file.command("query", "FILE", "select count(*) as n from public.plain", "--format", "json")
    assert json.loads(first.stdout) == [{"n": 3}], first.stderr
    without_java = {**file.environment, "PATH": "/nowhere", "JAVA_HOME": "/nowhere"}
    file.environment.update(without_java)
    again = file.command("query", "FILE", "select count(*) as n from public.plain", "--format", "csv")
    assert (again.returncode, again.stdout) == (0, '"n"\n3\n'), again.stderr
    refused = file.command("query", "FILE", "/* go */ drop table public.plain")
    assert refused.returncode == 2
    assert "only reads" in refused.stderr


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
    assert line.startswith("penstock: [usage] the query is wrong: ")


def test_no_warehouse_yet(pipeline: PipelineFactory, tmp_path: Path) -> None:
    asked = pipeline().command("query", "FILE", "select 1")
    assert asked.returncode == 3
    (line,) = asked.stderr.splitlines()
    assert str(tmp_path / "warehouse") in line
    assert "penstock run" in line
    assert not (tmp_path / "warehouse").exists()
