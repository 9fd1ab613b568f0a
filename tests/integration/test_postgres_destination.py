"""A Postgres destination from outside: copied, streamed, killed, altered, and refused one table at a time."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from databases import Database, fresh_database
from penstock.demo.server import PostgresServer
from penstock.model.table_state import State
from penstock.state.sql import find_store
from running import PipelineFile, Running, await_condition, make_pipeline, running

TYPES = """
    id numeric primary key, n int, big bigint, flag boolean, price numeric(12,2), x float8, t text, c char(5),
    at timestamptz, day date, j json, jb jsonb, u uuid, ip inet, b bytea, tags text[], span int4range, iv interval,
    m money, bits bit(3), mood mood
"""
VALUES = """
    (1, 1, 2^40, true, 1.50, 'NaN', 'quote '' " \\ and
newline', 'ab', 'infinity', '0044-03-15 BC', '{"a":  1}', '{"a": 1}', '00000000-0000-0000-0000-000000000001',
     '10.0.0.1/24', '\\x00ff', '{"a,b",NULL,"\\"q\\""}', '[1,5)', '1 mon 2 days', '12.34', '101', 'fine'),
    (1.50, null, null, null, null, null, '', null, null, null, null, null, null, null, '', '{}', 'empty', null, null,
     null, null),
    ('NaN', 0, -1, false, -0.01, '-Infinity', 'ключ', '', '-infinity', 'infinity', 'null', 'null', null, '::1', '\\x',
     '{{a,b},{c,d}}', '(,)', '-1 year', '-0.01', '000', 'sad')
