"""The lease in Postgres: one run holds it, however another one that slept sees it."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import psycopg
import pytest

from databases import Database, fresh_database
from penstock.demo.server import PostgresServer
from penstock.errors import LeaseLost, LockedError, StateError
from penstock.state import lease as lease_module
from penstock.state.lease import Holder, Lease, can_be_leased
from penstock.state.sql import open_store

NUMBERS = itertools.count()


@pytest.fixture
def database(embedded_server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.setattr(lease_module, "LEASE_SECONDS", 0.6)
    monkeypatch.setattr(lease_module, "RENEW_SECONDS", 0.1)
    monkeypatch.setattr(lease_module, "POLL_SECONDS", 0.05)
    with fresh_database(embedded_server) as made:
        open_store(made.url).close()
        yield made


@pytest.fixture
def leases(database: Database) -> Iterator[Callable[..., Lease]]:
    """Makes leases of runs, and closes what those that were never entered hold open."""
    made: list[Lease] = []

    def make(lost: Callable[[], None] = lambda: None) -> Lease:
        made.append(Lease(database.url, lost))
        return made[-1]

    yield make
    for lease in made:
        lease._engine.dispose()


def taken(lease: Lease, *, patient: bool = False) -> Lease:
    assert lease.take(threading.Event(), patient=patient)
    return lease


def test_a_second_run_is_refused_by_name_and_a_lease_given_back_is_free_at_once(leases: Callable[..., Lease]) -> None:
    with taken(leases()) as first:
        assert (first.epoch, first.taken_from) == (1, None)
        with pytest.raises(LockedError, match=rf"process {os.getpid()} on .* holds its lease"):
            leases().take(threading.Event(), patient=False)
    began = time.monotonic()
    with taken(leases()) as second:
        assert (second.epoch, second.taken_from) == (2, None)
    assert time.monotonic() - began < 0.4, "nobody waits for what was given back"


def test_a_lease_that_stands_still_is_taken_and_its_holder_may_write_nothing_more(
    database: Database, leases: Callable[..., Lease]
) -> None:
    """The first one never renews: it is not entered, as a machine that hangs."""
    ended = threading.Event()
    asleep = taken(leases(ended.set))
    store = open_store(database.url).guarded(asleep.require)
    store.set_processed("lake", 5)
    began = time.monotonic()
    with taken(leases(), patient=True) as awake:
        assert time.monotonic() - began >= 0.6, "it was waited for"
        assert awake.taken_from is not None
        assert awake.taken_from.pid == os.getpid()
        with pytest.raises(LeaseLost, match="this pipeline was taken over"):
            store.set_processed("lake", 6)
        with asleep:
            assert ended.wait(5)
        assert isinstance(asleep.failure, LeaseLost)
        assert f"taken over by process {os.getpid()}" in asleep.failure.what
        assert awake.failure is None
    store.close()


def test_who_was_killed_on_this_machine_is_not_waited_for(
    leases: Callable[..., Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "LEASE_SECONDS", 60.0)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    lease = leases()
    lease._me = replace(Holder.this_process(), pid=gone.pid)
    taken(lease)
    assert taken(leases()).epoch == 2
    assert not Holder("far", "another", gone.pid, "1").has_ended, "of other machines' processes nothing is known"


def test_a_transaction_that_stands_still_does_not_keep_others_from_taking_over(
    database: Database, leases: Callable[..., Lease]
) -> None:
    """A process is stopped amid a transaction on the state: the server ends it, and with it what it has locked."""
    asleep = taken(leases())
    store = open_store(database.url, frozen_seconds=0.3).guarded(asleep.require)
    held = ExitStack()
    held.enter_context(store.transaction())
    began = time.monotonic()
    with taken(leases(), patient=True) as awake:
        assert awake.epoch == 2
    assert time.monotonic() - began < 5
    with pytest.raises(StateError, match="idle-in-transaction timeout"):
        held.close()
    store.close()


def test_a_standby_waits_through_times_without_the_store(database: Database, leases: Callable[..., Lease]) -> None:
    """Nobody takes a lease over because the store was away: its holder could not renew it either."""
    holder = taken(leases())
    with holder, psycopg.connect(database.url.replace(database.name, "postgres"), autocommit=True) as server:
        waiting, stop = leases(), threading.Event()
        thread = threading.Thread(target=waiting.take, args=(stop,), kwargs={"patient": True})
        thread.start()
        cut = "alter database {} allow_connections {}"
        server.execute(cut.format(database.name, "false").encode())
        ending = "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s"
        server.execute(ending, (database.name,))
        stop.wait(1.0)  # longer than the lease
        server.execute(cut.format(database.name, "true").encode())
        stop.wait(1.0)
        assert (holder.failure, waiting.epoch) == (None, 0)
        stop.set()
        thread.join()


def test_only_a_state_in_postgres_can_be_leased() -> None:
    assert can_be_leased("postgresql://user@host/state")
    assert can_be_leased("postgresql+psycopg://user@host/state")
    of_a_class = 'python://{"class": "acme:Store", "config": {"path": "a:1"}, "folder": "/a"}'
    assert not any(map(can_be_leased, ("/var/lib/state.db", "sqlite:////state.db", of_a_class, "memory")))
