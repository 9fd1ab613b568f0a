"""Rows from outside, under every replica identity: large values that are not sent, row filters, column lists, generated
columns, processors; in the copy and in the stream, while identities change. Postgres is the oracle."""

from __future__ import annotations

import json

import psycopg
import pytest

import oracle
from databases import Database
from lake import Lake
from running import PipelineFactory, PipelineFile, Running, await_condition, running

TABLE = """
    create table {0} (id int, note text, big text, code int not null, primary key (id));
    create unique index {0}_code on {0} (code);
    alter table {0} alter big set storage external, alter note set storage external;
    insert into {0} select g, repeat('n', 2100) || g, repeat('b', 2500) || g, g from generate_series(1, 30) g;
"""
IDENTITIES = {
    "by_default": "default",
    "by_full": "full",
    "by_index": "using index by_index_code",
    "changing": "default",
}
# Each line is a transaction, after which a batch may end; at a blank line it has ended. {0} is the table, {1} its key.
SCENARIOS = """
    update {0} set code = code where id <= 5
    update {0} set note = 'short' where id = 1; update {0} set note = 'shorter' where id = 1
    insert into {0} values (100, repeat('N', 2100), repeat('B', 2500), 100)
    update {0} set note = 'x' where id = 100

    update {0} set {1} = {1} + 1000 where id = 2
    update {0} set {1} = {1} + 1000, note = 'y' where id = 3; update {0} set note = 'z' where note = 'y'

    update {0} set {1} = -1 where {1} = 5; update {0} set {1} = 5 where {1} = 6; update {0} set {1} = 6 where {1} = -1
    delete from {0} where id = 7; insert into {0} values (7, 'again', repeat('A', 2500), 7)
    update {0} set note = 'after' where id = 7

    update {0} set big = null where id = 8; update {0} set note = 'null' where id = 8
    begin; savepoint s; update {0} set big = 'gone' where id = 9; rollback to s; update {0} set note = 'kept'; commit
    delete from {0} where id = 10; update {0} set {1} = 10 where {1} = 11

    truncate {0}; insert into {0} values (1, 'new', repeat('T', 2500), 1); update {0} set note = 'newer' where id = 1
    update {0} set id = 50, code = 50 where id = 1; insert into {0} values (1, repeat('m', 2100), 'one', 1)
    update {0} set note = note where id = 1
"""
# Processors of tables: rows left out, values computed, rows that fail (n = 0), and a function.
PROCESSED = [
    {
        "match": "public.priced",
        "processors": [
            {"type": "filter", "where": "state <> 'hidden'"},
            {"type": "sql", "set": {"state": "concat(state, cast(100 % n as text))"}},
        ],
    },
    {"match": "public.loud", "processors": [{"type": "python", "function": "loud:shouted"}]},
]
LOUD = """
import pyarrow as pa, pyarrow.compute as pc

def shouted(events: pa.Table) -> pa.Table:
    after = events["after"].combine_chunks()
    columns = [pc.utf8_upper(one) if name == "word" else one
               for name, one in zip(["id", "word"], after.flatten(), strict=True)]
    made = pa.StructArray.from_arrays(columns, ["id", "word"], mask=after.is_null())
    return events.set_column(events.schema.get_field_index("after"), "after", made)
"""
PRICED = "select id, state || 100 % n as state, n, big from priced where state <> 'hidden' and n <> 0"


def batches(table: str, key: str) -> list[list[str]]:
    parts = SCENARIOS.strip("\n").split("\n\n")
    return [[line.strip().format(table, key) for line in part.splitlines()] for part in parts]


def assert_shows(lake: Lake, database: Database, table: str, query: str) -> None:
    """The lake's table is what the query gives at the source."""
    database.execute(f"create or replace view oracle_{table} as {query}")
    with database.connect() as connection:
        wrong = oracle.compare(connection, f"public.oracle_{table}", *lake.read(f"public.{table}"))
    assert not wrong, str(wrong)


def errored(file: PipelineFile) -> dict[str, str]:
    return {one["table"]: one["error"] for one in file.status()["tables"] if one["state"] == "Errored"}


def dead_letters(file: PipelineFile) -> list[tuple[int, str]]:
    found = json.loads(file.command("dlq", "list", "FILE", "--json").stdout)["dead_letters"]
    return [(json.loads(one["key"])["id"], one["table"]) for one in found]


def until_errored(run: Running, file: PipelineFile, table: str) -> str:
    await_condition(lambda: table in errored(file), f"{table} to be Errored\n{run.tail()}", 60, every=0.3)
    return errored(file)[table]


