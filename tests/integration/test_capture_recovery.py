"""Capture when things go wrong: gaps are refused, a busy slot, a full log and a lost server are waited for."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from capturing import CaptureBench, first_values
from databases import Database
from penstock.changelog.chain import SegmentName
from penstock.changelog.log import ChangeLog
from penstock.changelog.writer import SegmentWriter
from penstock.demo.server import PostgresServer
from penstock.errors import GapError, SlotBusy, SourceGivenUp, SourceMisconfigured, SourceUnreachable
from penstock.source.postgres import capture as capture_module
from penstock.source.postgres.resume import ServerStream, fork_position, resume_position
from penstock.source.postgres.slot import flush_position
from penstock.source.sink import Origin
from raw_rows import ORDERS, raw_slice


@pytest.fixture
def bench(postgres: Database, tmp_path: Path) -> CaptureBench:
    return CaptureBench(postgres, ChangeLog(str(tmp_path / "log")))


@pytest.fixture
def started(bench: CaptureBench) -> CaptureBench:
    """With something in the log."""
    bench.prepare("create table t (id int primary key, note text)")
    bench.database.execute("insert into t values (1)")
    bench.capture_all()
    return bench


@pytest.fixture
def own_bench(tmp_path: Path) -> Iterator[tuple[PostgresServer, CaptureBench]]:
    """On a server of its own, which the test may stop, promote or starve."""
    with PostgresServer(settings={"max_slot_wal_keep_size": "16MB", "checkpoint_timeout": "1h"}) as server:
        yield server, CaptureBench(Database("own", server.url()), ChangeLog(str(tmp_path / "log")))


def extend_log(bench: CaptureBench, end: int, system_id: str | None = None, timeline: int | None = None) -> None:
    """Moves the log's end as if a capture had written up to there."""
    with SegmentWriter(bench.log) as writer:
        assert writer.end is not None
        assert writer.last is not None
        known = ServerStream.from_origin(Origin(writer.last.origin))
        other = ServerStream(system_id or known.system_id, timeline or known.timeline, known.replica)
        writer.begin(writer.end, other.to_origin().stream)
        writer.append(end, [raw_slice(ORDERS, [end - 1])])


def _with_changes(bench: CaptureBench) -> list[SegmentName]:
    return [name for name in bench.log.segments() if bench.log.slices(name)]


def refused(bench: CaptureBench, reason: str, gap: int | None = None) -> None:
    """Nothing is taken; or, when there is a `gap` in the stream itself, nothing but the server's own records before
    it."""
    before, changes = bench.log.segments(), _with_changes(bench)
    with pytest.raises(GapError, match=reason) as caught, bench.capturing() as capture:
        capture.await_condition(lambda: False, "the gap to be found")
    assert "penstock reset" in caught.value.solution
    if gap is None:
        assert bench.log.segments() == before
        return
    assert _with_changes(bench) == changes
    assert bench.confirmed() <= (bench.log.end() or 0) <= gap


def test_a_slot_that_somebody_moved_on_is_a_gap(started: CaptureBench) -> None:
    started.database.execute("insert into t values (2)")
    started.move_slot()
    refused(started, "moved on to .* past the log's end")


