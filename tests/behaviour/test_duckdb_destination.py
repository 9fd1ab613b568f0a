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


def require_equal(database: Database, folder: Path, *columns: str, where: str = "true") -> None:
    """The file has the rows of `people` that the source has, with these columns."""
    with database.connect() as connection:
        query = f"select {', '.join(columns)} from people where {where} order by id"
        wanted = connection.execute(query.encode()).fetchall()
    found = sorted(rows(folder, "people"), key=lambda one: int(one["id"]))
    assert [tuple(one[name] for name in columns) for one in found] == wanted
    assert all(one["_rescued"] is None for one in found)


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
    require_equal(postgres, tmp_path, "id", "name", "paid", "seen", "tags")
    postgres.execute(
        "alter table people drop column tags, add column tags text[]",
        "alter table people add column note text default 'none'",
        "insert into people (id, name) values (5000, 'new')",
    )
    pipeline.run_once()
    require_equal(postgres, tmp_path, "id", "name", "paid", "seen", "tags", "note")
    pipeline.settings["tables"] = [{"match": "public.*", "where": "id < 100"}]
    pipeline.write()
    pipeline.run_once()
    require_equal(postgres, tmp_path, "id", "name", "paid", "seen", "tags", "note", where="id < 100")
