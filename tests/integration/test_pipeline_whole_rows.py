"""Tables without a key under REPLICA IDENTITY FULL, from a real server into a real lake: equal as multisets, under
traffic, kills and changes of structure and key."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from databases import Database
from lake import Lake
from penstock.state.sql import find_store
from running import Running, await_condition, make_pipeline

COLUMNS = """n int, t text, big text, amount numeric, ratio float8, small float4, at timestamptz, d date,
    doc jsonb, raw json, tags int[], bytes bytea, ok bool, pair point"""
SEEDED = """
    insert into {table} select n % 3, 'note ' || n % 2, case when n % 4 = 0 then repeat(md5((n % 2)::text), 80) end,
        (array[1.5, 1.50, 'NaN', 12345678901234567890123456789, null])[1 + n % 5],
        (array['NaN', '-0', '0', null])[1 + n % 4]::float8, (array[0.1, null])[1 + n % 2],
        (array['2024-01-01', 'infinity', null])[1 + n % 3]::timestamptz,
        (array['2024-01-01', 'infinity'])[1 + n % 2]::date,
        '{{"a": [1, 2]}}', '{{"a":  1}}', (array['{{1,NULL}}', '{{}}', '{{{{1}},{{2}}}}', null])[1 + n % 4]::int[],
        '\\x00ff', n % 2 = 0, point(n % 2, 1)
    from generate_series(1, {rows}) n
