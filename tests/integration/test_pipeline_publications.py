"""What penstock publishes while it runs: the application is never hurt, and one table's trouble is that table's."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from databases import Database
from lake import Lake
from penstock.cli import run as cli
from penstock.config.load import load
from penstock.errors import SourceMisconfigured
from penstock.source.contract import Following
from penstock.source.factory import source_of
from penstock.source.postgres.connect import connect
from penstock.source.postgres.discover import discover
from penstock.source.postgres.publishing import publish
from penstock.source.postgres.slot import slot_state
from penstock.state.sql import find_store
from running import PipelineFactory, PipelineFile, Running, await_condition, make_pipeline, running

QUICK = {"discover_every": "500ms"}


def tables(file: PipelineFile) -> dict[str, dict[str, str]]:
    return {one["table"].removeprefix("public."): one for one in file.status()["tables"]}


def await_state(run: Running, file: PipelineFile, table: str, state: str, error: str = "") -> dict[str, str]:
    def reached() -> bool:
        file.database.execute("checkpoint")  # which notes the transactions that run, as the server does every 15 s
        found = tables(file).get(table, {})
        return found.get("state") == state and error in (found.get("error") or "")

    await_condition(reached, f"{table} to be {state} {error}\n{run.tail()}", 90, every=0.5)
    return tables(file)[table]


def joined(run: Running, table: str) -> int:
    """How often the table was copied."""
    return sum("table joined" in line and f"public.{table}" in line for line in run.text().splitlines())


def published(database: Database, name: str) -> set[str]:
    with database.connect() as connection:
        rows = connection.execute("select tablename from pg_publication_tables where pubname = %s", (name,)).fetchall()
    return {name for (name,) in rows}


def test_tables_without_a_key_hurt_nobody_and_are_never_ready_and_different(
    debian_postgres: Database, tmp_path: Path, lake: Lake
) -> None:
    """Begins with the one publication and the slot that an earlier penstock made, on a server that cannot read a slot
    from before a publication."""
    file = make_pipeline(tmp_path, debian_postgres, copy=QUICK)
    database, main = debian_postgres, file.slot
    database.execute(
        "create table keyed (id int primary key, a text)",
        "create table bare (id int, a text)",
        "insert into keyed select n, 'k' from generate_series(1, 9) n",
        "insert into bare select n, 'b' from generate_series(1, 9) n",
        f"create publication {main} for table keyed, bare with (publish_via_partition_root = true)",
        f"comment on publication {main} is 'managed by penstock, pipeline {file.name}'",
        f"select pg_create_logical_replication_slot('{file.slot}', 'pgoutput')",
        "insert into keyed values (10, 'before the second publication')",
    )
    with running(file) as run:
        await_state(run, file, "bare", "Ready")
        assert published(database, main) == {"keyed"}
        assert published(database, f"{main}_inserts") == {"bare"}
        database.execute("insert into bare values (10, 'sent')", "update keyed set a = 'changed' where id < 4")
        run.drain()
        lake.assert_equals(database, ["public.keyed", "public.bare"])

        database.execute("update bare set a = 'the application may' where id < 3", "delete from bare where id = 4")
        errored = await_state(run, file, "bare", "Errored", "no replica identity")
        assert 'ALTER TABLE "public"."bare" REPLICA IDENTITY FULL' in errored["solution"]
        database.execute("alter table bare add primary key (id)", "insert into keyed values (11, 'flows')")
        await_state(run, file, "bare", "Ready")
        assert published(database, main) == {"bare", "keyed"}
        run.drain()
        lake.assert_equals(database, ["public.keyed", "public.bare"])

        database.execute("alter table keyed drop constraint keyed_pkey")
        await_condition(lambda: "keyed" in published(database, f"{main}_inserts"), "keyed to be moved", 30)
        await_condition(lambda: joined(run, "keyed") == 2, f"keyed to be copied again\n{run.tail()}", 60)
        assert tables(file)["keyed"]["state"] == "Ready", "its earlier updates were sent"
        database.execute("delete from keyed where id < 3")
        await_state(run, file, "keyed", "Errored", "no replica identity")
        database.execute("alter table keyed add primary key (id)")
        await_state(run, file, "keyed", "Ready")
        database.execute(f"alter publication {main} drop table bare", "update bare set a = 'unseen' where id = 5")
        run.await_text("table was missing from its publication")
        await_condition(lambda: "bare" in published(database, main), "bare to be put back", 30)

    file.settings["tables"] = [{"match": "public.keyed"}]
    file.write()
    kept = file.command("run", "FILE", "--once")
    assert "tables stay in the publication, though no rule matches them" in kept.stderr
    assert published(database, main) == {"bare", "keyed"}
    left = file.command("run", "FILE", "--once", "--yes")
    assert left.stderr.index("taking tables out of the publication") < left.stderr.index("tables taken out of the")
    assert published(database, main) == {"keyed"}
    found = find_store(file.state)
    assert found is not None
    told = [event.message for event in found.events(1000) if event.kind == "publication"]
    found.close()
    assert f"tables moved between the publications: public.keyed into {main}_inserts and out of {main}" in told
    assert f"tables taken out of the publication: public.bare out of {main}" in told


def test_the_least_rights_are_enough(postgres: Database, tmp_path: Path, lake: Lake) -> None:
    """LOGIN, REPLICATION, USAGE and SELECT, with the publications that a DBA made by the statements of `check`."""
    role = f"app_{postgres.name}"
    postgres.execute(
        f"create role {role} login replication",
        "create table orders (id int primary key)",
        "create table days (id int, k int, primary key (k, id)) partition by range (k)",
        "create table days_0 partition of days for values from (0) to (10)",
        "create table loose (id int)",
        "insert into orders values (1); insert into days values (1, 1), (2, 2); insert into loose values (1)",
        f"grant select on all tables in schema public to {role}",
        f"alter default privileges grant select on tables to {role}",
        "create schema closed",
        "create table closed.hidden (id int primary key)",
        "insert into closed.hidden values (1)",
    )
    url = postgres.url.replace("postgres@", f"{role}@")
    source = {"type": "postgres", "url": url}
    rules = [{"match": "public.*"}, {"match": "closed.*", "target": "closed.{table}"}]
    file = make_pipeline(tmp_path, postgres, copy=QUICK, source=source, tables=rules)
    checked = file.command("check", "FILE")
    assert checked.returncode == 1
    fixes = [line.strip().removeprefix("fix: ") for line in checked.stdout.splitlines() if "fix: " in line]
    create, grant = (next(fix for fix in fixes if fix.startswith(word)) for word in ("CREATE", "GRANT"))
    assert grant.startswith('GRANT USAGE ON SCHEMA "closed"')
    postgres.execute(*create.split("; "))
    with running(file) as run:
        await_state(run, file, "orders", "Ready")
        hidden = await_state(run, file, "closed.hidden", "Errored")
        assert "closed" in hidden["error"]
        postgres.execute("insert into orders values (2)", "create table later (id int primary key)")
        postgres.execute("create table later_loose (id int)", "insert into later values (1)")
        later = await_state(run, file, "later", "Errored", "not published")
        loose = await_state(run, file, "later_loose", "Errored", "not published")
        postgres.execute("truncate days_0")  # which only a look at the catalogue tells
        await_condition(lambda: lake.count("public.days") == 0, f"days to be copied again\n{run.tail()}", 60, every=0.5)
        run.drain()
        lake.assert_equals(postgres, ["public.orders", "public.days", "public.loose"])
        for one in (later, loose):
            postgres.execute(one["solution"].partition(" run: ")[2].partition(";")[0])
        await_state(run, file, "later", "Ready")
        await_state(run, file, "later_loose", "Ready")
        postgres.execute("insert into later values (2)", "insert into later_loose values (1), (1)")
        run.drain()
        lake.assert_equals(postgres, ["public.later", "public.later_loose"])
    assert file.command("run", "FILE", "--once").returncode == 1, "for the hidden table"
    postgres.execute(*grant.split("; "))
    assert file.command("retry", "FILE", "closed.hidden").returncode == 0
    file.run_once()


def test_a_first_start_that_fails_leaves_no_slot_behind(pipeline: PipelineFactory, postgres: Database) -> None:
    postgres.execute("create table t (id int primary key)")
    file = pipeline()
    file.environment = {"PATH": str(file.folder), "JAVA_HOME": str(file.folder)}
    failed = file.command("run", "FILE")
    assert failed.returncode == 3
    assert "slot dropped because the start failed" in failed.stderr
    with connect(postgres.url) as connection:
        assert slot_state(connection, file.slot) is None
    assert list(file.log.glob("[!.]*")) == [], "nothing of a log whose slot is gone"
    with connect(postgres.url) as connection:
        connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (file.slot,))
        assert file.command("run", "FILE").returncode == 3
        assert slot_state(connection, file.slot) is not None, "it was there before"


def test_run_asks_before_tables_leave(
    pipeline: PipelineFactory, postgres: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    postgres.execute("create table a (id int primary key)", "create table b (id int primary key)")
    file = pipeline(tables=[{"match": "public.a"}])
    with connect(postgres.url) as connection:
        publish(connection, file.slot, discover(connection, lambda _: True, ""), file.name)
    for answer in (True, False):
        monkeypatch.setattr("typer.confirm", lambda *_, answer=answer, **__: answer)
        assert cli._confirmed_leaving(load(file.path)) is answer
        assert f"public.b out of {file.slot}" in capsys.readouterr().err
    checked = file.command("check", "FILE")
    assert f"no rule matches public.b, still in publication {file.slot}: they would leave it" in checked.stdout
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"alter publication {file.slot} drop table b".encode())
    assert cli._confirmed_leaving(load(file.path)) is False


def test_tables_follow_whatever_the_publication_has(postgres: Database, tmp_path: Path) -> None:
    """Nobody alters it: tables come and go as its owner has them; without it nothing begins."""
    file = make_pipeline(tmp_path, postgres, tables="publication", source={"type": "postgres", "publication": "theirs"})
    postgres.execute(*(f"create table {name} (id int primary key)" for name in ("orders", "items", "people")))
    pipeline = load(file.path)
    with source_of(pipeline.source).connect() as session:

        def seen() -> list[str]:
            return [schema.table.name for schema in session.discover(pipeline)]

        def follow() -> Following:
            schemas, reading = session.discover(pipeline), session.readable()
            return session.follow(pipeline, schemas, reading=reading, may_leave=True, before=lambda _: None)

        assert seen() == []
        with pytest.raises(SourceMisconfigured, match="publication theirs is missing"):
            follow()
        assert "FOR ALL TABLES" in next(one for one in session.check(pipeline) if one.level == "error").fix
        postgres.execute("create publication theirs for table orders")
        assert seen() == ["orders"]
        postgres.execute("alter publication theirs add table items")
        assert seen() == ["items", "orders"]
        postgres.execute("alter publication theirs drop table orders")
        assert (seen(), follow().done, follow().troubles) == (["items"], (), {})
        assert not [one for one in session.check(pipeline) if one.level == "error"]
        postgres.execute("drop publication theirs", "create publication theirs for all tables")
        assert (seen(), follow().done, follow().troubles) == (["items", "orders", "people"], (), {})
        assert postgres.value("select count(*) from pg_publication") == 1
