"""A transaction of the source that touches two tables is visible in both or in none, for readers at any moment.

A bank moves money between accounts that are in two tables. A reader asks the catalog's database once for both tables,
opens them at what it said, and adds up: the sum is the bank's, whatever is committed meanwhile and whoever is killed.
"""

from __future__ import annotations

import json
import random
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event

import pyarrow.compute as pc
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StaticTable

from background import in_background
from databases import Database
from lake import Lake
from running import PipelineFactory, PipelineFile, await_condition, running

TABLES = ("checking", "savings")
ACCOUNTS, DEPOSIT = 50, 1_000
READINGS = 6
TAG = re.compile("penstock_[0-9a-f]{16}")


def _sum(catalog: Path) -> tuple[int, tuple[str, ...]]:
    """What the bank has, and the versions of the tables that say so."""
    with closing(sqlite3.connect(f"file:{catalog}?mode=ro", uri=True, timeout=10)) as connection:
        pointers = "select metadata_location from iceberg_tables where table_name in (?, ?) order by table_name"
        versions = tuple(location for (location,) in connection.execute(pointers, TABLES))
    sums = [pc.sum(StaticTable.from_metadata(one).scan().to_arrow()["balance"]).as_py() or 0 for one in versions]
    return sum(sums), versions


@contextmanager
def _transfers(database: Database) -> Iterator[None]:
    """Transfers between the two tables, several a transaction, until the block ends."""
    chance = random.Random(3)

    def transfer(stop: Event) -> None:
        with database.connect() as connection:
            while not stop.wait(0.02):
                source, sink = chance.sample(TABLES, 2)
                with connection.transaction():
                    for _ in range(3):
                        amount = chance.randrange(1, 500)
                        for table, change in ((source, -amount), (sink, amount)):
                            statement = f"update {table} set balance = balance + %s where id = %s"
                            connection.execute(statement.encode(), (change, chance.randrange(ACCOUNTS)))

    with in_background(transfer):
        yield


def _query(file: PipelineFile) -> str:
    """What `penstock query` says that the bank has: it opens the tables one after the other."""
    parts = " union all ".join(f"select sum(balance) as total from public.{table}" for table in TABLES)
    asked = f"select sum(total) as total from ({parts})"
    done = file.command("query", "FILE", "--consistent", asked, "--format", "json")
    assert done.returncode == 0, done.stderr
    return done.stdout


def _tagged_sums(file: PipelineFile) -> dict[str, int]:
    """What the bank had at each tag that both tables have, as pyiceberg reads it."""
    with closing(SqlCatalog("lake", uri=f"sqlite:///{file.warehouse}/catalog.db")) as catalog:
        tables = [catalog.load_table(("public", name)) for name in TABLES]
        common = set.intersection(*({name for name in table.metadata.refs if TAG.fullmatch(name)} for table in tables))
        sums: dict[str, int] = {}
        for tag in common:
            versions = [(table, table.snapshot_by_name(tag)) for table in tables]
            rows = [table.scan(snapshot_id=found.snapshot_id).to_arrow() for table, found in versions if found]
            sums[tag] = sum(pc.sum(some["balance"]).as_py() for some in rows)
    return sums


def test_no_reader_sees_half_of_a_transfer(pipeline: PipelineFactory, postgres: Database, lake: Lake) -> None:
    for table in TABLES:
        postgres.execute(f"create table {table} (id int primary key, balance bigint not null)")
        postgres.execute(f"insert into {table} select g, {DEPOSIT} from generate_series(0, {ACCOUNTS - 1}) g")
    file, total = pipeline(), len(TABLES) * ACCOUNTS * DEPOSIT
    catalog, seen = file.warehouse / "catalog.db", set()

    def right() -> bool:
        found, versions = _sum(catalog)
        assert found == total
        seen.add(versions)
        return len(seen) >= wanted

    with running(file) as run:
        run.drain()
    with _transfers(postgres):
        for failpoint in ("apply.staged", "apply.after_commit", None):
            wanted = len(seen) + READINGS
            with running(file) as run:
                run.await_streaming()
                await_condition(right, "versions of the tables to be read", 120)
                if failpoint:
                    file.arm(failpoint)
                    run.await_killed()
                    right()
    with running(file) as run:
        run.drain()
    right()
    lake.assert_equals(postgres, [f"public.{table}" for table in TABLES])


@pytest.mark.full
def test_tables_are_read_at_one_position(pipeline: PipelineFactory, postgres: Database) -> None:
    """By `penstock query --consistent`, and by any reader at a tag that both tables have, under traffic and a kill."""
    for table in TABLES:
        postgres.execute(f"create table {table} (id int primary key, balance bigint not null)")
        postgres.execute(f"insert into {table} select g, {DEPOSIT} from generate_series(0, {ACCOUNTS - 1}) g")
    file, total = pipeline(), len(TABLES) * ACCOUNTS * DEPOSIT
    file.settings["destinations"][0]["consistent_every"] = "1s"
    file.settings["destinations"][0]["maintenance"]["keep_for"] = "60s"  # a query reads what it has opened
    file.write()
    with _transfers(postgres):
        with running(file) as run:
            run.drain()
            assert json.loads(_query(file)) == [{"total": total}]
            file.arm("apply.after_commit")
            run.await_killed()
        with running(file) as run:
            run.drain()
            assert json.loads(_query(file)) == [{"total": total}]
    tagged = _tagged_sums(file)
    assert len(tagged) > 3
    assert set(tagged.values()) == {total}, tagged
