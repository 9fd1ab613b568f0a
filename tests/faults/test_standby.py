"""Two runs of one pipeline, as on two machines: the standby takes over from a leader that is killed or stands still.

The machines are processes here, with the state in Postgres and a change log that both reach: in a folder or, with
--full, in S3. A bank moves money between two tables while rows are added to one without a key, where nothing that is
applied twice could hide.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event

import psutil
import pytest

from background import in_background
from databases import Database, fresh_database
from lake import Lake
from object_store import BUCKET, object_store
from penstock.demo.server import PostgresServer
from penstock.state.lease import LEASE_SECONDS
from penstock.state.sql import find_store
from running import PipelineFactory, PipelineFile, Running, await_condition

TABLES = ("checking", "savings", "ledger")
ACCOUNTS = 50
TAKEOVER_SECONDS = 10.0
BOTH_SECONDS = TAKEOVER_SECONDS + LEASE_SECONDS


@pytest.fixture
def state(embedded_server: PostgresServer) -> Iterator[Database]:
    with fresh_database(embedded_server) as database:
        yield database


@contextmanager
def transfers(database: Database) -> Iterator[None]:
    chance = random.Random(5)

    def transfer(stop: Event) -> None:
        with database.connect() as connection:
            while not stop.wait(0.02):
                with connection.transaction():
                    amount = chance.randrange(1, 500)
                    for table, change in (("checking", -amount), ("savings", amount)):
                        statement = f"update {table} set balance = balance + %s where id = %s"
                        connection.execute(statement.encode(), (change, chance.randrange(ACCOUNTS)))
                    connection.execute("insert into ledger values (%s)", (amount,))

    with in_background(transfer):
        yield


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.full)])
def shared_log(request: pytest.FixtureRequest) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """What the file says of the change log, and the environment by which its store is found."""
    if request.param == "folder":
        yield {}, {}
        return
    with object_store() as environment:
        yield {"uri": f"s3://{BUCKET}/log"}, environment


def bank(
    pipeline: PipelineFactory, postgres: Database, state: Database, shared_log: tuple[dict[str, str], dict[str, str]]
) -> PipelineFile:
    for table in TABLES[:2]:
        postgres.execute(f"create table {table} (id int primary key, balance bigint not null)")
        postgres.execute(f"insert into {table} select g, 1000 from generate_series(0, {ACCOUNTS - 1}) g")
    postgres.execute("create table ledger (amount int not null)")
    log, environment = shared_log
    file = pipeline(state=state.url, log=log)
    file.environment.update(environment)
    return file


def standing_by(file: PipelineFile) -> Running:
    standby = Running(file, ("run", "FILE", "--standby"))
    standby.await_text("standing by")
    return standby


def freeze(run: Running) -> list[psutil.Process]:
    """Stops every process of a run, as a machine does that hangs."""
    members = run.members()
    for process in members:
        with suppress(psutil.NoSuchProcess):
            process.suspend()
    return members


def await_takeover(file: PipelineFile, run: Running, since: float, seconds: float) -> float:
    """Waits until the run has applied what was written after `since`; gives how long that took."""
    target = file.database.flush_position()
    await_condition(lambda: (file.processed() or 0) >= target, "the standby to apply what came", seconds + 30)
    took = time.monotonic() - since
    assert "lease taken over" in run.text()
    assert took < seconds, f"{took:.1f} s:\n{run.tail()}"
    return took


def assert_equal(file: PipelineFile, run: Running, lake: Lake) -> None:
    run.drain()
    lake.assert_equals(file.database, [f"public.{table}" for table in TABLES])


def test_standby_takes_over(
    pipeline: PipelineFactory,
    postgres: Database,
    state: Database,
    lake: Lake,
    shared_log: tuple[dict[str, str], dict[str, str]],
    record_property: Callable[[str, object], None],
) -> None:
    file = bank(pipeline, postgres, state, shared_log)
    runs = [Running(file)]
    try:
        runs[0].await_streaming()
        runs.append(standing_by(file))
        refused = file.command("run", "FILE", "--once")
        assert refused.returncode == 1
        assert f"process {runs[0].process.pid} on" in refused.stderr

        with transfers(postgres):
            runs[0].drain()
            killed = time.monotonic()
            runs[0].process.kill()
            took = await_takeover(file, runs[1], killed, TAKEOVER_SECONDS)
            record_property("seconds after a kill", took)
            runs.append(standing_by(file))

            file.arm("apply.staged", send=signal.SIGSTOP)  # its metadata is written, its pointers are not moved
            await_condition(file.fired, "the leader to stop", 60)
            stopped, frozen = time.monotonic(), freeze(runs[1])
            took = await_takeover(file, runs[2], stopped, BOTH_SECONDS)
            record_property("seconds after a stop", took)

            for process in frozen:
                with suppress(psutil.NoSuchProcess):
                    process.resume()
            line = runs[1].await_end(1)
            assert "this pipeline was taken over by process" in line, line
            assert f"{runs[2].process.pid} on" in line, line
            runs[2].drain()
        assert_equal(file, runs[2], lake)
        store = find_store(state.url)
        assert store is not None
        assert [event.kind for event in store.events(50)].count("lease") == 2
        store.close()
        runs[2].stop()
    finally:
        for run in runs:
            run.clean_up()
