"""Whether the cluster under a run still has our application, and executors for its jobs.

Jobs do not find out by themselves: one that nobody runs waits for ever, and while there is none, nobody notices that
the application was ended. So a thread looks, says what jobs wait for, and stops the run when waiting is of no use: a
new application, which whoever restarts the run begins, is then the way on. In local mode there is nothing to look for
but Spark's Java process, whose end nobody notices either while there is nothing to do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import structlog
from py4j.protocol import Py4JError
from pyspark import SparkContext

from penstock.errors import EnvironmentMissing
from penstock.runtime.process.log_context import inherited
from penstock.runtime.process.signals import SignalFlag
from penstock.runtime.spark import java_process
from penstock.runtime.spark.standalone_master import refusals, why_ended

LOG = structlog.get_logger("spark")
LOOK_EVERY = 1.0
TELL_EVERY = 20.0
MASTER_GONE_AFTER = 40.0  # seconds since it was first seen that there is neither a master nor an executor
EXECUTORS_GONE_AFTER = 300.0  # seconds that jobs wait, where there had been executors before
ENDING_SECONDS = 1.0  # Spark fails the jobs of an application that was ended a moment before it says so
GO_ON = "Start penstock again, as a supervisor does: it goes on from where the tables are"


class Application(Protocol):
    """Our application as Spark's driver sees it."""

    def has_lost_java(self) -> bool: ...

    def is_stopped(self) -> bool: ...

    def executors(self) -> int: ...

    def cancel_all_jobs(self) -> None: ...


class ClusterWatch:
    """`settings` are Spark's, `where` the master's address is set, `log` Spark's own.

    The flag `stop` is set when the run has to end; then `ended` says why.
    """

    def __init__(
        self, application: Application, settings: Mapping[str, str], where: str, log: Path, stop: SignalFlag
    ) -> None:
        self._application, self._settings, self._where, self._log, self._stop = application, settings, where, log, stop
        self._master = settings.get("spark.master", "local")
        self._local = self._master.startswith("local")
        self._log_begins = log.stat().st_size if log.exists() else 0
        self._jobs, self._lock = 0, threading.Lock()
        self._had_executors = False
        self._lacking_since: float | None = None  # since when there are no executors
        self._waiting_since: float | None = None  # since when jobs wait for some
        self._master_gone_since: float | None = None
        self._told_at = 0.0
        self._failure: EnvironmentMissing | None = None
        self._done = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch while the block runs, which may be one of several, one after the other.

        Whatever ends it, the end of our application is what is raised.
        """
        self._done.clear()
        threading.Thread(target=inherited(self._work), name="cluster", daemon=True).start()
        try:
            yield
        except Exception as error:
            failure = self.ended()
            if failure is None or failure is error:
                raise
            raise failure from error
        else:
            failure = self.ended()
            if failure is not None:
                raise failure
        finally:
            self._done.set()

    @contextmanager
    def job(self) -> Iterator[None]:
        """Watch a job while the block waits for its tasks. Refused when our application has ended."""
        if self._failure is not None:
            raise self._failure
        with self._lock:
            self._jobs += 1
        try:
            yield
        finally:
            with self._lock:
                self._jobs -= 1

    def ended(self, job_said: str = "") -> EnvironmentMissing | None:
        """Why our application has ended, if it has. With what a job failed with, `job_said`, it looks for a moment."""
        if self._failure is None and self._application.has_lost_java():
            self._failure = java_process.ended()
        deadline = time.monotonic() + (ENDING_SECONDS if job_said and not self._local else 0.0)
        while self._failure is None:
            if self._is_stopped():
                why = why_ended(self._log, self._log_begins) or job_said or "no reason given"
                self._failure = EnvironmentMissing(
                    f"Spark has ended our application on {self._master}: {why}",
                    f"{GO_ON}; {self._log} and the logs of the cluster's master and executors may say more",
                )
            elif time.monotonic() >= deadline:
                break
            else:
                time.sleep(0.05)
        return self._failure

    def look(self, now: float) -> None:
        """One look, at a time in seconds: says what jobs wait for, and gives up where waiting is of no use."""
        if self._application.executors():
            self._had_executors = True
            self._lacking_since = self._waiting_since = self._master_gone_since = None
            return
        if self._lacking_since is None:
            self._lacking_since = self._told_at = now
        if not self._jobs:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = now
        if now - self._told_at >= TELL_EVERY:
            self._told_at = now
            self._tell(now)

    def _tell(self, now: float) -> None:
        gone = refusals(self._settings, self._where)
        if not gone:
            self._master_gone_since = None
        elif self._master_gone_since is None:
            self._master_gone_since = now
        waited = 0.0 if self._waiting_since is None else now - self._waiting_since
        if self._jobs:
            what = "jobs wait: the cluster has given us none"
            LOG.warning("no executors", what=what, master=self._master, seconds=round(waited))
        if gone:
            LOG.warning("master does not answer", what=gone, master=self._master)
        if self._master_gone_since is not None and now - self._master_gone_since >= MASTER_GONE_AFTER:
            self._give_up(f"Spark's master {self._master} ({self._where}) and our executors are gone: {gone}")
        elif self._had_executors and waited >= EXECUTORS_GONE_AFTER:
            self._give_up(f"the cluster of {self._master} has had no executors for us for {waited:.0f} s")

    def _give_up(self, what: str) -> None:
        self._failure = EnvironmentMissing(what, f"See that the cluster's master and workers run. {GO_ON}")

    def _work(self) -> None:
        """Jobs that wait, or begin to, after it was given up are cancelled: their threads would never end."""
        try:
            while not self._done.wait(LOOK_EVERY):
                if self.ended() is None and not self._local:
                    self.look(time.monotonic())
                if self._failure is not None:
                    self._stop.set()
                    if not self._application.has_lost_java() and not self._application.is_stopped():
                        self._application.cancel_all_jobs()
        except (Py4JError, ConnectionError):
            return  # Java has ended: whoever calls it next gets the error

    def _is_stopped(self) -> bool:
        try:
            return self._application.is_stopped()
        except (Py4JError, ConnectionError):
            return False  # so it is something else


class SparkApplication:
    """Ours, of a context: few calls into Java."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._scala = context._jsc.sc()
        self._tracker = self._scala.statusTracker()
        self._java = java_process.process_of(context)

    def has_lost_java(self) -> bool:
        return self._java is not None and self._java.poll() is not None

    def is_stopped(self) -> bool:
        return bool(self._scala.isStopped())

    def executors(self) -> int:
        return len(self._tracker.getExecutorInfos()) - 1  # the driver is one

    def cancel_all_jobs(self) -> None:
        self._context.cancelAllJobs()
