"""where, columns and set through the whole pipeline: in the copy, in the stream, and when the table gets a column. Some
values do not fit, and are rescued."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from databases import Database
from lake import Lake
from penstock.config.load import load
from penstock.control.query.events import lines, parse_place
from penstock.control.query.log_events import asked, events_table
from running import PipelineFactory, PipelineFile

RULE = {
    "match": "public.customers",
    "mode": ["clone", "history", "events"],
    "target": {"clone": "crm.customers"},
    "where": "country <> 'XX'",
    "columns": {
        "email": "mask",
        "notes": "drop",
        "name": {"rename": "full_name"},
        "born": {"rename": "birthday"},
        "wage": "mask",
    },
    "set": {"region": "${source.name}", "tier": 1},
    "events": {"markers": True},
}


def masked(text: str) -> str:
    return hashlib.sha256(f"pepper{text}".encode()).hexdigest()


def test_what_is_kept(pipeline: PipelineFactory, postgres: Database, lake: Lake) -> None:
    postgres.execute(
        "create table customers (id int primary key, name text, country text, email text, notes text,"
        " born date, wage numeric(5, 1))",
        "insert into customers values (1, 'Ada', 'GB', 'a@x', 'n', 'infinity', 'NaN'),"
        " (2, 'Bob', 'XX', 'b@x', 'n', 'infinity', 1), (3, 'Eve', 'DE', null, 'n', '2000-01-01', null)",
    )
    file = pipeline(tables=[RULE], mask_salt="pepper")
    file.run_once()
    assert kept(lake) == [(1, "Ada", "GB", masked("a@x")), (3, "Eve", "DE", None)]
    postgres.execute(
        "update customers set notes = 'not kept' where id = 1",
        "update customers set country = 'XX' where id = 3",
        "update customers set country = 'FR' where id = 2",
        "update customers set born = '-infinity' where id = 2",
        "alter table customers add column level int",
        "insert into customers values (4, 'Kim', 'KR', 'k@x', 'n', '2001-01-01', 1, 7)",
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
        "select id, level, valid_to < '9999-01-01', deleted, birthday is null, _rescued['birthday']"
        " from lake.crm.customers__history order by id, valid_from"
    )
    assert [tuple(row) for row in versions] == [
        (1, None, False, False, True, "infinity"),
        (2, None, True, False, True, "infinity"),
        (2, None, False, False, True, "-infinity"),
        (3, None, True, True, False, None),
        (4, 7, False, False, False, None),
    ]
    current = lake.sql("select id, _rescued['birthday'] from lake.crm.customers__history__current order by id")
    assert [tuple(row) for row in current] == [(1, "infinity"), (2, "-infinity"), (4, None)]
    events = lake.sql(
        "select op, after.id, before.id, after.level, _rescued['after.birthday']"
        " from lake.crm.customers__events order by commit_position, ordinal"
    )
    assert [tuple(row) for row in events if row[0] not in ("begin", "commit")] == [
        ("read", 1, None, None, "infinity"),
        ("read", 3, None, None, None),
        ("update", 1, None, None, "infinity"),
        ("delete", None, 3, None, None),
        ("update", 2, None, None, "infinity"),
        ("update", 2, None, None, "-infinity"),
        ("insert", 4, None, 7, None),
    ]
    assert [row[0] for row in events].count("begin") == [row[0] for row in events].count("commit") == 5
    wages = lake.sql("select id, wage, _rescued['birthday'], size(_rescued) from lake.crm.customers order by id")
    assert [tuple(row) for row in wages[:2]] == [
        (1, masked("NaN"), "infinity", 1),
        (2, masked("1.0"), "-infinity", 1),
    ]
    counted = {table["table"]: table["rescued"] for table in file.status()["tables"]}
    assert {table: {one["column"]: one["cells"] for one in counts} for table, counts in counted.items()} == {
        "public.customers": {"birthday": 3},
        "public.customers__history": {"birthday": 4},
        "public.customers__events": {"after.birthday": 4},
    }
    assert_printed(file, lake)
    status = file.command("check", str(file.path))
    assert "leaves a value of some kilobytes unchanged" in status.stdout


def assert_printed(file: PipelineFile, lake: Lake) -> None:
    """The events as lines of JSON, all at once, in pieces that follow each other, and from outside."""
    feed = events_table(*asked(load(file.path), ["public.customers"]))
    assert feed is not None
    printed = [json.loads(line) for line in lines(lake.spark, lake.readable, feed)]
    changes = [event for event in printed if event["op"] not in ("begin", "commit")]
    assert [(event["op"], (event["after"] or event["before"])["id"]) for event in changes] == [
        ("read", 1),
        ("read", 3),
        ("update", 1),
        ("delete", 3),
        ("update", 2),
        ("update", 2),
        ("insert", 4),
    ]
    assert changes[0]["after"]["email"] == masked("a@x")
    assert changes[0]["_rescued"] == {"after.birthday": "infinity"}
    assert changes[-1]["after"] == {
        "region": file.database.name,
        "tier": 1,
        "id": 4,
        "full_name": "Kim",
        "country": "KR",
        "email": masked("k@x"),
        "birthday": "2001-01-01",
        "wage": masked("1.0"),
        "level": 7,
    }
    pieces: list[dict[str, Any]] = []
    while len(pieces) < len(printed):
        after = parse_place(pieces[-1]["place"]) if pieces else None
        pieces += [json.loads(line) for line in lines(lake.spark, lake.readable, feed, after, 3)]
    assert pieces == printed
    done = file.command("events", "FILE", "public.customers__events", "--after", printed[-3]["place"])
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == printed[-2:]
    assert done.stderr == ""


def kept(lake: Lake) -> list[tuple[object, ...]]:
    rows = lake.sql("select id, full_name, country, email from lake.crm.customers order by id")
    assert "notes" not in lake.spark.table("lake.crm.customers").columns
    return [tuple(row) for row in rows]