def test_a_slot_that_moves_while_it_is_waited_for_is_a_gap(
    started: CaptureBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check before reading sees nothing wrong: the other reader moves the slot after it."""
    moved: list[bool] = []

    def checked_too_early(*arguments: Any) -> Any:
        result = resume_position(*arguments)
        if not moved:
            moved.append(True)
            started.database.execute("insert into t values (2)")
            started.move_slot()
        return result

    monkeypatch.setattr(capture_module, "resume_position", checked_too_early)
    refused(started, "moved on to .* past the log's end")


def test_a_slot_that_is_gone_is_a_gap(started: CaptureBench) -> None:
    started.drop_slot()
    refused(started, "no longer exists")


def test_a_slot_that_was_made_anew_is_a_gap(started: CaptureBench) -> None:
    started.drop_slot()
    started.database.execute("drop publication capture_test", "insert into t values (2)")
    started.prepare()
    refused(started, "past the log's end")


def test_another_server_is_a_gap(started: CaptureBench) -> None:
    extend_log(started, (started.log.end() or 0) + 8, system_id="4711")
    refused(started, "another server .*4711")


def test_a_log_of_another_kind_of_source_is_one_of_another_server() -> None:
    assert ServerStream.from_origin(Origin("a-uuid-of-mysql")).system_id == "a-uuid-of-mysql"
    assert ServerStream.from_origin(Origin("77")).system_id == "77"


def test_a_server_that_is_behind_the_log_is_a_gap(started: CaptureBench) -> None:
    extend_log(started, started.database.flush_position() + (1 << 30))
    refused(started, "was restored")


def test_a_timeline_that_the_server_never_reached_is_a_gap(started: CaptureBench) -> None:
    extend_log(started, (started.log.end() or 0) + 8, timeline=7)
    refused(started, "timeline 1, before the log's timeline 7")


def test_a_timeline_history_says_where_a_timeline_was_left() -> None:
    history = "1\t0/3000000\tno recovery target specified\n\n2\t1/A0\tbefore 2026-01-01\n"
    assert fork_position(history, 1) == 0x3000000
    assert fork_position(history, 2) == 0x1_0000_00A0
    assert fork_position(history, 3) is None


def promote(server: PostgresServer) -> int:
    """Puts the server on its next timeline; gives where it left the one before."""
    server.stop()
    (server.data / "standby.signal").touch()
    server.start()
    with psycopg.connect(server.url(), autocommit=True) as connection:
        left = flush_position(connection)
        connection.execute("select pg_promote()")
    return left


def test_a_failover_before_the_logs_end_is_a_gap_and_one_after_it_is_none(
    own_bench: tuple[PostgresServer, CaptureBench],
) -> None:
    server, bench = own_bench
    bench.prepare("create table t (id int primary key)")
    bench.database.execute("insert into t values (1)")
    bench.capture_all()
    promote(server)
    bench.database.execute("insert into t values (2)")
    bench.capture_all()
    assert first_values(bench.log) == ["1", "2"]
    last = bench.log.header(bench.log.segments()[-1])
    assert ServerStream.from_origin(Origin(last.origin)).timeline == 2
    left = promote(server)
    bench.database.execute("insert into t values (3)")
    extend_log(bench, max(left, bench.log.end() or 0) + 8)
    refused(bench, "timeline 3 left the log's timeline 2")


def test_a_slot_that_the_server_gave_up_is_a_gap(own_bench: tuple[PostgresServer, CaptureBench]) -> None:
    _, bench = own_bench
    bench.prepare("create table t (id int primary key)", "create table other (note text)")
    bench.database.execute("insert into t values (1)")
    bench.capture_all()
    for _ in range(4):
        bench.database.execute("insert into other values ('x')", "select pg_switch_wal()")
    bench.database.execute("checkpoint")
    assert bench.slot_state().invalidation is not None
    refused(bench, "has given the slot up")


def test_without_a_log_a_missing_slot_is_no_gap_but_must_be_made(bench: CaptureBench) -> None:
    with pytest.raises(SourceMisconfigured, match="does not exist"):
        bench.capture_all()


def test_changes_made_without_the_publication_are_a_gap(any_postgres: Database, tmp_path: Path) -> None:
    """Up to 17 the server refuses to go on; 18 leaves them out and only warns, even once the publication is back."""
    bench = CaptureBench(any_postgres, ChangeLog(str(tmp_path / "log")))
    bench.prepare("create table t (id int primary key)")
    bench.database.execute("insert into t values (1)")
    bench.capture_all()
    bench.database.execute("drop publication capture_test")
    with bench.database.connect() as connection, connection.transaction():
        connection.execute("insert into t values (2)")
        uncommitted = connection.execute("select (pg_current_wal_insert_lsn() - '0/0')::bigint").fetchone()
    assert uncommitted is not None
    bench.database.execute("create publication capture_test for all tables", "insert into t values (3)")
    refused(bench, "publication does not exist", gap=uncommitted[0])
    assert first_values(bench.log) == ["1"]


def test_a_busy_slot_is_waited_for(started: CaptureBench, tmp_path: Path) -> None:
    other = CaptureBench(started.database, ChangeLog(str(tmp_path / "other")))
    started.database.execute("insert into t values (2)")
    with started.capturing(idle_every=3600, segment_age=3600) as first:
        first.await_event("started")
        with other.capturing() as second:
            second.await_event("waiting", 2)
            assert "active" in second.events("waiting")[0]["error"]
            first.stop.set()
            second.await_event("started")
            started.database.execute("insert into t values (3)")
            second.drain()
    assert first_values(started.log) == ["1", "2"]
    assert first_values(other.log) == ["3"]


def test_a_slot_that_stays_busy_is_given_up_after_ten_tries(
    started: CaptureBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [capture_module._delay(attempt) for attempt in range(6)] == [0.25, 0.5, 1.0, 2.0, 4.0, 4.0]
    monkeypatch.setattr(capture_module, "FIRST_DELAY", 0.001)
    other = CaptureBench(started.database, ChangeLog(str(tmp_path / "other")))
    with started.capturing() as first:
        first.await_event("started")
        with pytest.raises(SlotBusy, match="active"), other.capturing() as second:
            second.await_condition(lambda: False, "it to give up")
        assert len(second.events("waiting")) == 10


def test_a_full_log_stops_reading_and_confirming_until_there_is_room(
    bench: CaptureBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_module, "LONGEST_DELAY", 0.3)
    bench.prepare("create table t (id int primary key, note text)")
    bench.max_bytes = 40_000
    with bench.capturing() as capture:
        for start in itertools.count(0, 50):
            bench.database.execute(
                f"insert into t select n, repeat('x', 100) from generate_series({start}, {start + 49}) n"
            )
            target = bench.database.flush_position()
            capture.await_condition(
                lambda at=target: (bench.log.end() or 0) >= at or capture.events("waiting"), "all of it, or no room"
            )
            if capture.events("waiting"):
                break
        capture.await_event("waiting", 3)
        assert "log.max_bytes" in capture.events("waiting")[0]["error"]
        assert bench.log.bytes() <= bench.max_bytes
        assert bench.confirmed() == bench.log.end()
        assert bench.confirmed() < bench.database.flush_position()
        kept = first_values(bench.log)
        for name in bench.log.segments()[:-1]:
            bench.log.remove(name)
        capture.drain()
        kept += [value for value in first_values(bench.log) if value not in set(kept)]
    assert kept == [str(number) for number in range(start + 50)]


def test_stopping_while_the_log_is_full_loses_nothing(bench: CaptureBench) -> None:
    bench.prepare("create table t (id int primary key, note text)")
    bench.database.execute("insert into t select n, repeat('x', 100) from generate_series(1, 50) n")
    bench.max_bytes = 500
    with bench.capturing() as capture:
        capture.await_event("waiting")
    bench.max_bytes = None
    bench.capture_all()
    assert len(first_values(bench.log)) == 50


def test_a_server_that_restarts_is_met_again(own_bench: tuple[PostgresServer, CaptureBench]) -> None:
    server, bench = own_bench
    bench.prepare("create table t (id int primary key)")
    with bench.capturing() as capture:
        bench.database.execute("insert into t values (1)")
        capture.drain()
        server.stop("immediate")
        capture.await_event("waiting")
        server.start()
        bench.database.execute("insert into t values (2)")
        capture.drain()
        server.stop("fast")
        server.start()
        bench.database.execute("insert into t values (3)")
        capture.drain()
    assert first_values(bench.log) == ["1", "2", "3"]


def test_a_stream_that_is_cut_amid_a_huge_transaction_sends_it_whole_again(bench: CaptureBench) -> None:
    bench.prepare("create table t (id int primary key, note text)")
    bench.database.execute("insert into t select n, repeat('x', 100) from generate_series(1, 20000) n")
    with bench.capturing(segment_bytes=50_000) as capture:
        capture.await_condition(lambda: list(Path(bench.log.folder).glob("part-*-000003.arrow")), "a few parts")
        bench.database.execute(
            f"select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = '{bench.slot}'"
        )
        capture.drain()
    assert first_values(bench.log) == [str(number) for number in range(1, 20001)]
    assert bench.log.remove_garbage() == []


def test_a_source_that_cannot_be_reached_at_the_start_is_told_at_once_unless_patient(bench: CaptureBench) -> None:
    nowhere = "postgresql://postgres:geheim@127.0.0.1:1/x"
    with pytest.raises(SourceUnreachable, match=r"127\.0\.0\.1:1/x") as caught:
        bench.capture_all(url=nowhere, patient=False)
    assert "geheim" not in str(caught.value)
    with bench.capturing(url=nowhere, patient=True) as capture:
        capture.await_event("waiting", 2)
        assert "geheim" not in str(capture.reports)
    for retries in (0, 1):
        gives_up = pytest.raises(SourceGivenUp, match=f"tried {retries + 1} times in a row")
        with gives_up, bench.capturing(url=nowhere, patient=True, retries=retries) as capture:
            capture.thread.join(20)
        assert len(capture.events("waiting")) == retries


def test_a_server_that_falls_silent_is_left(started: CaptureBench) -> None:
    """Its process is stopped, not ended: the connection stays up and nothing comes."""
    with started.capturing(keepalive=0.5) as capture:
        capture.await_event("started")
        sender = started.slot_state().active_pid
        assert sender is not None
        os.kill(sender, signal.SIGSTOP)
        try:
            capture.await_event("waiting")
            assert "nothing was heard" in capture.events("waiting")[0]["error"]
        finally:
            os.kill(sender, signal.SIGCONT)
        started.database.execute("insert into t values (2)")
        capture.drain()
    assert first_values(started.log) == ["1", "2"]


def test_a_slot_that_moves_between_two_streams_into_an_empty_log_is_a_gap(
    bench: CaptureBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_module, "FIRST_DELAY", 4.0)  # so that the slot is moved before it is read again
    bench.prepare("create table t (id int primary key, note text)")
    with bench.capturing(segment_age=3600, idle_every=3600) as capture:
        capture.await_event("started")
        sender = bench.slot_state().active_pid
        # In one transaction: the sender is gone before it could send the row.
        bench.database.execute(
            f"with row as (insert into t values (1) returning id) select pg_terminate_backend({sender}) from row"
        )
        bench.move_slot()
        with pytest.raises(GapError, match="past the log's end"):
            capture.await_condition(lambda: False, "the gap to be found")
        capture.error = None
    assert bench.log.segments() == []
