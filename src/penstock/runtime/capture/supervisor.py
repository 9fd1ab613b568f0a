"""Keep one capture process alive beside the pipeline, and know when it must not be started again.

The process is `penstock.runtime.capture.process`; it holds the read end of a pipe whose other end is ours, so it goes
when we go, however we end. It reports as JSON lines on its standard output. What it says becomes the health of the
component `capture` in the state store.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import structlog

from penstock import errors
from penstock.config.model import Pipeline
from penstock.errors import GapError, PenstockError
from penstock.runtime.capture import process as capture_process
from penstock.runtime.capture.process import SHARED, WAIT
from penstock.runtime.meter import INVALIDATIONS, METER, RECONNECTS
from penstock.runtime.process.backoff import Backoff
from penstock.runtime.process.log_context import inherited
from penstock.runtime.process.outage import Outage
from penstock.state.store import Health, HealthReports, HealthState

LOG = structlog.get_logger("capture")
STOP_SECONDS = 30.0
SETTLED_AFTER = 10.0
RUN_AGAIN = "Run again: every table is copied again"


class CaptureSupervisor:
    """Start with `start()`, end with `stop()`. `failure` is set when capture ended for a reason no restart can fix."""

    def __init__(
        self,
        pipeline: Pipeline,
        state: HealthReports,
        *,
        shared: bool = False,
        waiting: subprocess.Popen[str] | None = None,
    ) -> None:
        """`pipeline` and `state` are as the source sees them. `shared`: the log may be another run's one day.

        `waiting` is a process that `waiting_capture` has started.
        """
        self._pipeline, self._state, self._shared, self._waiting = pipeline, state, shared, waiting
        self._stopping = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self.reading: frozenset[str] | None = None  # what capture reads, once it has started
        self.position: str | None = None  # from where on, in the source's own notation
        self._outage = Outage("capture", "capture")
        self.failure: PenstockError | None = None
        self.verified = False  # capture has found the log's end in the server's own past

    def start(self) -> None:
        self._thread = threading.Thread(target=inherited(self._supervise), name="capture-supervisor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let capture seal what it holds, and wait for its end."""
        self._stopping.set()
        if self._thread is None:
            return
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
        self._thread.join(STOP_SECONDS)
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()

    def _supervise(self) -> None:
        backoff = Backoff(longest=10.0)
        while not self._stopping.is_set():
            began = datetime.now(UTC)
            last = self._run_once()
            if self._stopping.is_set():
                break
            if (datetime.now(UTC) - began).total_seconds() > SETTLED_AFTER:
                backoff.reset()
            if not self._pipeline.source.keeps_changes and self.position is not None and not isinstance(last, GapError):
                last = GapError("capture ended, and with it what the source kept for this run", RUN_AGAIN)
            if last is not None and not _passes(last):
                self.failure = last
                if isinstance(last, GapError):
                    METER.count(INVALIDATIONS, source=self._pipeline.source.name)
                self._tell("failed", last.what, last.solution, backoff.attempts, last.code)
                LOG.error("capture failed", what=last.what, solution=last.solution)
                return
            what = last.what if last else "capture ended unexpectedly"
            self._tell("retrying", what, last.solution if last else "", backoff.attempts + 1, last.code if last else "")
            METER.count(RECONNECTS, source=self._pipeline.source.name)
            backoff.wait(self._stopping)
        self._tell("stopped", "", "", 0)

    def _run_once(self) -> PenstockError | None:
        """Run the process to its end, and return the error that it reported, if any."""
        self._process, self._waiting = self._waiting or _started(arguments(self._pipeline, shared=self._shared)), None
        failure: PenstockError | None = None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # it has ended, and is started again
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        if self._stopping.is_set():
            self._process.terminate()
        for line in self._process.stdout:
            failure = self._take(line) or failure
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
        return failure

    def _take(self, line: str) -> PenstockError | None:
        try:
            report: dict[str, Any] = json.loads(line)
        except json.JSONDecodeError:
            LOG.warning("output of capture", line=line.strip())
            return None
        match report.get("event"):
            case "started":
                self.reading = frozenset(report.get("reading", ()))
                self.position = str(report.get("position"))
                self._tell("ok", f"reading from {self.position}", "", 0)
                LOG.info("capture started", position=self.position)
            case "verified":
                self.verified = True
            case "waiting":
                what, solution = str(report.get("error", "")), str(report.get("solution", ""))
                self._tell("retrying", what, solution, int(report.get("attempts", 1)))
            case "sealed" if self._outage.since is not None:
                self._tell("ok", "reading", "", 0)
            case "ignored":
                LOG.warning(
                    "logical messages ignored, not signed by the DDL trigger",
                    messages=report.get("messages"),
                    trigger="trusted" if report.get("trusted") else "not trusted, see penstock check",
                )
            case "failed":
                return reported_error(report)
        return None

    def _tell(self, state: HealthState, message: str, solution: str, attempts: int, code: str = "") -> None:
        since = datetime.now(UTC)
        if state == "retrying":
            since = self._outage.note(message, solution)
        elif state == "ok":
            self._outage.end()
        try:
            self._state.set_health("capture", Health(state, since, message, solution, attempts, code))
        except errors.StateError as error:
            LOG.warning("health not recorded", what=error.what)


def waiting_capture(pipeline: Pipeline) -> subprocess.Popen[str]:
    """Start a capture that waits with everything loaded, for a run that may take over. `pipeline` as a source's."""
    return _started([*arguments(pipeline, shared=True), WAIT])


def _started(given: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", capture_process.__name__, *given],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def arguments(pipeline: Pipeline, *, shared: bool = False) -> list[str]:
    """Return the file and, if it has a list of sources, which of them."""
    return [str(pipeline.file), *([SHARED] * shared), *([pipeline.source.name] if pipeline.is_scoped else [])]


def _passes(error: PenstockError) -> bool:
    """Return whether it may go away by itself.

    So may another capture that holds the log: it ends with its own driver.
    """
    return error.retry.is_automatic or isinstance(error, errors.LockedError)


def reported_error(report: dict[str, Any]) -> PenstockError:
    """Return the error that another process reported, of its own kind again."""
    kind = getattr(errors, str(report.get("kind")), PenstockError)
    if not (isinstance(kind, type) and issubclass(kind, PenstockError)):
        kind = PenstockError
    return kind(str(report.get("what", "")), str(report.get("solution", "")))
