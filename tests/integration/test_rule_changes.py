"""What a change of the file does to a table that is there: a clone is copied again by itself, what keeps more than the
source has becomes Errored, with commands that lead out; and `check` foresees all of it."""

from __future__ import annotations

import hashlib
import json

from databases import Database
from lake import Lake
from running import PipelineFactory

BEFORE = {"match": "public.people", "mode": ["clone", "history"], "where": "country <> 'XX'"}
OTHERS = [{"match": "public.fine"}, {"match": "public.lost"}]
AFTER = {
    **BEFORE,
    "where": "country <> 'DE'",
    "columns": {"email": "mask", "notes": "drop"},
    "set": {"tier": 2},
    "types": {"wage": "text"},
}


def masked(text: str) -> str:
    return hashlib.sha256(f"pepper{text}".encode()).hexdigest()


def test_a_changed_rule(pipeline: PipelineFactory, postgres: Database, lake: Lake) -> None:
    postgres.execute(
        "create table people (id int primary key, country text, email text, notes text, wage numeric(5, 1))",
        "insert into people values (1, 'GB', 'a@x', 'n', 1.5), (2, 'XX', 'b@x', 'n', 2.5), (3, 'DE', 'c@x', 'n', 3.5)",
        "create table kept (id int primary key)",
        "create table quiet (id int primary key)",
        "create table fine (id int primary key)",
        "create table lost (id int primary key)",
        "insert into lost values (1)",
        "insert into kept values (1), (2)",
    )
    file = pipeline(tables=[BEFORE, {"match": "public.kept", "mode": "append"}, {"match": "public.quiet"}, *OTHERS])
    file.settings["mask_salt"] = "pepper"
    file.write()
    file.run_once()
    postgres.execute("delete from kept where id = 2")
    file.settings["tables"] = [AFTER, {"match": "public.kept", "mode": "clone"}, {"match": "public.typo"}, *OTHERS]
    file.write()

    foreseen = json.loads(file.command("check", "FILE", "--json").stdout)["findings"]
    said = [f"{one['level']}: {one['what']}" for one in foreseen]
    for expected in (
        "warning: table public.people is copied again by the next run: `where` changed",
        "warning: table public.people: columns email, notes can be read as before",
        "error: table public.people__history is Errored at the next run: `where` changed",
        "error: table public.kept is Errored at the next run: its mode changed from append to clone",
        "warning: table public.quiet was followed, and is not any more",
        "warning: rule public.typo matches no table",
    ):
        assert [one for one in said if one.startswith(expected)], said

    done = file.command("run", "FILE", "--once")
    assert done.returncode == 1, done.stderr
    assert "2 of 5 tables are Errored: public.kept, public.people__history" in done.stderr, "feeds, not tables"
    assert lake.sql("select * from lake.public.kept") != [], "what only the lake has is still there"
    rows = lake.sql("select id, country, email, wage, tier from lake.public.people order by id")
    assert [tuple(row) for row in rows] == [(1, "GB", masked("a@x"), "1.5", 2), (2, "XX", masked("b@x"), "2.5", 2)]
    assert "notes" not in lake.sql("select * from lake.public.people")[0].asDict()
    status = file.status()
    tables = {table["table"]: table for table in status["tables"]}
    assert {name: table["state"] for name, table in tables.items()} == {
        "public.people": "Ready",
        "public.people__history": "Errored",
        "public.kept": "Errored",
        "public.quiet": "NotFollowed",
        "public.fine": "Ready",
        "public.lost": "Ready",
    }
    assert f"penstock drop {file.path} public.people__history --yes" in tables["public.people__history"]["solution"]
    hidden = [event["message"] for event in status["events"] if event["kind"] == "hidden"]
    assert len(hidden) == 1
    assert "columns email, notes" in hidden[0]
    assert "expire_snapshots" in hidden[0]

    for words in (
        ("resync", "FILE", "public.kept"),
        ("drop", "FILE", "public.people__history", "--yes"),
        ("forget", "FILE", "public.quiet"),
    ):
        assert file.command(*words).returncode == 0
    done = file.command("run", "FILE", "--once")
    assert done.returncode == 1
    assert "1 of 5 tables are Errored: public.kept" in done.stderr, "a resync does not remove what a mode change would"
    versions = lake.sql("select id, email, tier, deleted from lake.public.people__history order by id")
    assert [tuple(row) for row in versions] == [(1, masked("a@x"), 2, False), (2, masked("b@x"), 2, False)]
    assert "public.quiet" not in {table["table"] for table in file.status()["tables"]}
    assert json.loads(file.command("check", "FILE", "--json").stdout)["errors"] == 1, "public.kept alone"

    for path in (file.warehouse / "public" / "lost" / "data").glob("*.parquet"):
        path.unlink()
    compared = file.command("verify", "FILE", "--json")
    assert compared.returncode == 1
    tables = {table["table"]: table for table in json.loads(compared.stdout)["tables"]}
    assert tables["public.fine"]["equal"], "the others are compared all the same"
    assert (tables["public.lost"]["equal"], tables["public.kept"]["equal"]) == (False, False)
    assert "public.lost" in tables["public.lost"]["error"]
    assert "Errored" in tables["public.kept"]["error"]
