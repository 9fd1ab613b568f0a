"""Schema changes from outside: one run, many tables, each altered in its own way; the lake equals the source."""

from __future__ import annotations

import oracle
from databases import Database
from lake import Lake
from running import PipelineFactory, PipelineFile, Running, running

QUICK = {"discover_every": "300ms"}


def assert_follows(lake: Lake, database: Database, *tables: str) -> None:
    """Every column of the source is in the lake, with its values; what the lake has besides does not count."""
    wrong = []
    with database.connect() as connection:
        for table in tables:
            rows, types = lake.read(table)
            there = [
                name
                for (name,) in connection.execute(
                    "select attname::text from pg_attribute where attrelid = %s::regclass and attnum > 0 "
                    "and not attisdropped order by attnum",
                    (table,),
                )
            ]
            missing = [name for name in there if name not in rows.column_names]
            assert not missing, f"{table}: the lake lacks {missing}, has {rows.column_names}"
            kept = dict(types)
            found = oracle.compare(connection, table, rows.select(there), [(name, kept[name]) for name in there])
            wrong += [str(found)] if found else []
    assert not wrong, "\n".join(wrong)


def events(file: PipelineFile, table: str) -> list[str]:
    return [event["message"] for event in file.status()["events"] if event["table"] == table]


def copies(run: Running, table: str) -> int:
    return sum("copied " in line and f"table={table} " in line for line in run.text().splitlines())


def test_a_column_added_in_the_stream(pipeline: PipelineFactory, postgres: Database, lake: Lake) -> None:
    postgres.execute(
        "create table plain (id int primary key, a text)",
        "insert into plain select n, 'before ' || n from generate_series(1, 100) n",
    )
    file = pipeline(copy=QUICK)
    with running(file) as run:
        run.drain()
        postgres.execute(
            "begin; insert into plain values (101, 'x'); alter table plain add b numeric(8,2); "
            "insert into plain values (102, 'y', 1.25); update plain set b = 7 where id = 1; commit",
            "update plain set a = 'later' where id = 2",
        )
        run.drain()
        assert_follows(lake, postgres, "public.plain")
        assert copies(run, "public.plain") == 1, run.tail()
