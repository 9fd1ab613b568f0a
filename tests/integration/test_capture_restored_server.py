"""A server that was put back to an earlier state of its disk: the log's end is compared with what it sends again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from capturing import CaptureBench, first_values
from databases import Database
from penstock.changelog.log import ChangeLog
from penstock.changelog.writer import SegmentWriter
from penstock.demo.server import PostgresServer
from penstock.errors import GapError
from server_image import ServerImage

WAL = "select pg_logical_emit_message(false, 'noise', repeat('x', 1 << 20))"  # moves on, and changes no table
FLUSH = "checkpoint"  # such a message alone is flushed when the server finds the time


@dataclass(frozen=True)
class Restored:
    server: PostgresServer
    bench: CaptureBench
    image: ServerImage


@pytest.fixture(params=["embedded_server", "debian_server"])
def restorable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Restored]:
    """A server with one captured row, and the image of its disk then."""
    binaries = request.getfixturevalue(request.param).binaries
    with PostgresServer(binaries, {"checkpoint_timeout": "1h"}) as server:
        bench = CaptureBench(Database("own", server.url()), ChangeLog(str(tmp_path / "log")))
        bench.prepare("create table t (id int primary key)")
        bench.database.execute("insert into t values (1)")
        bench.capture_all()
        yield Restored(server, bench, ServerImage(server))


def refused(bench: CaptureBench, reason: str) -> None:
    """Also when it is tried again: what shows the gap is still there."""
    before = bench.log.segments()
    for _ in range(2):
        with pytest.raises(GapError, match=reason) as caught, bench.capturing() as capture:
            capture.await_condition(lambda: False, "the gap to be found")
        assert "penstock reset" in caught.value.solution
    assert bench.log.segments() == before


def test_a_server_that_was_put_back_and_moved_past_the_logs_end_is_a_gap(restorable: Restored) -> None:
    bench = restorable.bench
    bench.database.execute("insert into t values (2)")
    bench.capture_all()
    restorable.image.put_back()
    bench.database.execute("insert into t values (3)", WAL, FLUSH)
    assert bench.database.flush_position() > (bench.log.end() or 0)
    refused(bench, "history is not the log's .*transaction")


def test_a_transaction_where_the_log_has_none_is_a_gap(restorable: Restored) -> None:
    """Nothing was captured after the image, but the log's end moved on."""
    bench = restorable.bench
    bench.database.execute(WAL)
    bench.capture_all()
    restorable.image.put_back()
    bench.database.execute("insert into t values (3)", WAL, WAL, FLUSH)
    refused(bench, "a transaction that the log lacks committed at")


def test_segments_that_are_gone_still_say_what_was_last(restorable: Restored) -> None:
    bench = restorable.bench
    bench.database.execute("insert into t values (2)")
    bench.capture_all()
    bench.database.execute(WAL)
    bench.capture_all()
    for name in bench.log.segments()[:-1]:
        bench.log.remove(name)
    assert first_values(bench.log) == []
    restorable.image.put_back()
    bench.database.execute(WAL, WAL, FLUSH)
    refused(bench, "the transaction that the log has at .* is not there")


def test_a_server_that_crashed_is_no_gap_though_its_slot_is_older_than_the_log(restorable: Restored) -> None:
    bench, server = restorable.bench, restorable.server
    older = 0
    for number in range(2, 6):
        bench.database.execute(f"insert into t values ({number})", *([WAL] if number % 2 else []))
        bench.capture_all()
        server.stop("immediate")
        server.start()
        older += bench.confirmed() < (bench.log.end() or 0)
    assert older
    bench.database.execute("insert into t values (6)")
    bench.capture_all()
    assert first_values(bench.log) == ["1", "2", "3", "4", "5", "6"]


def test_an_image_that_nothing_was_captured_after_is_no_gap(restorable: Restored) -> None:
    bench = restorable.bench
    restorable.image.put_back()
    bench.database.execute("insert into t values (2)")
    bench.capture_all()
    assert first_values(bench.log) == ["1", "2"]


def test_a_history_has_one_id_as_long_as_its_log_lasts(tmp_path: Path) -> None:
    log = ChangeLog(str(tmp_path / "log"))
    assert log.history() is None
    for end in (200, 300):
        with SegmentWriter(log) as writer:
            writer.begin(writer.end or 100, "77")
            writer.advance(end)
    history = log.history()
    assert history
    shutil.rmtree(log.folder)
    with SegmentWriter(log) as writer:
        writer.begin(100, "77")
        writer.advance(200)
    assert log.history() not in (None, "", history)
