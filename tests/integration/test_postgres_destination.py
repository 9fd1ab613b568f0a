"""A Postgres destination from outside: copied, streamed, killed, altered, and refused one table at a time."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
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


def level(run: Running, file: PipelineFile, *tables: str, errored: str = "") -> None:
    wanted = file.database.flush_position()
    store = find_store(file.state)
    assert store is not None

    def there() -> bool:
        assert run.process.poll() is None, run.tail()
        found = {str(name): one.state for name, one in store.table_status("copy").items()}
        settled = all(found.get(name) is State.READY for name in tables)
        settled &= not errored or found.get(errored) is State.ERRORED
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
        "create table strict (id int primary key, n int)",
        "insert into strict values (1, 1)",
    )
    file = made(tmp_path, postgres, copy)
    names = ["public.things", "public.bag", "public.left_side", "public.right_side", "public.strict"]
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
        for table in ("things", "bag", "left_side", "right_side", "strict"):
            there, here = both(postgres, copy, table)
            assert here == there, table
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
        )
        level(run, file, *names)
        done.set()
        reader.join()
        assert torn == []
        assert seen > 3
        verified_and_repaired(file, copy)
        run.kill()
    postgres.execute("truncate bag", "insert into bag values (9, 'after')", "update left_side set amount = 1")
    copy.execute("alter table strict add constraint positive check (n > 0)")
    with running(file) as run:
        level(run, file, *names)
        for table in ("things", "bag", "left_side", "right_side"):
            there, here = both(postgres, copy, table)
            assert here == there, table
        postgres.execute("begin; insert into strict values (2, -5); update right_side set amount = 2; commit")
        level(run, file, "public.right_side", errored="public.strict")
        assert copy.value("select count(*) from right_side where amount = 2") == 50
        assert copy.value("select count(*) from strict") == 1
        store = find_store(file.state)
        assert store is not None
        status = next(one for name, one in store.table_status("copy").items() if name.name == "strict")
        store.close()
        assert "positive" in status.reason
        assert "id = 2" in status.reason
        copy.execute("alter table strict drop constraint positive")
        assert file.command("retry", "FILE", "public.strict").returncode == 0
        await_condition(lambda: copy.value("select count(*) from strict") == 2, "the retried table to be level", 60)
        there, here = both(postgres, copy, "strict")
        assert here == there


def test_what_a_check_finds(postgres: Database, copy: Database, tmp_path: Path) -> None:
    postgres.execute("create table things (id int primary key)")
    file = made(tmp_path, postgres, Database("x", copy.url.replace(copy.name, "nowhere")))
    found = file.command("check", "FILE")
    assert found.returncode == 1
    assert 'database "nowhere" does not exist' in found.stdout + found.stderr
