"""The capture process: it goes with its parent, seals when told to end, survives SIGKILL anywhere, stays small."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from capturing import PUBLICATION, CaptureBench, CaptureProcess, first_values
from databases import Database
from penstock.changelog.log import ChangeLog
from penstock.failpoints import FAILPOINTS
from penstock.model.position import parse_position
from running import PipelineFile, await_condition, make_pipeline

Starter = Callable[..., CaptureProcess]


@pytest.fixture
def file(postgres: Database, tmp_path: Path) -> PipelineFile:
    return make_pipeline(
        tmp_path,
        postgres,
        source={
            "type": "postgres",
            "url": postgres.url,
            "publication": PUBLICATION,
            "slot": f"capture_test_{postgres.name}",
        },
    )


@pytest.fixture
def bench(file: PipelineFile) -> CaptureBench:
    return CaptureBench(file.database, ChangeLog(str(file.log)))


@pytest.fixture
def start(file: PipelineFile) -> Iterator[Starter]:
    started: list[CaptureProcess] = []

    def begin(**log: object) -> CaptureProcess:
        file.settings["log"] = {**file.settings.get("log", {}), **log}
        file.write()
        started.append(CaptureProcess(file.path, **os.environ, PENSTOCK_FAILPOINT_FILE=str(file.failpoint)))
        return started[-1]

    yield begin
    for process in started:
        process.end()


def await_end(bench: CaptureBench, target: int) -> None:
    await_condition(lambda: (bench.log.end() or 0) >= target, f"the log's end at {target:x}", 30)


def test_it_ends_at_once_when_its_pipe_closes(bench: CaptureBench, start: Starter) -> None:
    bench.prepare("create table t (id int primary key)")
    capture = start()
    capture.await_event("started")
    assert capture.process.stdin is not None
    capture.process.stdin.close()
    assert capture.process.wait(3) != 0
    await_condition(lambda: bench.slot_state().active_pid is None, "the slot to be free", 10)


def test_it_ends_with_a_parent_that_is_killed_also_while_it_waits(bench: CaptureBench, file: PipelineFile) -> None:
    file.settings["source"]["url"] = "postgresql://postgres@127.0.0.1:1/nowhere"
    file.write()
    program = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-m', 'penstock.runtime.capture.process',"
        f" {str(file.path)!r}], stdin=subprocess.PIPE); print(child.pid, flush=True); child.wait()"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    assert '"waiting"' in parent.stdout.readline()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    await_condition(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "the orphan to end", 5)


def test_sigterm_seals_and_confirms_what_is_whole(bench: CaptureBench, start: Starter) -> None:
    bench.prepare("create table t (id int primary key)")
    capture = start(segment_age="1h", idle_every="1h")
    position = parse_position(capture.await_event("started")["position"])
    confirmed = bench.confirmed()
    assert position <= confirmed <= (bench.log.end() or position)  # the server's own records, once they are sealed
    bench.database.execute("insert into t values (1)", "insert into t values (2)")
    sent = bench.database.flush_position()
    await_condition(
        lambda: bool(
            bench.database.value(f"select count(*) from pg_stat_replication where sent_lsn - '0/0' >= {sent}")
        ),
        "the changes to be sent",
        30,
    )
    capture.process.send_signal(signal.SIGTERM)
    assert capture.process.wait(10) == 0
    assert first_values(bench.log) == ["1", "2"]
    await_condition(lambda: bench.confirmed() == bench.log.end(), "the slot to follow", 10)


def test_ctrl_c_is_left_to_the_parent(bench: CaptureBench, start: Starter) -> None:
    bench.prepare("create table t (id int primary key)")
    capture = start()
    capture.await_event("started")
    capture.process.send_signal(signal.SIGINT)
    bench.database.execute("insert into t values (1)")
    await_end(bench, bench.database.flush_position())
    assert capture.process.poll() is None


def test_what_no_retry_can_mend_is_reported_before_it_ends(bench: CaptureBench, start: Starter) -> None:
    bench.prepare("create table t (id int primary key)")
    bench.database.execute("insert into t values (1)")
    bench.capture_all()
    bench.database.execute("insert into t values (2)")
    bench.move_slot()
    capture = start()
    report = capture.await_event("failed")
    assert report["kind"] == "GapError"
    assert report["what"]
    assert report["solution"]
    assert capture.process.wait(10) == 1


def test_a_bad_file_is_reported(start: Starter, file: PipelineFile) -> None:
    file.settings["sauce"] = 1
    capture = start()
    assert capture.await_event("failed")["kind"] == "ConfigError"
    assert capture.process.wait(10) == 2


def test_a_second_capture_does_not_write_to_the_same_log(bench: CaptureBench, start: Starter) -> None:
    bench.prepare("create table t (id int primary key)")
    first = start()
    first.await_event("started")
    second = start()
    assert second.await_event("failed")["kind"] == "LockedError"
    assert first.process.poll() is None


CAPTURE_FAILPOINTS = [name for name in FAILPOINTS if name.startswith("capture.")]


@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize("name", CAPTURE_FAILPOINTS)
def test_killed_anywhere_it_goes_on_with_nothing_lost_or_doubled(
    bench: CaptureBench, file: PipelineFile, start: Starter, name: str, nth: int
) -> None:
    bench.prepare("create table t (id int primary key, note text)", "create table idle (n int)")
    bench.database.execute("alter publication capture_test rename to everything")
    bench.database.execute("create publication capture_test for table t")
    file.arm(name, nth)
    capture = start(segment_bytes=20_000, segment_age="20ms", idle_every="20ms")
    expected = 0

    def taken_or_killed() -> bool:
        return (bench.log.end() or 0) >= target or capture.process.poll() is not None

    while capture.process.poll() is None:
        assert expected < 20_000, f"{name} was never reached"
        bench.database.execute(
            f"insert into t select n, repeat('x', 50) from generate_series({expected}, {expected + 9}) n",
            f"insert into t select n, repeat('x', 50) from generate_series({expected + 10}, {expected + 999}) n",
            "insert into idle values (1)",
        )
        expected += 1000
        target = bench.database.flush_position()
        await_condition(taken_or_killed, "the log or the kill", 30)
    assert capture.process.returncode == -signal.SIGKILL
    assert file.fired()
    bench.database.execute(f"insert into t values ({expected}, 'after')")
    again = start()
    again.await_event("started")
    await_end(bench, bench.database.flush_position())
    again.process.send_signal(signal.SIGTERM)
    assert again.process.wait(10) == 0
    assert first_values(bench.log) == [str(number) for number in range(expected + 1)]
    assert not [text for text in bench.log.remove_garbage() if text.startswith("part-") or text.endswith(".tmp")]


def test_a_huge_transaction_takes_little_memory(bench: CaptureBench, start: Starter, full: bool) -> None:
    rows = 2_000_000 if full else 200_000
    bench.prepare("create table t (id bigint primary key, n int, note text)")
    bench.database.execute(f"insert into t select n, n, 'note ' || n from generate_series(1, {rows}) n")
    capture = start(segment_bytes="16MiB")
    target = bench.database.flush_position()
    await_condition(lambda: (bench.log.end() or 0) >= target, "the transaction", 300)
    peak = capture.peak_mebibytes()
    assert sum(item.slice.rows for name in bench.log.segments() for item in bench.log.slices(name)) == rows
    assert peak < 300, f"{peak:.0f} MiB"


def test_rows_of_many_mebibytes_take_little_memory(bench: CaptureBench, start: Starter) -> None:
    bench.prepare("create table t (id bigint primary key, note text)")
    for number in range(3):
        bench.database.execute(f"insert into t values ({number}, repeat('penstock', {48 << 17}))")
    capture = start(segment_bytes="16MiB")
    await_end(bench, bench.database.flush_position())
    peak = capture.peak_mebibytes()
    assert first_values(bench.log) == ["0", "1", "2"]
    assert peak < 300, f"{peak:.0f} MiB"
