"""Start, watch and stop the process of one pipeline.

`SupervisedRun` is for `penstock serve`: each pipeline is a process of its own, in a session of its own, so that it
outlives a server that is killed. The pipeline's lock says whether a run is up, whoever started it; the next server
takes such a run over. `OwnRun` is for `penstock run --listen`, where the pipeline is the server's own process.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Literal, Protocol

import structlog

from penstock.config.model import Pipeline
from penstock.control.text.secrets import scrub
from penstock.runtime.process.backoff import Backoff
from penstock.state.lock import held_since, holder

RunStatus = Literal["starting", "running", "stopping", "stopped", "restarting", "failed"]
STABLE_SECONDS = 60.0  # a run that was up this long has started well: the next failure is the first one again
NEEDS_AN_OPERATOR = (1, 2)  # exit codes; any other may pass by itself
MOST_LOG_BYTES = 16 * 2**20
TAIL_BYTES = 16 * 2**10
COMMAND = (sys.executable, "-m", "penstock.cli.main")
LOG = structlog.get_logger("server")
_SAID = re.compile(r"penstock: \[([a-z-]+)\] (.*)")


@dataclass(frozen=True)
class RunView:
    """How a pipeline's process fares. `message` and `code` are of the error that it ended with, if it did."""

    status: RunStatus
    since: datetime
    pid: int | None = None
    restarts: int = 0
    exit_code: int | None = None
    message: str = ""
    code: str = ""
    retry_at: datetime | None = None


class Run(Protocol):
    """The process of one pipeline."""

    @property
    def is_up(self) -> bool:
        """Whether there is a process, whoever started it."""

    def view(self) -> RunView: ...

    def start(self) -> None:
        """Have it run, now and after a failure. One that runs already is fine."""

    def stop(self) -> None:
        """Ask it to finish the batch in flight and end. Returns at once."""