"""


REFUSING = {"strict": ("id = 2", "positive"), "needy": ("id = 3", "constraint n"), "kin": ("id = 4", "known")}


@pytest.fixture
def copy(embedded_server: PostgresServer) -> Iterator[Database]:
    with fresh_database(embedded_server) as database:
        yield database


def made(folder: Path, source: Database, target: Database, **settings: Any) -> PipelineFile:
    destination = {"name": "copy", "type": "postgres", "url": target.url, **settings}
    return make_pipeline(folder, source, destinations=[destination])


def both(source: Database, target: Database, table: str) -> tuple[list[Any], list[Any]]:
    query = f"select t::text from (select * from {table}) t order by 1"
    found = []
    for database in (source, target):
        with database.connect() as connection:
            found.append(connection.execute(query.encode()).fetchall())
    return found[0], found[1]


def level(run: Running, file: PipelineFile, *tables: str, errored: Sequence[str] = ()) -> None:
    wanted = file.database.flush_position()
    store = find_store(file.state)
    assert store is not None

    def there() -> bool:
        assert run.process.poll() is None, run.tail()
        found = {str(name): one.state for name, one in store.table_status("copy").items()}
        settled = all(found.get(name) is State.READY for name in tables)
        settled &= all(found.get(name) is State.ERRORED for name in errored)
        return settled and (store.processed("copy") or 0) >= wanted

    try:
        await_condition(there, "the destination to be level", 120)
    except AssertionError as late:
        raise AssertionError(f"{late}\n{run.tail()}") from None
    finally:
        store.close()


def verified_and_repaired(file: PipelineFile, copy: Database) -> None:
    """Beside the run: all types are equal; what somebody changes at the destination is found, and put right."""
    found = verified(file)
    assert found["equal"], found
    assert {one["source_rows"] for one in found["tables"]} == {1, 3, 4, 50}
    copy.execute(
        "update things set t = 'changed there', bits = '000', jb = '{}' where id = 1",
        "delete from left_side where id = 7",
        "insert into right_side values (1000, 1)",
        "delete from bag where a = 3",
    )
    found = verified(file, exit_code=1)
    differing = {one["table"]: one["differing"] for one in found["tables"] if not one["equal"]}
    assert {name: [(row["kind"], row["key"]) for row in one["rows"]] for name, one in differing.items()} == {
        "public.things": [("differs", ["1"])],
        "public.left_side": [("missing", ["7"])],
        "public.right_side": [("extra", ["1000"])],
        "public.bag": [("missing", ["3, "])],
    }
    cells = differing["public.things"]["rows"][0]["cells"]
    assert [(one["column"], one["source"], one["lake"]) for one in cells] == [
        ("t", "changed", "changed there"),
        ("jb", '{"a": 1}', "{}"),
        ("bits", "101", "000"),
    ]
    repaired = verified(file, "public.things", "public.left_side", "public.right_side", "--repair")
    assert all(one["repaired"] for one in repaired["tables"])
    copy.execute("insert into bag values (3, '')")
    asked = file.command("query", "FILE", "select sum(amount)::bigint as held from left_side", "--format", "json")
    assert json.loads(asked.stdout) == [{"held": copy.value("select sum(amount)::bigint from left_side")}], asked.stderr
    for statement, said in (
        ("delete from left_side", "only reads"),
        ("with gone as (delete from left_side returning id) select * from gone", "read-only transaction"),
        ("select 1; delete from left_side", "multiple commands"),
        ("select amount from left_sid", 'relation "left_sid" does not exist'),
    ):
        refused = file.command("query", "FILE", statement)
        assert refused.returncode == 2
        assert said in refused.stderr, refused.stderr


def verified(file: PipelineFile, *options: str, exit_code: int = 0) -> dict[str, Any]:
    done = file.command("verify", "FILE", "--json", *options, seconds=120)
    assert done.returncode == exit_code, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_types_transactions_structure_kills_and_refusals(postgres: Database, copy: Database, tmp_path: Path) -> None:
    postgres.execute(
        "create type mood as enum ('fine', 'sad')",
        f"create table things ({TYPES})",
        f"insert into things values {VALUES}",
        "create table bag (a int, t text)",
        "alter table bag replica identity full",
        "insert into bag values (1, 'x'), (1, 'x'), (2, null)",
        "create table left_side (id int primary key, amount bigint)",
        "create table right_side (id int primary key, amount bigint)",
        "insert into left_side select n, 100 from generate_series(1, 50) n",
        "insert into right_side select n, 100 from generate_series(1, 50) n",
        *(f"create table {table} (id int primary key, n int)" for table in REFUSING),
        *(f"insert into {table} values (1, 1)" for table in REFUSING),
        "create table parent (id int primary key)",
        "create table child (id int primary key, parent int not null references parent)",
        "insert into parent values (1)",
        "insert into child values (1, 1)",
    )
    copy.execute("create type mood as enum ('fine', 'sad')")
    file = made(tmp_path, postgres, copy, enums="enum")
    file.settings["tables"].insert(0, {"match": "public.left_side", "mode": ["clone", "history", "events"]})
    file.write()
    tables = ["things", "bag", "left_side", "right_side", "parent", "child", *REFUSING]
    names = [f"public.{table}" for table in (*tables, "left_side__history", "left_side__events")]
    torn: list[Any] = []
    seen = 0
    done = threading.Event()

    def read() -> None:
        nonlocal seen
        with copy.connect() as connection:
            while not done.is_set():
                row = connection.execute(
                    "select (select sum(amount) from left_side) + (select sum(amount) from right_side)"
                ).fetchone()
                seen += 1
                if row != (10000,):
                    torn.append(row)

    with running(file) as run:
        level(run, file, *names)
        for table in tables:
            there, here = both(postgres, copy, table)
            assert here == there, table
        assert copy.value("select pg_typeof(mood)::text from things limit 1") == "mood"
        copy.execute(
            "alter table child add constraint child_parent foreign key (parent) references parent "
            "deferrable initially deferred"
        )
        reader = threading.Thread(target=read)
        reader.start()
        with postgres.connect() as connection:
            for n in range(1, 101):
                with connection.transaction():
                    connection.execute("update left_side set amount = amount - %s where id = %s", (n, n % 50 + 1))
                    connection.execute("update right_side set amount = amount + %s where id = %s", (n, n % 50 + 1))
        postgres.execute(
            "update things set t = 'changed', price = 2.50 where id = 1",
            "delete from things where id = 'NaN'",
            "delete from bag where ctid = (select min(ctid) from bag where a = 1)",
            "insert into bag values (2, null), (3, '')",
            "alter table things add column late text",
            "alter table things rename column n to number",
            "insert into things (id, number, late) values (7, 7, 'later')",
            "begin; insert into parent values (2); insert into child values (2, 2); commit",
            "begin; delete from child where id = 1; delete from parent where id = 1; commit",
        )
        level(run, file, *names)
        done.set()
        reader.join()
        assert torn == []
        assert seen > 3
        past_is_kept(copy)
        verified_and_repaired(file, copy)
        run.kill()
    postgres.execute("truncate bag", "insert into bag values (9, 'after')", "update left_side set amount = 1")
    with running(file) as run:
        level(run, file, *names)
        for table in tables:
            there, here = both(postgres, copy, table)
            assert here == there, table
        refused_alone(run, file, postgres, copy)
        waited_for(run, file, postgres, copy, names)
        for table in tables:
            there, here = both(postgres, copy, table)
            assert here == there, table


def past_is_kept(copy: Database) -> None:
    """Each of 100 updates is a version and an event, and the open versions are the table."""
    versions = "select count(*), count(*) filter (where valid_to = '9999-01-01 00:00:00+00') from left_side__history"
    with copy.connect() as connection:
        assert connection.execute(versions.encode()).fetchone() == (150, 50)
        torn = connection.execute(
            "select count(*) from left_side__history a join left_side__history b on a.id = b.id and a.ctid <> b.ctid"
            " and a.valid_from < b.valid_to and b.valid_from < a.valid_to"
        ).fetchone()
        assert torn == (0,), "versions of a key overlap"
        events = connection.execute("select op, count(*) from left_side__events group by 1 order by 1").fetchall()
    assert dict(events)["update"] == 100
    open_versions = "select id, amount from left_side__history where valid_to = '9999-01-01 00:00:00+00'"
    assert copy.value(f"select count(*) from ({open_versions} except select id, amount from left_side) d") == 0


def refused_alone(run: Running, file: PipelineFile, postgres: Database, copy: Database) -> None:
    """What a constraint at the destination refuses is that table's error, with the row and the constraint."""
    copy.execute(
        "create table allowed (n int primary key)",
        "insert into allowed values (1)",
        "alter table strict add constraint positive check (n > 0)",
        "alter table needy alter n set not null",
        "alter table kin add constraint known foreign key (n) references allowed",
    )
    postgres.execute(
        "begin; insert into strict values (2, -5); insert into needy values (3, null); insert into kin values (4, 9); "
        "update right_side set amount = 2; commit"
    )
    level(run, file, "public.right_side", errored=[f"public.{table}" for table in REFUSING])
    assert copy.value("select count(*) from right_side where amount = 2") == 50
    store = find_store(file.state)
    assert store is not None
    status = {name.name: one for name, one in store.table_status("copy").items()}
    store.close()
    for table, (key, constraint) in REFUSING.items():
        assert copy.value(f"select count(*) from {table}") == 1
        assert constraint in status[table].reason, status[table].reason
        assert key in status[table].reason, status[table].reason
    copy.execute(
        "alter table strict drop constraint positive",
        "alter table needy alter n drop not null",
        "alter table kin drop constraint known",
    )
    assert file.command("retry", "FILE", *(f"public.{table}" for table in REFUSING)).returncode == 0
    level(run, file, *(f"public.{table}" for table in REFUSING))


