"""The instruments themselves: the workload is reproducible, and the oracle finds what it must find."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import oracle
from databases import Database, fresh_database
from lake import WORK_TABLES, Lake
from penstock.demo.server import PostgresServer
from workload import Workload, create_tables

SAMPLE = """create table sample (id int primary key, flag bool, small int2, large int8, ratio float4, exact float8,
    price numeric(12,4), free numeric, words text, padded char(4), raw bytea, day date, clock time, at timestamp,
    at_tz timestamptz, ident uuid, doc jsonb)"""
ROWS = """insert into sample select g, g % 2 = 0, g, g * 1000000000::int8, 0.1::float4 * g, 0.1 * g, g / 4.0,
    round(g / 3.0, 18),
    case g % 3 when 0 then null when 1 then '' else 'ü' || g end, 'x', decode(lpad(to_hex(g), 4, '0'), 'hex'),
    date '1999-12-31' + g, time '00:00' + g * interval '1 ms', timestamp '0001-01-01' + g * interval '1 us',
    timestamptz '2020-01-01 00:00+02' + g * interval '1 day', md5(g::text)::uuid, jsonb_build_object('g', g)
    from generate_series(1, 50) g"""
BY_HAND = """create table lake.public.sample (id int, flag boolean, small int, large bigint, ratio float, exact double,
    price decimal(12,4), free decimal(38,18), words string, padded string, raw binary, day date, clock string,
    at timestamp_ntz, at_tz timestamp, ident string, doc string) using iceberg"""

AS_TEXT = """select id::text, flag::text, small::text, large::text, ratio::text, exact::text, price::text, free::text,
    words, padded, encode(raw, 'hex'), day::text, clock::text, at::text, (at_tz at time zone 'UTC')::text || 'Z',
    ident::text, doc::text from sample"""


def _contents(database: Database) -> list[object]:
    query = "select md5(string_agg(x::text, '|' order by x::text)) from {} x"
    return [database.value(query.format(table)) for table in WORK_TABLES]


def test_one_seed_gives_one_database(embedded_server: PostgresServer) -> None:
    found = []
    for seed in (1, 1, 2):
        with fresh_database(embedded_server) as database:
            create_tables(database.url)
            with Workload(database.url, seed, connections=3) as workload:
                workload.take_turns(120)
            found.append(_contents(database))
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_workers_at_once_meet_in_the_same_rows(postgres: Database) -> None:
    create_tables(postgres.url)
    with Workload(postgres.url, 5, connections=4) as workload:
        workload.run_together(60)
        counts = workload.counts
    for kind in (
        "insert",
        "upsert",
        "change_key",
        "swap_keys",
        "delete",
        "truncate",
        "savepoint",
        "rolled back",
        "bulk",
    ):
        assert counts[kind], f"the workload never did: {kind}"
    assert counts["committed"] > 150


@dataclass(frozen=True)
class Handmade:
    """A lake table that equals its source without penstock, and what Spark reads from it."""

    database: Database
    lake: Lake
    rows: pa.Table
    types: list[tuple[str, str]]


@pytest.fixture(scope="module")
def handmade(
    embedded_server: PostgresServer, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Handmade]:
    with fresh_database(embedded_server) as database:
        database.execute(SAMPLE, ROWS)
        with database.connect() as connection:
            rows = connection.execute(AS_TEXT).fetchall()
        lake = Lake(spark, tmp_path_factory.mktemp("warehouse"))
        lake.sql("create namespace lake.public")
        lake.sql(BY_HAND)
        types = lake.spark.table("lake.public.sample").dtypes
        frame = lake.spark.createDataFrame(rows, ", ".join(f"{name} string" for name, _ in types))
        frame.selectExpr(
            *(f"unhex({name}) as {name}" if name == "raw" else f"cast({name} as {type_})" for name, type_ in types)
        ).writeTo("lake.public.sample").append()
        yield Handmade(database, lake, *lake.read("public.sample"))


def test_oracle_accepts_an_equal_table(handmade: Handmade) -> None:
    handmade.lake.assert_equals(handmade.database, ["public.sample"])
    handmade.lake.assert_equals_in_pyiceberg(handmade.database, ["public.sample"])


def _differences(handmade: Handmade, rows: list[dict[str, Any]]) -> str:
    lake = pa.Table.from_pylist(rows, handmade.rows.schema)
    with handmade.database.connect() as connection:
        return str(oracle.compare(connection, "public.sample", lake, handmade.types))


@pytest.mark.parametrize(
    ("column", "change"),
    [
        ("flag", lambda value: not value),
        ("small", lambda value: value + 1),
        ("large", lambda value: value + 1),
        ("ratio", lambda value: float(np.nextafter(np.float32(value), np.float32(9)))),
        ("exact", lambda value: math.nextafter(value, 9)),
        ("price", lambda value: value + Decimal("0.0001")),
        ("free", lambda value: value + Decimal("0.000000000000000001")),
        ("words", lambda _: None),
        ("padded", lambda value: value.strip()),
        ("raw", lambda value: value + b"\0"),
        ("day", lambda value: value + timedelta(days=1)),
        ("clock", lambda value: value + "0"),
        ("at", lambda value: value + timedelta(microseconds=1)),
        ("at_tz", lambda value: value + timedelta(hours=2)),
        ("ident", lambda value: value.upper()),
        ("doc", lambda value: value.replace(" ", "")),
    ],
)
def test_oracle_finds_one_changed_cell(handmade: Handmade, column: str, change: Callable[[Any], Any]) -> None:
    rows = handmade.rows.to_pylist()
    changed = next(row for row in rows if row["id"] == 7)
    changed[column] = change(changed[column])
    found = _differences(handmade, rows)
    assert f"changed: key '7', column {column}: " in found
    assert found.count("changed: ") == 1


def test_oracle_tells_null_from_empty_text(handmade: Handmade) -> None:
    rows = handmade.rows.to_pylist()
    for row in rows:
        if row["id"] in (7, 9):
            row["words"] = "" if row["words"] is None else None
    found = _differences(handmade, rows)
    assert "column words: '' is None" in found
    assert "column words: None is ''" in found


def test_oracle_finds_missing_extra_and_doubled_rows(handmade: Handmade) -> None:
    rows = handmade.rows.to_pylist()
    (third,) = [row for row in rows if row["id"] == 3]
    assert "1 missing, 0 extra" in _differences(handmade, [row for row in rows if row["id"] != 50])
    assert "extra: id='51'" in _differences(handmade, [*rows, {**third, "id": 51}])
    assert "doubled: id='3'" in _differences(handmade, [*rows, third])


def test_oracle_finds_a_column_of_another_type(handmade: Handmade) -> None:
    types = [(name, "bigint" if name == "small" else type_) for name, type_ in handmade.types]
    with handmade.database.connect() as connection:
        assert "columns are" in str(oracle.compare(connection, "public.sample", handmade.rows, types))
