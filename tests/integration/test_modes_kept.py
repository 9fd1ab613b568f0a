"""where, columns and set through the whole pipeline: in the copy, in the stream, and when the table gets a column."""

from __future__ import annotations

import hashlib

from databases import Database
from lake import Lake
from running import PipelineFactory

RULE = {
    "match": "public.customers",
    "mode": ["clone", "history", "events"],
    "target": {"clone": "crm.customers"},
    "where": "country <> 'XX'",
    "columns": {"email": "mask", "notes": "drop", "name": {"rename": "full_name"}},
    "set": {"region": "${source.name}", "tier": 1},
    "events": {"markers": True},
}


def masked(text: str) -> str:
    return hashlib.sha256(f"pepper{text}".encode()).hexdigest()


def test_what_is_kept(pipeline: PipelineFactory, postgres: Database, lake: Lake) -> None:
    postgres.execute(
        "create table customers (id int primary key, name text, country text, email text, notes text)",
        "insert into customers values (1, 'Ada', 'GB', 'a@x', 'n'), (2, 'Bob', 'XX', 'b@x', 'n'),"
        " (3, 'Eve', 'DE', null, 'n')",
    )
    file = pipeline(tables=[RULE], mask_salt="pepper")
    file.run_once()
    assert kept(lake) == [(1, "Ada", "GB", masked("a@x")), (3, "Eve", "DE", None)]
    postgres.execute(
        "update customers set notes = 'not kept' where id = 1",
        "update customers set country = 'XX' where id = 3",
        "update customers set country = 'FR' where id = 2",
        "alter table customers add column level int",
        "insert into customers values (4, 'Kim', 'KR', 'k@x', 'n', 7)",
    )
    file.run_once()
    assert kept(lake) == [
        (1, "Ada", "GB", masked("a@x")),
        (2, "Bob", "FR", masked("b@x")),
        (4, "Kim", "KR", masked("k@x")),
    ]
    region = lake.sql("select distinct region, tier from lake.crm.customers")
    assert [tuple(row) for row in region] == [(postgres.name, 1)]
    versions = lake.sql(
        "select id, level, valid_to < '9999-01-01', deleted from lake.crm.customers__history order by id"
    )
    assert [tuple(row) for row in versions] == [
        (1, None, False, False),
        (2, None, False, False),
        (3, None, True, True),
        (4, 7, False, False),
    ]
    events = lake.sql(
        "select op, after.id, before.id, after.level from lake.crm.customers__events order by commit_lsn, tx_ordinal"
    )
    assert [tuple(row) for row in events if row[0] not in ("begin", "commit")] == [
        ("read", 1, None, None),
        ("read", 3, None, None),
        ("update", 1, None, None),
        ("delete", None, None, None),
        ("update", 2, None, None),
        ("insert", 4, None, 7),
    ]
    assert [row[0] for row in events].count("begin") == [row[0] for row in events].count("commit") == 4
    status = file.command("check", str(file.path))
    assert "leaves a value of some kilobytes unchanged" in status.stdout


def kept(lake: Lake) -> list[tuple[object, ...]]:
    rows = lake.sql("select id, full_name, country, email from lake.crm.customers order by id")
    assert "notes" not in lake.spark.table("lake.crm.customers").columns
    return [tuple(row) for row in rows]
