"""Several databases into one lake, from outside: each goes its own way, and in the end all are equal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from databases import Database, fresh_database
from lake import Lake
from penstock.config.load import load
from penstock.control.query.events import lines
from penstock.control.query.log_events import asked, events_table
from penstock.demo.server import PostgresServer
from penstock.model.position import parse_order
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
    wanted = {name: database.flush_position() for name, database in databases.items()}
    store = find_store(file.state)
    assert store is not None

    def drained() -> bool:
        assert run.process.poll() is None, run.tail()
        views = {name: store.of_source(name) for name in wanted}
        reached = all((views[name].processed("lake") or 0) >= position for name, position in wanted.items())
        states = {status.state for own in views.values() for status in own.table_status("lake").values()}
        return reached and states <= SETTLED

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
                f"insert into plain select n, '{name}', n / 3.0 from generate_series({low}, {high}) n",
                f"delete from plain where id between {low} and {high} and id % 4 = 0",
            ):
                connection.execute(statement.encode())


def expected(database: Database, query: str) -> list[tuple[Any, ...]]:
    with database.connect() as connection:
        return connection.execute(query.encode()).fetchall()


def test_three_databases_into_one_clone_one_append_one_history_and_one_events_table(
    databases: dict[str, Database], tmp_path: Path, lake: Lake, full: bool
) -> None:
    """One source's capture is killed and its connections cut while changes come; another is copied anew; one truncates
    its table: all are equal in the end, each with its own rows, and each one's events tell the same. `verify` says
    so, and finds and repairs what somebody forged in one source's rows."""
    rounds, rows = (50, 500) if full else (4, 30)  # four changes a row and more
    for name, database in databases.items():
        number, ratio = ("bigint", "float8") if name == "asia" else ("int", "real")
        database.execute(
            "create table account (id bigint primary key, owner text, n int, secret text default 'x')",
            "create table audit (id bigint primary key, what text)",
            "create table price (id int primary key, amount int)",
            f"insert into price select n, 0 from generate_series(1, {rows}) n",
            f"insert into account select -n * 1000000, '{name} before', n from generate_series(1, 5) n",
            f"create table plain (id {number} primary key, what text, ratio {ratio})",
        )
    databases["us"].execute(
        "alter table account add column only_us text default null",
        "alter table price add column note text",
        "create table clash (id int primary key, what text)",
    )
    databases["asia"].execute("create table clash (id int primary key, what int)")
    rules = [
        {
            "match": "public.account",
            "mode": ["clone", "events"],
            "target": "crm.account",
            "where": "n NOT BETWEEN 9 AND 20",  # which rows leave and enter
            "columns": {"secret": "drop", "owner": {"rename": "holder"}},
            "set": {"region": "${source.name}"},
        },
        {"match": "public.audit", "target": "crm.audit", "mode": "append"},
        {"match": "public.price", "target": "crm.price", "mode": "history", "history": "kuvasz"},
        {"match": "public.plain", "target": "crm.plain", "anomalies": "count"},
        {"match": "public.clash", "target": "crm.clash", "set": {"region": "${source.name}"}},
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
        run.await_text("request taken up")
        assert "us:public.account will be copied again" in asked.stdout
        _verify_and_repair(file, lake)
        lake.sql("delete from lake.crm.plain where sid = 'us' and id = 2")
        databases["us"].execute("update plain set ratio = 0.5 where id = 2")  # which brings the row back
        drain(run, file, databases)
        report = file.status()
    assert [source["name"] for source in report["sources"]] == list(NAMES)
    states = {table["table"]: table["state"] for table in report["tables"]}
    clash = [states.pop("us:public.clash"), states.pop("asia:public.clash")]
    assert states == {
        f"{name}:public.{table}": "Ready"
        for name in NAMES
        for table in ("account", "account__events", "audit", "plain", "price")
    }
    assert sorted(clash) == ["Errored", "Ready"], "what cannot be united is an error of one of the two"
    (errored,) = [table for table in report["tables"] if table["state"] == "Errored"]
    assert "column what is" in errored["error"]
    assert "give this source's a `target` of its own" in errored["solution"]
    anomalies = {table["table"]: table["anomalies"] for table in report["tables"] if table["anomalies"]}
    assert list(anomalies) == ["us:public.plain"]
    (found,) = anomalies["us:public.plain"]
    assert (found["kind"], found["changes"], len(found["places"])) == ("update", 1, 1)
    for name, database in databases.items():
        more = ", only_us" if name == "us" else ", null"
        accounts = f"select id, holder, n, region, only_us from lake.crm.account where sid = '{name}'"
        kept = f"select id, owner, n, '{name}'{more} from account where n not between 9 and 20"
        assert _lake_rows(lake, accounts) == sorted(expected(database, kept))
        assert _told_by_events(lake, file, name) == sorted(expected(database, kept))
        assert _lake_rows(lake, f"select id, what, ratio from lake.crm.plain where sid = '{name}'") == sorted(
            expected(database, "select id, what, ratio::float8 from plain")
        )
        audited = [(n, f"{name} {n}") for n in range(1, rounds * rows + 1)]
        assert _lake_rows(lake, f"select id, what from lake.crm.audit where sid = '{name}'") == audited
        current = f"select id, amount from lake.crm.price__current where sid = '{name}'"
        assert _lake_rows(lake, current) == sorted(expected(database, "select id, amount from price"))
        versions = f"select count(*), count(distinct id, kvsz_start) from lake.crm.price where sid = '{name}'"
        ((count, distinct),) = lake.sql(versions)
        assert count == distinct == rows * (rounds + 1)
    assert lake.spark.table("lake.crm.price__current").columns == ["sid", "id", "amount", "note"]
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
    assert "] source asia:" in done.stderr
    for name in ("eu", "us"):
        assert _lake_rows(lake, f"select * from lake.{name}.t") == [(1, name)]
    components = {component["name"]: component["state"] for component in file.status()["components"]}
    assert components["asia:source"] == "failed"
    assert components["eu:source"] == components["us:source"] == "stopped"


@pytest.mark.full
def test_without_a_run_the_others_are_verified_and_repaired_when_one_cannot_be_reached(
    databases: dict[str, Database], tmp_path: Path, lake: Lake
) -> None:
    for name, database in databases.items():
        database.execute("create table t (id int primary key, what text)", f"insert into t values (1, '{name}')")
    file = many(tmp_path, databases, tables=[{"match": "public.*", "target": "crm.{table}"}])
    file.run_once()
    for database in databases.values():
        database.execute("insert into t values (2, 'since then')")
    code, said = _verify(file)
    assert (code, said["equal"]) == (0, True), said
    assert [table["lake_rows"] for table in said["tables"]] == [2, 2, 2]

    lake.sql("update lake.crm.t set what = 'forged' where id = 1")
    file.settings["sources"][2]["url"] = databases["asia"].url + "_gone"
    file.write()
    code, said = _verify(file, "--repair")
    assert code == 1
    asia, eu, us = said["tables"]
    assert (asia["table"], asia["equal"], asia["lake_rows"]) == ("asia:public.t", False, None)
    assert "_gone" in asia["error"]
    assert all(one["equal"] and one["repaired"] for one in (eu, us)), said
    assert _lake_rows(lake, "select sid, what from lake.crm.t where id = 1") == [
        ("asia", "forged"),
        ("eu", "eu"),
        ("us", "us"),
    ]


def _told_by_events(lake: Lake, file: PipelineFile, name: str) -> list[tuple[Any, ...]]:
    """What a source's rows are, according to its events alone; each event is there once."""
    feed = events_table(*asked(load(file.path), [f"{name}:public.account"]))
    assert feed is not None
    events = [json.loads(line) for line in lines(lake.spark, lake.readable, feed)]
    assert {event["sid"] for event in events} == {name}
    places = [parse_order(event["place"]) for event in events]
    assert sorted(set(places)) == places
    rows: dict[int, tuple[Any, ...]] = {}
    for event in events:
        if event["op"] == "truncate":
            rows.clear()
        if event["before"] is not None:
            rows.pop(event["before"]["id"], None)
        if event["after"] is not None:
            after = event["after"]
            row = tuple(after[column] for column in ("id", "holder", "n", "region", "only_us"))
            rows[after["id"]] = row
    return sorted(rows.values())


def _kill_source(run: Running, database: Database, name: str) -> None:
    """The capture process dies, and every connection of the pipeline to the database is cut."""
    await_condition(lambda: len(run.captures()) == len(NAMES), "a capture process for each source", 60)
    (capture,) = [process for process in run.captures() if process.cmdline()[-1] == name]
    capture.kill()
    database.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
        "and application_name like 'penstock%'"
    )