def test_rows_under_every_replica_identity(pipeline: PipelineFactory, postgres: Database, lake: Lake) -> None:
    for table, identity in IDENTITIES.items():
        postgres.execute(TABLE.format(table), f"alter table {table} replica identity {identity}")
    postgres.execute(
        TABLE.format("by_nothing"),
        "alter table by_nothing replica identity nothing",
        "create table filtered (id int primary key, active bool, big text)",
        "alter table filtered alter big set storage external, replica identity full",
        "insert into filtered select g, g % 2 = 0, repeat('f', 2500) || g from generate_series(1, 20) g",
        "create table let_in (k int, id int, big text, primary key (k, id))",
        "alter table let_in alter big set storage external",
        "insert into let_in select g, g, repeat('l', 2500) || g from generate_series(1, 10) g",
        "create table listed (secret text, id int primary key, open text)",
        "insert into listed select 'secret', g, 'open' from generate_series(1, 20) g",
        "create table made (id int primary key, a int, twice int generated always as (a * 2) stored)",
        "insert into made (id, a) select g, g from generate_series(1, 20) g",
        "create table priced (id int primary key, state text, n int, big text)",
        "alter table priced alter big set storage external",
        "insert into priced select g, 'new', g - 1, repeat('p', 2500) || g from generate_series(1, 20) g",
        "create table loud (id int primary key, word text); insert into loud values (1, 'one'), (2, 'two')",
        "create publication rows for table by_default, by_full, by_index, by_nothing, changing, listed (id, open),"
        " priced, loud,"
        " made, filtered where (active), let_in where (k > 5)"
        " with (publish_via_partition_root = true, publish_generated_columns = stored)",
    )
    identical = [f"public.{table}" for table in (*IDENTITIES, "by_nothing", "made")]
    file = pipeline(
        source={"publication": "rows"},
        tables=[*PROCESSED, {"match": "public.*", "exclude": ["public.oracle_%"]}],
        copy={"discover_every": "500ms"},
    )
    (file.folder / "loud.py").write_text(LOUD)
    with running(file) as run:
        run.drain()
        lake.assert_equals(postgres, identical)
        rounds = zip(
            *(batches(table, "code" if table == "by_index" else "id") for table in IDENTITIES),
            ("full", "default", "full", "nothing", "default"),
            strict=True,
        )
        for *statements, identity in rounds:
            for of_table in statements:
                postgres.execute(*of_table)
            run.drain()
            lake.assert_equals(postgres, identical)
            postgres.execute(f"alter table changing replica identity {identity}")
            if identity == "nothing":
                with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
                    postgres.execute("update changing set note = 'no'")
                postgres.execute("alter table changing replica identity default")
        postgres.execute(
            "insert into by_nothing values (100, 'in', repeat('i', 2500), 100)",
            "update made set a = -a where id < 10; insert into made (id, a) values (100, 100)",
            "update listed set secret = 'other' where id < 5; update listed set open = 'new', secret = '' where id = 6",
            "insert into listed values ('s', 100, 'o'); delete from listed where id = 7",
            "update filtered set active = not active where id < 10",  # in and out, the large value not sent
            "update filtered set active = not active where id < 5",
            "update filtered set id = id + 100 where id in (1, 2, 11, 12); delete from filtered where id in (3, 4)",
            "update filtered set big = 'short' where id in (13, 14)",
            "update let_in set k = k + 20 where k = 8; update let_in set k = 1 where k = 9",
            "delete from let_in where k = 2",
            "update priced set state = 'seen' where id < 5",  # the large value is not sent
            "update priced set n = 0 where id = 3; update priced set state = 'hidden' where id in (4, 5)",
            "update priced set state = 'back', big = 'sent' where id = 5; delete from priced where id = 6",
            "update loud set word = 'uno' where id = 1; insert into loud values (3, 'three')",
        )
        run.drain()
        lake.assert_equals(postgres, identical)
        assert_shows(lake, postgres, "filtered", "select * from filtered where active")
        assert_shows(lake, postgres, "let_in", "select * from let_in where k > 5")
        assert_shows(lake, postgres, "listed", "select id, open from listed")
        assert_shows(lake, postgres, "priced", PRICED)
        assert_shows(lake, postgres, "loud", "select id, upper(word) as word from loud")
        assert set(dead_letters(file)) == {(1, "public.priced"), (3, "public.priced")}, (
            "one of the copy, one of a change"
        )
        assert errored(file) == {}

        postgres.execute("update priced set n = 7, big = 'sent' where id = 3")
        postgres.execute("update let_in set k = 7 where k = 3")  # into the filter, and Postgres does not send all of it
        assert "row filter" in until_errored(run, file, "public.let_in")
        postgres.execute("alter table let_in replica identity full", "update let_in set k = 8 where k = 4")
        assert file.command("resync", "FILE", "public.let_in", "public.priced").returncode == 0
        await_condition(lambda: errored(file) == {}, f"no table to be Errored\n{run.tail()}", 60, every=0.3)
        run.drain()
        assert_shows(lake, postgres, "let_in", "select * from let_in where k > 5")
        assert_shows(lake, postgres, "priced", PRICED)
        assert dead_letters(file) == [(1, "public.priced")], "those that still fail, found by the copy"
        postgres.execute("update let_in set k = 9 where k = 5")
        run.drain()
        assert_shows(lake, postgres, "let_in", "select * from let_in where k > 5")
