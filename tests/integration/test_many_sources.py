"""Several databases into one lake, from outside: each goes its own way, and in the end all are equal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from databases import Database, fresh_database
from lake import Lake
from penstock.demo.server import PostgresServer
from penstock.model.table_state import State
from penstock.state.sql import find_store
from running import PipelineFile, Running, await_condition, make_pipeline, running

NAMES = ("eu", "us", "asia")
SETTLED = {State.READY, State.ERRORED}


@pytest.fixture
def databases(embedded_server: PostgresServer) -> Iterator[dict[str, Database]]:
    with ExitStack() as cleanup:
        yield {name: cleanup.enter_context(fresh_database(embedded_server)) for name in NAMES}


def many(folder: Path, databases: dict[str, Database], **changes: Any) -> PipelineFile:
    """A pipeline file with a list of sources in the place of one."""
    first = next(iter(databases.values()))
    file = make_pipeline(folder, first, **changes)
    del file.settings["source"]
    file.settings["sources"] = [
        {"name": name, "type": "postgres", "url": database.url} for name, database in databases.items()
    ]
    file.write()
    return file


def drain(run: Running, file: PipelineFile, databases: dict[str, Database]) -> None:
    """Waits until what each source has now is in the lake."""
    wanted = {f"{name}:lake": database.flush_position() for name, database in databases.items()}
    store = find_store(file.state)
    assert store is not None

    def drained() -> bool:
        assert run.process.poll() is None, run.tail()
        settled = {status.state for status in store.table_status("lake").values()} <= SETTLED
        return settled and all((store.processed(key) or 0) >= position for key, position in wanted.items())

    try:
        await_condition(drained, "all sources to be drained", 300)
    except AssertionError as late:
        raise AssertionError(f"{late}\n{run.tail()}") from None
    finally:
        store.close()


def change(database: Database, name: str, rounds: int, rows: int) -> None:
    """Inserts, updates, deletes and key changes of `rows` rows a round, in transactions of their own."""
    with database.connect() as connection:
        for number in range(rounds):
            low, high = number * rows + 1, (number + 1) * rows
            for statement in (
                f"insert into account select n, '{name}', n from generate_series({low}, {high}) n",
                f"update account set n = n + 1 where id between {low} and {high} and id % 2 = 0",
                f"delete from account where id between {low} and {high} and id % 5 = 0",
                f"update account set id = -id where id between {low} and {high} and id % 7 = 0",
                f"insert into audit select n, '{name} ' || n from generate_series({low}, {high}) n",
                f"delete from audit where id between {low} and {high} and id % 3 = 0",
                f"update price set amount = amount + 1 where id <= {rows}",
            ):
                connection.execute(statement.encode())


def expected(database: Database, query: str) -> list[tuple[Any, ...]]:
    with database.connect() as connection:
        return connection.execute(query.encode()).fetchall()


def test_three_databases_into_one_clone_one_append_and_one_history_table(
    databases: dict[str, Database], tmp_path: Path, lake: Lake, full: bool
) -> None:
    """One source's capture is killed and its connections cut while changes come; another is copied anew; one truncates
    its table: all are equal in the end, each with its own rows."""
    rounds, rows = (50, 500) if full else (4, 30)  # four changes a row and more
    for name, database in databases.items():
        database.execute(
            "create table account (id bigint primary key, owner text, n int, secret text default 'x')",
            "create table audit (id bigint primary key, what text)",
            "create table price (id int primary key, amount int)",
            f"insert into price select n, 0 from generate_series(1, {rows}) n",
            f"insert into account select -n * 1000000, '{name} before', n from generate_series(1, 5) n",
        )
    databases["us"].execute("alter table account add column only_us text default null")
    rules = [
        {
            "match": "public.account",
            "target": "crm.account",
            "columns": {"secret": "drop"},
            "set": {"region": "${source.name}"},
        },
        {"match": "public.audit", "target": "crm.audit", "mode": "append"},
        {"match": "public.price", "target": "crm.price", "mode": "history"},
    ]
    file = many(tmp_path, databases, tables=rules)
    with running(file) as run:
        drain(run, file, databases)  # what an append table is to keep must have been seen
        busy = [Thread(target=change, args=(database, name, rounds, rows)) for name, database in databases.items()]
        for thread in busy:
            thread.start()
        _kill_source(run, databases["eu"], "eu")
        asked = file.command("resync", "FILE", "us:public.account")
        assert asked.returncode == 0, asked.stderr
        for thread in busy:
            thread.join()
        databases["asia"].execute("truncate account", "insert into account values (1, 'asia after', 1)")
        databases["us"].execute("update account set only_us = 'x' where id % 2 = 0")
        drain(run, file, databases)
        run.await_text("asked for")
        assert "us:public.account will be copied anew" in asked.stdout
        report = file.status()
    assert [source["name"] for source in report["sources"]] == list(NAMES)
    assert {table["state"] for table in report["tables"]} == {"Ready"}
    assert {table["table"] for table in report["tables"]} == {
        f"{name}:public.{table}" for name in NAMES for table in ("account", "audit", "price")
    }
    for name, database in databases.items():
        more = ", only_us" if name == "us" else ", null"
        accounts = f"select id, owner, n, region, only_us from lake.crm.account where sid = '{name}'"
        assert _lake_rows(lake, accounts) == sorted(
            expected(database, f"select id, owner, n, '{name}'{more} from account")
        )
        audited = [(n, f"{name} {n}") for n in range(1, rounds * rows + 1)]
        assert _lake_rows(lake, f"select id, what from lake.crm.audit where sid = '{name}'") == audited
        current = f"select id, amount from lake.crm.price where sid = '{name}' and valid_to = timestamp '9999-01-01'"
        assert _lake_rows(lake, current) == sorted(expected(database, "select id, amount from price"))
        versions = f"select count(*), count(distinct id, valid_from) from lake.crm.price where sid = '{name}'"
        ((count, distinct),) = lake.sql(versions)
        assert count == distinct == rows * (rounds + 1)
    assert "secret" not in lake.read("crm.account")[0].column_names
    assert {row[0] for row in lake.sql("select partition.sid from lake.crm.account.files")} == set(NAMES)


def test_once_drains_the_others_when_one_cannot_be_reached_and_says_so(
    databases: dict[str, Database], tmp_path: Path, lake: Lake
) -> None:
    """And tables that have the source in their names carry no sid."""
    for name, database in databases.items():
        database.execute("create table t (id int primary key, what text)", f"insert into t values (1, '{name}')")
    file = many(tmp_path, databases, tables=[{"match": "public.*", "target": "{source}.{table}"}])
    file.settings["sources"][2]["url"] = databases["asia"].url + "_gone"
    file.write()
    done = file.command("run", "FILE", "--once")
    assert done.returncode == 3, done.stderr
    assert "penstock: source asia:" in done.stderr
    for name in ("eu", "us"):
        assert _lake_rows(lake, f"select * from lake.{name}.t") == [(1, name)]
    components = {component["name"]: component["state"] for component in file.status()["components"]}
    assert components["asia:source"] == "failed"
    assert components["eu:source"] == components["us:source"] == "stopped"


def _kill_source(run: Running, database: Database, name: str) -> None:
    """The capture process dies, and every connection of the pipeline to the database is cut."""
    await_condition(lambda: len(run.captures()) == len(NAMES), "a capture process for each source", 60)
    (capture,) = [process for process in run.captures() if process.cmdline()[-1] == name]
    capture.kill()
    database.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
        "and application_name like 'penstock%'"
    )


def _lake_rows(lake: Lake, statement: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in lake.sql(statement))