def waited_for(run: Running, file: PipelineFile, postgres: Database, copy: Database, names: list[str]) -> None:
    """What the server cannot do now is done later: a table that somebody locks is left behind alone, and a full disk
    or a server that is read-only stops all of them."""
    with copy.connect() as connection:
        connection.execute("begin")
        connection.execute("lock table right_side in access exclusive mode")
        postgres.execute("update right_side set amount = 3", "update left_side set amount = 3")
        changed = "select count(*) from left_side where amount = 3"
        await_condition(lambda: copy.value(changed) == 50, "the other table to go on", 60)
    level(run, file, *names)
    for code, said in (("53100", "Make room on the server's disk"), ("25006", "Let the server take writes")):
        copy.execute(
            f"create or replace function no() returns trigger as $$ begin raise 'no' using errcode = '{code}'; end $$ "
            "language plpgsql",
            "create or replace trigger no before insert or update on right_side execute function no()",
        )
        postgres.execute(f"update right_side set amount = {int(code)}")
        run.await_text(said, 60)
        copy.execute("drop trigger no on right_side")
        level(run, file, *names)


def test_what_a_check_finds(postgres: Database, copy: Database, tmp_path: Path) -> None:
    postgres.execute("create table things (id int primary key)")
    file = made(tmp_path, postgres, Database("x", copy.url.replace(copy.name, "nowhere")))
    found = file.command("check", "FILE")
    assert found.returncode == 1
    assert 'database "nowhere" does not exist' in found.stdout + found.stderr
    copy.execute("create table things (id int)", "insert into things values (5)")
    file = made(tmp_path, postgres, copy)
    assert "public.things is there already, and was not made by penstock" in checked(file, 1)
    file = made(tmp_path, postgres, copy, create=False)
    assert "public.things has rows already, which its first copy replaces by those of the source" in checked(file, 0)
    copy.execute("drop table things")
    assert "public.things is not there, and `create: false` makes none" in checked(file, 1)


def checked(file: PipelineFile, code: int) -> str:
    found = file.command("check", "FILE")
    assert found.returncode == code, found.stdout + found.stderr
    return " ".join((found.stdout + found.stderr).split())
