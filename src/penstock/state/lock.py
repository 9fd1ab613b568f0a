"""One run of a pipeline at a time: a file lock of the system, which dies with its process, never a timeout.

The lock file holds the holder's process id, for messages only; the lock itself is `flock`. It is closed on exec, so
that no child process keeps it, and it is not deleted, so that two runs cannot lock two different files; but where the
state is in Postgres, the lease (`lease.py`) keeps runs apart, and who holds it may put a new file in the place of one
that a stopped process has locked.
"""

from __future__ import annotations

import fcntl
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from penstock.errors import LockedError, StateError

PEEK_ATTEMPTS = 10
PEEK_PAUSE = 0.02  # seconds; `holder` has the lock for microseconds only


class PipelineLock:
    """Held from `acquire` to `release`, or as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def take_over(self) -> None:
        """Take the lock also from a process that does not move: for whoever holds the pipeline's lease.

        That process keeps the file that it has locked, which has no name any more.
        """
        if holder(self.path) is not None:
            self.path.unlink(missing_ok=True)
        self.acquire()

    def acquire(self) -> None:
        """Take the lock. Raise LockedError with the holder's process id when another process has it."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StateError(
                f"the lock file {self.path} cannot be opened: {error.strerror}",
                "Make its folder writable, or move the pipeline's state with `state:`",
            ) from error
        try:
            for attempt in range(PEEK_ATTEMPTS):
                if _try_lock(descriptor):
                    break
                if attempt + 1 < PEEK_ATTEMPTS:
                    time.sleep(PEEK_PAUSE)
            else:
                pid = _written_pid(self.path)
                who = f"process {pid}" if pid is not None else "another process"
                raise LockedError(
                    f"this pipeline is running already: {who} holds {self.path}",
                    f"Stop it first (`kill {pid}` drains it), or look at it with `penstock status`"
                    if pid is not None
                    else "Stop it first, or look at it with `penstock status`",
                )
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> PipelineLock:
        self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


def holder(path: Path) -> int | None:
    """Return the process that holds the lock, or None when no run is under way.

    Takes the lock for a moment to find out.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return None if _try_lock(descriptor) else _written_pid(path)
    finally:
        os.close(descriptor)


def held_since(path: Path) -> datetime | None:
    """When the run that is under way took the lock; None when none is. The file is written when it is taken."""
    if holder(path) is None:
        return None
    return datetime.fromtimestamp(path.stat().st_mtime, UTC)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _written_pid(path: Path) -> int | None:
    text = path.read_text().strip()
    return int(text) if text.isdecimal() else None
