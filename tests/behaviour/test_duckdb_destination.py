"""DuckDB, the worked example of a destination of tables, under the suite that penstock ships, and in a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb

from databases import Database
from penstock.destinations.duckdb import DuckDB
from penstock.testing import table_suite
from running import make_pipeline


def rows(folder: Path, table: str) -> list[dict[str, Any]]:
    with duckdb.connect(str(folder / "shop.duckdb"), read_only=True) as database:
        found: list[dict[str, Any]] = database.sql(f"FROM public.{table}").to_arrow_table().to_pylist()
    return found


TestDuckDB = table_suite(lambda folder: DuckDB(str(folder / "shop.duckdb")), rows)


def test_a_pipeline_keeps_the_tables_equal(postgres: Database, tmp_path: Path) -> None:
    postgres.execute(
        "create table people (id int primary key, name text, paid numeric(8,2), seen timestamptz, tags text[])",
        "insert into people select n, 'name ' || n, n / 3.0, now(), array['a', 'b'] from generate_series(1, 500) n",
    )
    pipeline = make_pipeline(
        tmp_path, postgres, destinations=[{"name": "local", "type": "duckdb", "path": str(tmp_path / "shop.duckdb")}]
    )
    pipeline.run_once()
    postgres.execute(
        "update people set name = upper(name) where id % 3 = 0",
        "delete from people where id % 5 = 0",
        "update people set id = id + 1000 where id % 7 = 0",
    )
    pipeline.run_once()
    with postgres.connect() as connection:
        wanted = connection.execute(b"select id, name, paid, seen, tags from people order by id").fetchall()
    found = sorted(rows(tmp_path, "people"), key=lambda one: int(one["id"]))
    assert [(one["id"], one["name"], one["paid"], one["seen"], one["tags"]) for one in found] == wanted
    assert all(one["_rescued"] is None for one in found)