"""
SOME = "ctid in (select ctid from {table} order by random() limit {rows})"
TABLES = ("public.bag", "public.parted", "public.control")


def disturb(database: Database, chance: random.Random, transactions: int) -> None:
    """Statements about single instances of rows, in transactions that commit or do not."""
    with database.connect() as connection:
        connection.autocommit = False
        for _ in range(transactions):
            for _ in range(chance.choice([1, 1, 3])):
                table, rows = chance.choice(["bag", "parted"]), chance.choice([1, 1, 5, 20])
                some = "n = 1" if table == "parted" and chance.random() < 0.05 else SOME.format(table=table, rows=rows)
                if table == "parted" and "ctid" in some:
                    leaf = chance.choice(["parted_low", "parted_high"])
                    some = SOME.format(table=leaf, rows=rows) + f" and tableoid = '{leaf}'::regclass"
                statement = chance.choices(
                    [
                        f"insert into {table} select * from {table} where {some}",
                        SEEDED.format(table=table, rows=rows),
                        f"update {table} set t = t || 'x', n = (n + 1) % 3 where {some}",
                        f"update {table} set t = t where {some}",
                        f"update {table} set big = repeat('y', 3000), ratio = 0 where {some}",
                        f"delete from {table} where {some}",
                        f"truncate {table}",
                    ],
                    [2, 3, 4, 1, 1, 3, 0.02],
                )[0]
                connection.execute(statement.encode())
            connection.execute("insert into control (at) values (now())")
            connection.rollback() if chance.random() < 0.15 else connection.commit()


@contextmanager
def traffic(database: Database, seed: int) -> Iterator[None]:
    stop = Event()

    def work() -> None:
        chance = random.Random(seed)
        while not stop.wait(0.05):
            disturb(database, chance, 1)

    busy = Thread(target=work)
    busy.start()
    try:
        yield
    finally:
        stop.set()
        busy.join()


def events(run: Running, kind: str) -> list[str]:
    store = find_store(run.pipeline.state)
    assert store is not None
    try:
        return [event.message for event in store.events() if event.kind == kind]
    finally:
        store.close()


def test_tables_without_a_key_follow_their_source_to_the_row(
    postgres: Database, tmp_path: Path, lake: Lake, full: bool
) -> None:
    follow(postgres, tmp_path, lake, kills=6 if full else 1)


@pytest.mark.full
def test_tables_without_a_key_of_debians_server(debian_postgres: Database, tmp_path: Path, lake: Lake) -> None:
    follow(debian_postgres, tmp_path, lake, kills=0)


def follow(database: Database, folder: Path, lake: Lake, kills: int) -> None:
    """`kills` at any moment, and some at those that matter."""
    database.execute(
        f"create table bag ({COLUMNS})",
        f"create table parted ({COLUMNS}) partition by list (n)",
        "create table parted_low partition of parted for values in (0, 1)",
        "create table parted_high partition of parted default",
        "alter table bag alter column big set storage external",  # large values lie beside the row, and are not sent
        *(f"alter table {table} replica identity full" for table in ("bag", "parted", "parted_low", "parted_high")),
        "create table control (id bigint generated always as identity primary key, at timestamptz)",
        SEEDED.format(table="bag", rows=1500),
        SEEDED.format(table="parted", rows=500),
    )
    rules = [{"match": "public.*", "on_column_drop": "drop"}]
    copying = {"range_bytes": "128KiB", "discover_every": "1s"}
    pipeline = make_pipeline(folder, database, tables=rules, copy=copying)
    checked = pipeline.command("check", "FILE")
    assert checked.returncode == 0, checked.stdout
    assert "is followed by its whole row" in checked.stdout
    run = None
    try:
        with traffic(database, 1):
            for failpoint, nth in (("copy.range_finished", 3), ("apply.before_commit", 2)) if kills else ():
                pipeline.arm(failpoint, nth)
                Running(pipeline).await_killed()
            run = Running(pipeline)
            run.await_streaming()
            for _ in range(kills):
                time.sleep(random.uniform(1.0, 2.0))
                run.kill()
                run = Running(pipeline)
                run.await_streaming()
            time.sleep(1.0)
        run.drain()
        lake.assert_equals(database, TABLES)

        with traffic(database, 2):
            for statement in (
                "truncate parted",
                SEEDED.format(table="parted", rows=300),
                "alter table bag add column late text",
                "update bag set late = 'late' where n = 1",
                "alter table bag rename column raw to rare",
                "alter table bag drop column late",
                "alter table bag alter column n type bigint",
            ):
                database.execute(statement)
                time.sleep(0.2)
        database.execute("update bag set ok = not ok where n = 2", "insert into bag (n, t) values (5, 'certain')")
        run.drain()
        lake.assert_equals(database, TABLES)
        assert not events(run, "errored")

        found = pipeline.command("verify", "FILE", "--json", seconds=300)
        assert found.returncode == 0, found.stdout + found.stderr
        assert json.loads(found.stdout)["equal"]

        # A row that somebody took from the lake is missed as soon as the source changes it.
        database.execute("insert into bag (n, t) values (777, 'taken')")
        run.drain()
        await_condition(lambda: taken(lake), "the row to be deleted in the lake", 60)
        database.execute("update bag set t = 'back' where n = 777")
        run.drain()
        lake.assert_equals(database, TABLES)
        assert [one for one in events(run, "resync") if "removed 1 row(s)" in one]

        # With a key, and without one again.
        database.execute(
            "delete from bag",
            "insert into bag (n, t) select n, 'keyed' from generate_series(1, 10) n",
            "alter table bag add primary key (n)",
            "update bag set n = n + 100 where n > 5",
        )
        run.drain()
        lake.assert_equals(database, TABLES)
        database.execute(
            "alter table bag drop constraint bag_pkey",
            "alter table bag alter column n drop not null",
            "insert into bag select * from bag",
            "delete from bag where ctid in (select min(ctid) from bag group by n having n < 4)",
        )
        run.drain()
        lake.assert_equals(database, TABLES)
        run.stop()
    finally:
        if run is not None:
            run.clean_up()


def taken(lake: Lake) -> bool:
    try:
        lake.sql("delete from lake.public.bag where n = 777")
    except Exception as lost:  # it may lose a race against a commit of ours
        if "ValidationException" not in str(lost) and "CommitFailed" not in str(lost):
            raise
        return False
    return True
