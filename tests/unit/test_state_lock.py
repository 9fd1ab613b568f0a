"""The pipeline's lock: one holder, named, gone with its process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import LockedError, StateError
from penstock.state.lock import PipelineLock, holder

HOLD = """
import subprocess, sys
from pathlib import Path
from penstock.state.lock import PipelineLock
PipelineLock(Path(sys.argv[1])).acquire()
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_a_second_holder_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    with PipelineLock(tmp_path / "home" / "lock"), pytest.raises(LockedError, match=rf"process {os.getpid()} holds"):
        PipelineLock(tmp_path / "home" / "lock").acquire()


def test_a_released_lock_can_be_taken_again(tmp_path: Path) -> None:
    lock = PipelineLock(tmp_path / "lock")
    with lock:
        assert holder(lock.path) == os.getpid()
    assert holder(lock.path) is None
    with lock:
        assert holder(lock.path) == os.getpid()


def test_nobody_holds_a_lock_that_was_never_taken(tmp_path: Path) -> None:
    assert holder(tmp_path / "lock") is None


def test_a_killed_holder_frees_it_even_while_its_children_live(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    child = int(process.stdout.readline())
    try:
        assert holder(path) == process.pid
        process.kill()
        process.wait()
        assert holder(path) is None
        with PipelineLock(path):
            assert holder(path) == os.getpid()
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdin.close()
        process.stdout.close()


def test_a_lock_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match=rf"{tmp_path}/file/lock"):
        PipelineLock(tmp_path / "file" / "lock").acquire()


def test_who_holds_the_lease_takes_the_lock_also_from_a_run_that_stands_still(tmp_path: Path) -> None:
    asleep, lock = PipelineLock(tmp_path / "lock"), PipelineLock(tmp_path / "lock")
    asleep.acquire()
    lock.take_over()
    asleep.release()
    assert holder(lock.path) == os.getpid(), "what the other one had locked is another file"
    with pytest.raises(LockedError):
        PipelineLock(lock.path).acquire()
    lock.release()
    assert holder(lock.path) is None
