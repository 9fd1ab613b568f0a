"""A read replica as source: what is read there, what only the primary can do, and what check says of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from capturing import CaptureBench, first_values
from databases import Database
from penstock.changelog.log import ChangeLog
from penstock.demo.server import PostgresServer
from penstock.errors import SourceMisconfigured
from penstock.model.table import TableId
from penstock.source.postgres import slot as slots
from penstock.source.postgres.check import check_source
from penstock.source.postgres.connect import Connection, connect
from penstock.source.postgres.discover import discover
from penstock.source.postgres.publishing import publish
from penstock.source.postgres.resume import ServerStream
from penstock.source.postgres.slot import create_slot, drop_slot, flush_position, slot_state
from penstock.source.sink import Origin
from replica import make_replica

T = TableId("public", "t")


@dataclass(frozen=True)
class Names:
    publication: str = "penstock_shop"
    slot: str = "penstock_shop"
    create_slot: bool = True
    keeps_changes: bool = True
    pipeline: str = "shop"


@pytest.fixture(scope="module")
def primary() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        with connect(server.url()) as connection:
            connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        yield server


@pytest.fixture(scope="module")
def replica(primary: PostgresServer) -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        make_replica(primary, server)
        yield server


def caught_up(primary: Connection, replica: Connection) -> None:
    wanted = flush_position(primary)
    while flush_position(replica) < wanted:
        replica.execute("SELECT pg_sleep(0.02)")


def test_a_replica_is_read_but_its_publication_is_made_on_the_primary(
    primary: PostgresServer, replica: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "_TELL_EVERY_SECONDS", 0.1)
    with connect(primary.url()) as above, connect(replica.url()) as below:
        missing, warning = sorted(
            (f for f in check_source(below, Names(), lambda _: True) if f.level != "note"), key=lambda f: f.level
        )
        assert "is missing and cannot be made here: the source is a read-only replica" in missing.what
        assert "a replica without hot_standby_feedback" in warning.what
        with pytest.raises(SourceMisconfigured, match="read-only replica") as caught:
            publish(below, "penstock_shop", discover(below, lambda _: True, "penstock_shop"), "shop")
        for statement in caught.value.solution.removeprefix("On its primary run: ").split("; "):
            above.execute(statement.encode())
        caught_up(above, below)
        looked = publish(below, "penstock_shop", discover(below, lambda _: True, "penstock_shop"), "shop")
        assert (looked.done, looked.troubles) == ((), {})
        above.execute("CREATE TABLE later (id int PRIMARY KEY)")
        caught_up(above, below)
        looked = publish(below, "penstock_shop", discover(below, lambda _: True, "penstock_shop"), "shop")
        [(later, trouble)] = looked.troubles.items()
        assert (str(later), "read-only replica" in trouble.what) == ("public.later", True), "no other table's trouble"
        above.execute(trouble.solution.removeprefix("On its primary run: ").partition(";")[0].encode())
        caught_up(above, below)
        looked = publish(below, "penstock_shop", discover(below, lambda _: True, "penstock_shop"), "shop")
        assert looked.troubles == {}
        below.execute(warning.fix.removeprefix("On the replica: ").partition(";")[0].encode())
        below.execute("SELECT pg_reload_conf()")

        def let_it_see_who_runs(awaited: str) -> None:
            assert "pg_log_standby_snapshot()" in awaited
            above.execute("SELECT pg_log_standby_snapshot()")

        point = create_slot(below, replica.url(), "penstock_shop", let_it_see_who_runs)
        state = slot_state(below, "penstock_shop")
        assert state is not None
        assert state.confirmed_flush_lsn == point <= flush_position(below)
        assert check_source(below, Names(), lambda _: True) == []
        drop_slot(below, "penstock_shop")


def newest_stream(log: ChangeLog) -> ServerStream:
    return ServerStream.from_origin(Origin(log.header(log.segments()[-1]).origin))


def test_a_replica_that_is_promoted_in_the_middle_of_its_stream_is_read_on(
    primary: PostgresServer, replica: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it sends after the promotion is sealed in a stream that began on the timeline before. Comes last: there is
    no replica any more."""
    monkeypatch.setattr(slots, "_TELL_EVERY_SECONDS", 0.1)
    bench = CaptureBench(Database("promoted", replica.url()), ChangeLog(str(tmp_path / "log")))
    with connect(primary.url()) as above, connect(replica.url()) as below:
        above.execute("CREATE PUBLICATION capture_test FOR ALL TABLES")
        caught_up(above, below)

        def let_it_see_who_runs(_: str) -> None:
            above.execute("SELECT pg_log_standby_snapshot()")

        create_slot(below, replica.url(), bench.slot, let_it_see_who_runs)
        with bench.capturing() as capture:
            above.execute("INSERT INTO t VALUES (1)")
            capture.await_condition(lambda: first_values(bench.log) == ["1"], "the first row")
            below.execute("SELECT pg_promote()")
            below.execute("INSERT INTO t VALUES (2)")
            capture.await_condition(lambda: first_values(bench.log) == ["1", "2"], "the second row")
        assert newest_stream(bench.log).timeline == 1
        below.execute("INSERT INTO t VALUES (3)")
        bench.capture_all()
        assert first_values(bench.log) == ["1", "2", "3"]
        last = newest_stream(bench.log)
        assert (last.timeline, last.replica) == (2, False)
        below.execute("INSERT INTO t VALUES (4)")
        bench.capture_all()
    assert first_values(bench.log) == ["1", "2", "3", "4"]