def _verify_and_repair(file: PipelineFile, lake: Lake) -> None:
    code, said = _verify(file)
    assert (code, said["equal"]) == (0, True), said
    assert [table["table"] for table in said["tables"]] == [f"{name}:public.plain" for name in sorted(NAMES)]
    assert all(table["lake_rows"] == table["source_rows"] > 0 for table in said["tables"])

    lake.sql("update lake.crm.plain set what = 'forged' where sid = 'us' and id = 2")
    lake.sql("delete from lake.crm.plain where sid = 'us' and id = 3")
    lake.sql("insert into lake.crm.plain (sid, id, what) values ('us', -1, 'nobody')")
    code, said = _verify(file, "eu:", "us:public.plain", "--repair")
    assert (code, said["equal"]) == (0, True), said
    eu, us = said["tables"]
    assert (eu["table"], eu["repaired"], eu["differing"]["rows"]) == ("eu:public.plain", False, [])
    assert (us["table"], us["repaired"]) == ("us:public.plain", True)
    assert {row["key"][0]: row["kind"] for row in us["differing"]["rows"]} == {
        "-1": "extra",
        "2": "differs",
        "3": "missing",
    }
    assert [row["cells"] for row in us["differing"]["rows"] if row["key"] == ["2"]] == [
        [{"column": "what", "source": "us", "lake": "forged"}]
    ]


def _verify(file: PipelineFile, *options: str) -> tuple[int, dict[str, Any]]:
    done = file.command("verify", "FILE", "--json", *options, seconds=300)
    assert done.stdout, done.stderr[-4000:]
    return done.returncode, json.loads(done.stdout)


def _lake_rows(lake: Lake, statement: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in lake.sql(statement))
