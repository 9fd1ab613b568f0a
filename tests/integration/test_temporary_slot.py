"""`slot_type: temporary`: a run that leaves nothing behind, neither on the server nor in a state store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from databases import Database, fresh_database
from penstock.demo.server import PostgresServer
from running import PipelineFile, Running, await_condition, make_pipeline

SECONDS = 60.0


@pytest.fixture
def copy(embedded_server: PostgresServer) -> Iterator[Database]:
    """Where the tables go: a database needs no Spark."""
    with fresh_database(embedded_server) as database:
        yield database


def temporary(folder: Path, source: Database, copy: Database) -> PipelineFile:
    elsewhere = [{"name": "copy", "type": "postgres", "url": copy.url}]
    file = make_pipeline(folder, source, source={"slot_type": "temporary"}, destinations=elsewhere)
    del file.settings["state"]
    file.write()
    return file


def slots(database: Database) -> list[str]:
    query = "select coalesce(json_agg(slot_name), '[]') from pg_replication_slots where database = current_database()"
    found: list[str] = database.value(query)
    return found


def rows(database: Database) -> list[int]:
    """The rows of the table; none where it is not there yet."""
    if database.value("select to_regclass('public.t') is null"):
        return []
    found: list[int] = database.value("select coalesce(json_agg(id order by id), '[]') from t")
    return found


def await_equal(run: Running, source: Database, copy: Database) -> None:
    await_condition(
        lambda: rows(copy) == rows(source), f"the copy to equal the source\n{run.tail()}", SECONDS, every=0.2
    )


@pytest.mark.timeout(300)
def test_nothing_is_left_however_the_run_ends(postgres: Database, tmp_path: Path, copy: Database) -> None:
    file = temporary(tmp_path, postgres, copy)
    postgres.execute("create table t (id int primary key)", "insert into t select generate_series(1, 20)")
    checked = file.command("check", "FILE")
    assert "is temporary: each run makes it" in checked.stdout
    file.run_once()
    assert rows(copy) == rows(postgres)
    await_condition(lambda: slots(postgres) == [], "the slot to be gone", SECONDS)

    checked = file.command("check", "FILE")
    assert checked.returncode == 0, "a log that is left is no gap"

    postgres.execute("delete from t where id < 5")  # while nobody reads
    run = Running(file, ("run", "FILE"))
    try:
        await_equal(run, postgres, copy)
        assert slots(postgres) == [f"penstock_{file.name}"]
        for _ in range(3):
            postgres.execute("insert into t select max(id) + n from t, generate_series(1, 5) n group by n")
            await_equal(run, postgres, copy)
        run.kill()
        await_condition(lambda: slots(postgres) == [], "the slot to be gone", SECONDS)
    finally:
        run.clean_up()

    postgres.execute("update t set id = id + 1000 where id % 2 = 0")
    run = Running(file, ("run", "FILE"))
    try:
        await_equal(run, postgres, copy)
        postgres.execute("select pg_terminate_backend(active_pid) from pg_replication_slots where temporary")
        assert "penstock: [gap] temporary slot" in run.await_end(1)
        assert "every table is copied again" in run.text()
    finally:
        run.clean_up()
    postgres.execute("insert into t values (-1)")
    file.run_once()
    assert rows(copy) == rows(postgres)
    assert not list(tmp_path.rglob("state.db*"))


def test_a_transaction_that_holds_the_slot_up_is_named_and_a_stop_is_heard(
    postgres: Database, tmp_path: Path, copy: Database
) -> None:
    file = temporary(tmp_path, postgres, copy)
    postgres.execute("create table t (id int primary key)")
    with postgres.connect() as slow:
        slow.execute("begin")
        slow.execute("select pg_current_xact_id()")
        run = Running(file, ("run", "FILE"))
        try:
            run.await_text(f"waits for open transactions: pid {slow.info.backend_pid}", SECONDS)
            run.stop()
        finally:
            run.clean_up()
        slow.execute("rollback")
    assert slots(postgres) == []


def test_a_log_that_a_permanent_slot_feeds_is_not_thrown_away(
    postgres: Database, tmp_path: Path, copy: Database
) -> None:
    """The key was changed by mistake: the run is refused, and the way back loses nothing."""
    file = temporary(tmp_path, postgres, copy)
    del file.settings["source"]["slot_type"]
    file.write()
    postgres.execute("create table t (id int primary key)", "insert into t values (1)")
    file.run_once()
    before = sorted(path.name for path in file.log.iterdir())
    file.settings["source"]["slot_type"] = "temporary"
    file.write()
    assert "is permanent, and source.slot_type is temporary" in file.command("run", "FILE", "--once").stderr
    assert sorted(path.name for path in file.log.iterdir()) == before


def test_what_does_not_go_with_it(postgres: Database, tmp_path: Path, copy: Database) -> None:
    file = temporary(tmp_path, postgres, copy)
    postgres.execute("create table t (id int primary key)")
    alone = file.command("capture", "FILE")
    assert alone.returncode == 2
    assert "capture alone is no use" in alone.stderr
    postgres.execute(f"select pg_create_logical_replication_slot('penstock_{file.name}', 'pgoutput')")
    checked = file.command("check", "FILE")
    assert checked.returncode == 1
    assert "is permanent, and source.slot_type is temporary" in checked.stdout
    assert "permanent" in file.command("run", "FILE", "--once").stderr
    for key, value, said in (
        ("state", "./state.db", "are mutually exclusive"),
        ("source", {**file.settings["source"], "create_slot": False}, "every run makes for itself"),
        ("source", {**file.settings["source"], "start_lsn": "0/16B3748"}, "begins where it is made"),
    ):
        other = make_pipeline(
            tmp_path, postgres, **({} if key == "state" else {"state": "memory"}), source={"slot_type": "temporary"}
        )
        other.settings[key] = value
        other.write()
        refused = other.command("check", "FILE")
        assert refused.returncode == 2
        assert said in refused.stderr