class SupervisedRun:
    """A pipeline's process under supervision. `tick` is called about twice a second by the supervisor's thread."""

    def __init__(
        self,
        pipeline: Pipeline,
        log_file: Path,
        options: Sequence[str] = (),
        *,
        may_start: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._pipeline, self._log_file, self._options = pipeline, log_file, tuple(options)
        self._may_start, self._clock, self._command = may_start, clock, tuple(command)
        self._guard = threading.RLock()
        self._backoff = Backoff(first=1.0, longest=60.0)
        self._process: subprocess.Popen[bytes] | None = None
        self._wanted = False
        self._adopted: int | None = None  # a run that somebody else started
        self._began = self._next_try = 0.0
        self._restarts = 0
        self._view = RunView("stopped", datetime.now(UTC))

    @property
    def is_wanted(self) -> bool:
        return self._wanted

    @property
    def is_up(self) -> bool:
        return self._process is not None or self._adopted is not None

    def view(self) -> RunView:
        return self._view

    def start(self) -> None:
        with self._guard:
            self._wanted = True
            self._backoff.reset()
            self._next_try = 0.0
            self.tick()

    def stop(self) -> None:
        with self._guard:
            self._wanted = False
            pid = self._process.pid if self._process is not None else holder(self._pipeline.home / "lock")
            if pid is None:
                self._show("stopped")
                return
            self._show("stopping", pid=pid)
            try:
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                self._show("stopped")

    def await_end(self, seconds: float) -> bool:
        """Wait until it has ended; False when it has not in time."""
        deadline = self._clock() + seconds
        while self._clock() < deadline:
            self.tick()
            if not self.is_up:
                return True
            time.sleep(0.1)
        return False

    def tick(self) -> None:
        """Look at the process, and start it where that is due."""
        with self._guard:
            if self._process is not None:
                self._look_at_own(self._process)
            else:
                self._look_at_others()
            if self._is_due():
                self._spawn()

    def _look_at_own(self, process: subprocess.Popen[bytes]) -> None:
        code = process.poll()
        if code is None:
            if self._view.status == "starting" and holder(self._pipeline.home / "lock") == process.pid:
                self._show("running", pid=process.pid)
            if self._clock() - self._began > STABLE_SECONDS:
                self._backoff.reset()
            return
        self._process = None
        self._ended(code)

    def _look_at_others(self) -> None:
        """Take over a run that is up, and note that one has gone."""
        lock = self._pipeline.home / "lock"
        pid = holder(lock)
        if pid is not None and pid != self._adopted:
            LOG.info("run taken over", pipeline=self._pipeline.name, pid=pid)
            self._view = RunView("running", held_since(lock) or datetime.now(UTC), pid, self._restarts)
        elif pid is None and self._adopted is not None:
            self._show("restarting" if self._wanted else "stopped")
        self._adopted = pid

    def _is_due(self) -> bool:
        waits = self._view.status == "failed" or self._clock() < self._next_try
        return self._wanted and not self.is_up and not waits and self._may_start()

    def _ended(self, code: int) -> None:
        said, name = self._last_words(), self._pipeline.name
        error_code, message = said if said is not None else ("", "")
        if not self._wanted or code == 0:
            if self._wanted:
                LOG.info("run stopped by somebody else", pipeline=name)
            self._wanted = False
            self._show("stopped", exit_code=code)
            return
        if code in NEEDS_AN_OPERATOR and error_code != "unexpected":
            LOG.error("run failed", pipeline=name, exit_code=code, what=message)
            self._show("failed", exit_code=code, message=message, code=error_code)
            return
        delay = self._backoff.delay
        self._backoff.attempts += 1
        self._next_try = self._clock() + delay
        self._restarts += 1
        LOG.warning("run ended, starting it again", pipeline=name, exit_code=code, seconds=delay, what=message)
        at = datetime.fromtimestamp(time.time() + delay, UTC)
        self._show("restarting", exit_code=code, message=message or _signal_text(code), code=error_code, retry_at=at)

    def _spawn(self) -> None:
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        if self._log_file.exists() and self._log_file.stat().st_size > MOST_LOG_BYTES:
            self._log_file.replace(self._log_file.with_suffix(".log.1"))
        with self._log_file.open("ab") as log:
            self._process = self._started(log)
        self._began = self._clock()
        self._show("starting", pid=self._process.pid)
        LOG.info("run started", pipeline=self._pipeline.name, pid=self._process.pid)

    def _started(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self._command, "run", str(self._pipeline.file), *self._options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # a signal to the server is not one to its pipelines
        )

    def _last_words(self) -> tuple[str, str] | None:
        """Return code and text of the error line that the process ended with."""
        try:
            with self._log_file.open("rb") as log:
                log.seek(0, os.SEEK_END)
                log.seek(max(0, log.tell() - TAIL_BYTES))
                lines = log.read().decode(errors="replace").splitlines()
        except FileNotFoundError:
            return None
        found = _SAID.match(lines[-1]) if lines else None
        return (found[1], scrub(found[2])) if found else None

    def _show(
        self,
        status: RunStatus,
        *,
        pid: int | None = None,
        exit_code: int | None = None,
        message: str = "",
        code: str = "",
        retry_at: datetime | None = None,
    ) -> None:
        now = datetime.now(UTC)
        self._view = RunView(status, now, pid, self._restarts, exit_code, message, code, retry_at)


class OwnRun:
    """The pipeline that runs in this process (`penstock run --listen`)."""

    is_up = True

    def __init__(self) -> None:
        self._since = datetime.now(UTC)
        self._stopping = False

    def view(self) -> RunView:
        return RunView("stopping" if self._stopping else "running", self._since, os.getpid())

    def start(self) -> None:
        """Do nothing: it runs already."""

    def stop(self) -> None:
        self._stopping = True
        os.kill(os.getpid(), signal.SIGTERM)


def _signal_text(code: int) -> str:
    """Say how a process ended that said nothing itself."""
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with exit code {code}"
