"""Nothing that happens to us may fill the database's disk: the slot moves on, destination away or ourselves idle."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from databases import Database
from lake import Lake
from penstock.demo.server import PostgresServer
from running import PipelineFactory, PipelineFile, await_condition, running

EVENTS = "create table events (id bigint primary key, note text)"
MIB = 1 << 20


@pytest.fixture
def events(postgres: Database) -> Database:
    postgres.execute(EVENTS, "create schema elsewhere", "create table elsewhere.busy (id bigint, note text)")
    return postgres


def _write(database: Database, table: str, number: int, rows: int = 4_000) -> None:
    database.execute(
        f"insert into {table} select {number * rows} + g, repeat(md5(g::text), 8) from generate_series(0, {rows - 1}) g"
    )


def _retained(pipeline: PipelineFile) -> int:
    """WAL held back by the slot, after the checkpoint that lets Postgres notice what it may drop."""
    pipeline.database.execute("checkpoint")
    return pipeline.slot_state()["retained"]


def test_unreachable_destination(pipeline: PipelineFactory, events: Database, lake: Lake) -> None:
    file = pipeline()
    away = file.folder / "warehouse-away"
    with running(file) as run:
        _write(events, "events", 0)
        run.drain()
        file.warehouse.rename(away)
        file.warehouse.write_text("this is no folder")
        began, confirmed = events.flush_position(), [file.slot_state()["confirmed"]]
        for number in range(1, 11):
            _write(events, "events", number)
            confirmed.append(file.await_confirmed())
        written = events.flush_position() - began
        assert written > 10 * MIB
        assert confirmed == sorted(set(confirmed)), "the slot did not keep moving"
        await_condition(lambda: _retained(file) < written / 4, "the retained WAL to be flat", 20)
        run.await_text("destination unavailable, retrying")
        _await_tries(file, 3)
        health = file.component("destination lake")
        assert health["state"] == "retrying"
        assert health["solution"]
        file.warehouse.unlink()
        away.rename(file.warehouse)
        run.drain()
        lake.assert_equals(events, ["public.events"])
        assert file.component("destination lake")["state"] == "ok"


def _await_tries(file: PipelineFile, tries: int) -> None:
    """Wait until the destination was tried so often in a row."""
    await_condition(lambda: file.component("destination lake")["attempts"] >= tries, f"{tries} tries", 60, every=0.5)


def test_destination_that_takes_no_files(pipeline: PipelineFactory, events: Database, lake: Lake) -> None:
    """Its tables can be read but not written, as on a full disk: tried again ever slower, and visibly so."""
    file = pipeline()
    with running(file) as run:
        _write(events, "events", 0, 100)
        run.drain()
        folder = file.warehouse / "public" / "events" / "data"
        away = folder.with_name("data-away")
        folder.rename(away)
        folder.write_text("this is no folder")
        _write(events, "events", 1, 100)
        run.await_text("destination unavailable, retrying")
        _await_tries(file, 3)
        assert file.component("destination lake")["state"] == "retrying"
        folder.unlink()
        away.rename(folder)
        run.drain()
        lake.assert_equals(events, ["public.events"])


def test_unrelated_busy_table(pipeline: PipelineFactory, events: Database, lake: Lake, full: bool) -> None:
    file = pipeline()
    with running(file) as run:
        _write(events, "events", 0, 100)
        run.drain()
        began, samples = events.flush_position(), list[int]()
        deadline = time.monotonic() + (60 if full else 10)
        most = deadline + 60  # what is retained stays as it is, however much is written
        number = written = 0

        def is_shown() -> bool:
            return time.monotonic() > deadline and written > 40 * MIB and max(samples) < written / 4

        while not is_shown() and time.monotonic() < most:
            for _ in range(5):
                number += 1
                _write(events, "elsewhere.busy", number)
            samples.append(_retained(file))
            written = events.flush_position() - began
        assert is_shown(), f"retained {max(samples) / MIB:.1f} of {written / MIB:.1f} MiB"
        assert max(samples) < 64 * MIB, f"retained {max(samples) / MIB:.1f} MiB"

        def caught_up() -> bool:
            events.execute("checkpoint")  # restart_lsn moves when running transactions are logged, as they are here
            return _retained(file) < MIB

        await_condition(caught_up, "the idle slot to catch up", 60, every=1.0)
        _write(events, "events", 1, 100)
        run.drain()
        lake.assert_equals(events, ["public.events"])


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


def test_source_restarts(own_server: PostgresServer, pipeline: PipelineFactory, lake: Lake) -> None:
    """A source that goes away and comes back is waited for, visibly, and nothing is lost."""
    database = Database("restarted", own_server.url())
    database.execute(EVENTS)
    file = pipeline(name="restarted", source={"type": "postgres", "url": database.url})
    file.database = database
    with running(file) as run:
        _write(database, "events", 0, 500)
        run.drain()
        own_server.stop("immediate")
        await_condition(lambda: file.component("capture")["state"] == "retrying", "capture's retry", 30)
        own_server.start()
        _write(database, "events", 1, 500)
        run.drain()
        lake.assert_equals(database, ["public.events"])
