"""Schema changes from outside: one run, many tables, each altered in its own way; the lake equals the source."""

from __future__ import annotations

from databases import Database
from lake import Lake
from penstock.state.sql import find_store
from running import PipelineFactory, PipelineFile, Running, await_condition, running
from schema_following import assert_follows

QUICK = {"discover_every": "300ms"}


def events(file: PipelineFile, table: str) -> list[str]:
    store = find_store(file.state)
    assert store is not None
    try:
        return [event.message for event in store.events(1000) if str(event.table) == table]
    finally:
        store.close()


def copies(run: Running, table: str) -> int:
    return sum("] copied   " in line and line.endswith(f"table={table}") for line in run.text().splitlines())


LIGHT = {
    "within": [
        "begin; insert into {0} values (101, 'x'); alter table {0} add b numeric(8,2); "
        "insert into {0} (id, a, b) values (102, 'y', 1.25); update {0} set b = 7 where id = 1; commit"
    ],
    "added": ["alter table {0} add b numeric(8,2)"],
    "dropped": ["alter table {0} drop a"],
    "renamed": ["alter table {0} rename a to z"],
    "key_renamed": ["alter table {0} rename id to ident"],
    "swapped": ["alter table {0} rename a to t; alter table {0} rename v to a; alter table {0} rename t to v"],
    "nullable": ["alter table {0} alter v set not null; alter table {0} alter v drop not null"],
    "longer": ["alter table {0} alter v type varchar(40)", "alter table {0} alter v type text"],
    "precise": ["alter table {0} alter n type numeric(12,2)"],
    "identity": ["alter table {0} replica identity full", "alter table {0} add e int"],
    "cleaned": ["vacuum full {0}"],
}
HEAVY = {
    "constant": ["alter table {0} add b text not null default 'x'"],
    "random": ["alter table {0} add b float8 default random()"],
    "stored": ["alter table {0} add b text generated always as (v || '!') stored"],
    "widened": ["alter table {0} alter i type bigint using i + 1"],
    "retyped": ["alter table {0} alter i type text"],
    "computed": ["alter table {0} alter v type varchar(20) using upper(v)"],
    "rekeyed": ["alter table {0} drop constraint {0}_pkey; alter table {0} add primary key (id, i)"],
    "again": ["alter table {0} drop a; alter table {0} add a text"],
    "anew": [
        "drop table {0}; create table {0} (id int primary key, q text); insert into {0} select n, 'q' from "
        "generate_series(1, 20) n"
    ],
}


def create(name: str) -> str:
    return (
        f"create table {name} (id int primary key, a text, v varchar(20), n numeric(8,2), i int);"
        f"insert into {name} select n, 'a' || n, 'v' || n, n + 0.25, n from generate_series(1, 20) n"
    )


def touch(database: Database, name: str) -> None:
    """A row changes, so that Postgres tells the table's structure: of one that has an `i`, its first."""
    with database.connect() as connection:
        first = connection.execute(
            f"select attname from pg_attribute where attrelid = '{name}'::regclass and attnum = 1".encode()
        )
        column = first.fetchone()
        assert column is not None
        connection.execute(f'delete from {name} where "{column[0]}" in (19, 20)'.encode())


def assert_names_are_what_counts(file: PipelineFile, postgres: Database, lake: Lake, run: Running) -> None:
    """A table under a new name is a new table; the old name's is kept. Away and back is the same, copied again."""
    postgres.execute(
        'create schema "Odd Schema"',
        "alter table added rename to arrived",
        'alter table dropped set schema "Odd Schema"',
        "alter table bystander rename to away; insert into away values (78); alter table away rename to bystander",
    )

    def settled() -> bool:
        states = {table["table"]: table["state"] for table in file.status()["tables"]}
        known = [states.get(name) for name in ("public.arrived", "Odd Schema.dropped", "public.bystander")]
        return known == ["Ready"] * 3 and states["public.added"] == states["public.dropped"] == "Errored"

    await_condition(settled, "tables under their new names", 60, every=0.5)
    run.drain()
    assert_follows(lake, postgres, "public.arrived", '"Odd Schema".dropped', "public.bystander")
    assert lake.count("public.added") == lake.count("public.arrived")
    assert any("called public.away for a while" in message for message in events(file, "public.bystander"))


def assert_keys_bring_tables_back(file: PipelineFile, postgres: Database, lake: Lake, run: Running) -> None:
    """A clone that loses its key is followed by its whole row; a history cannot begin before there is one."""
    postgres.execute("alter table unkeyed replica identity full; alter table unkeyed drop constraint unkeyed_pkey")
    postgres.execute("update unkeyed set a = 'copied with it' where id < 3")
    await_condition(lambda: copies(run, "public.unkeyed") == 2, "a copy without a key", 60)
    run.drain()
    postgres.execute("update unkeyed set a = 'told by the whole row' where id < 4")
    run.drain()
    assert_follows(lake, postgres, "public.unkeyed")

    def states() -> list[str]:
        found = {table["table"]: table for table in file.status()["tables"]}
        return [found[f"public.{name}"]["state"] for name in ("unkeyed", "keyless")]

    await_condition(lambda: states() == ["Ready", "Errored"], "a history without a key", 60, every=0.5)
    assert "a history needs one" in " ".join(events(file, "public.keyless"))
    postgres.execute(*(f"alter table {name} add primary key (id)" for name in ("unkeyed", "keyless")))
    await_condition(lambda: states() == ["Ready"] * 2, "both again, with their keys", 60, every=0.5)
    run.drain()
    assert_follows(lake, postgres, "public.unkeyed", "public.keyless")
    assert "has one now: (id)" in " ".join(events(file, "public.keyless"))


def test_tables_altered_in_every_way(pipeline: PipelineFactory, postgres: Database, lake: Lake) -> None:
    """One run: what is light is followed without a copy, what is heavy by a copy of that table alone."""
    everything = {**LIGHT, **HEAVY}
    for name in (*everything, "bystander", "unkeyed", "keyless"):
        postgres.execute(create(name))
    postgres.execute("alter table keyless drop constraint keyless_pkey")
    rules = [{"match": "public.keyless", "mode": "history"}, {"match": "public.*"}, {"match": "Odd Schema.*"}]
    file = pipeline(copy=QUICK, tables=rules)
    with running(file) as run:
        run.drain()
        for name in everything:
            postgres.execute(f"update {name} set a = 'updated' where id < 4")
        for name, statements in everything.items():
            for statement in statements:
                postgres.execute(statement.format(name))
            touch(postgres, name)
        postgres.execute("insert into bystander values (77)")
        run.drain()
        assert_follows(lake, postgres, *(f"public.{name}" for name in (*everything, "bystander")))
        copied = {name: copies(run, f"public.{name}") for name in (*everything, "bystander")}
        assert {name for name, count in copied.items() if count == 1} == {*LIGHT, "bystander"}, run.tail()
        assert_names_are_what_counts(file, postgres, lake, run)
        assert_keys_bring_tables_back(file, postgres, lake, run)
        assert "e added (int4)" in " ".join(events(file, "public.identity"))
        assert "older rows show 'x'" in " ".join(events(file, "public.constant"))
