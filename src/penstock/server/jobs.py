"""Commands that take long (verify, query) run as processes of their own, with a limit of time.

They are the very commands of the command line, so there is one truth; and Spark, which some of them start, never runs
in the server's process. A job is remembered for a while after it has ended.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from penstock.control.text.secrets import scrub
from penstock.server.problems import Refused

MOST_AT_ONCE = 2  # each may start Spark
KEPT = 200
MOST_OUTPUT = 64 * 2**20
FOUND_SOMETHING = 1  # the exit code of a `verify` that found a difference
COMMAND = (sys.executable, "-m", "penstock.cli.main")


@dataclass
class Job:
    """`result` is what the command printed, as JSON. `problem` is why it failed: code and message."""

    id: str
    kind: str
    pipeline: str
    asked: datetime
    by: str
    state: Literal["running", "done", "failed"] = "running"
    ended: datetime | None = None
    result: Any = None
    code: str = ""
    message: str = ""
    lines: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "kind": self.kind,
            "pipeline": self.pipeline,
            "state": self.state,
            "asked": self.asked.isoformat(),
            "by": self.by,
            "ended": self.ended.isoformat() if self.ended else None,
            "progress": self.lines[-1] if self.lines else None,
            "result": self.result,
            "error": None if self.state != "failed" else {"code": self.code, "message": self.message, "solution": ""},
        }


class Jobs:
    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._command = tuple(command)
        self._jobs: dict[str, Job] = {}
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._guard = threading.Lock()
        self._closed = False

    def begin(self, kind: str, pipeline: str, arguments: Sequence[str], *, seconds: float, by: str) -> Job:
        """Start a command in the background. Refused when too many run already, or for text that no command can get."""
        if any("\0" in word or not _is_unicode(word) for word in arguments):
            raise Refused(422, "INVALID_REQUEST", "a text has a character that is none", "Leave it out")
        job = Job(uuid.uuid4().hex[:12], kind, pipeline, datetime.now(UTC), by)
        with self._guard:
            running = [one for one in self._jobs.values() if one.state == "running"]
            if self._closed or len(running) >= MOST_AT_ONCE:
                raise Refused(
                    429, "TOO_MANY_JOBS", f"{len(running)} jobs run already", "Wait until one of them has ended"
                )
            for old in list(self._jobs)[: max(0, len(self._jobs) - KEPT + 1)]:
                if self._jobs[old].state != "running":
                    del self._jobs[old]
            self._processes[job.id] = process = self._started(arguments)
            self._jobs[job.id] = job
        threading.Thread(target=self._follow, args=(job, process, seconds), daemon=True).start()
        return job

    def get(self, pipeline: str, number: str) -> Job:
        with self._guard:
            job = self._jobs.get(number)
        if job is None or job.pipeline != pipeline:
            raise Refused(404, "JOB_NOT_FOUND", f"there is no job {number}", "Jobs end with the server that ran them")
        return job

    def of(self, pipeline: str) -> list[Job]:
        with self._guard:
            return [job for job in self._jobs.values() if job.pipeline == pipeline]

    def wait(self, job: Job, seconds: float) -> None:
        """Wait until a job has ended, or the time is up."""
        deadline = time.monotonic() + seconds
        while job.state == "running" and time.monotonic() < deadline:
            time.sleep(0.02)

    def close(self) -> None:
        with self._guard:
            self._closed = True
            processes = list(self._processes.values())
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()

    def _started(self, arguments: Sequence[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self._command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _follow(self, job: Job, process: subprocess.Popen[str], seconds: float) -> None:
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        assert process.stderr is not None
        errors = process.stderr
        reader = threading.Thread(target=lambda: job.lines.extend(map(_clean, errors)), daemon=True)
        reader.start()
        assert process.stdout is not None
        said = process.stdout.read(MOST_OUTPUT)
        code = process.wait()
        timer.cancel()
        reader.join(timeout=5)
        process.stdout.close()
        if not reader.is_alive():  # else a child of the command holds it still
            errors.close()
        with self._guard:
            self._processes.pop(job.id, None)
        self._end(job, code, said)

    @staticmethod
    def _end(job: Job, code: int, said: str) -> None:
        try:
            job.result = json.loads(said) if said.strip() else None
        except ValueError:
            job.result = None
        job.ended = datetime.now(UTC)
        if code == 0 or (code == FOUND_SOMETHING and job.result is not None):
            job.state = "done"
        else:
            last = job.lines[-1] if job.lines else ""
            is_error = last.startswith("penstock: [")
            job.code = last[len("penstock: [") :].partition("]")[0].replace("-", "_").upper() if is_error else "ENDED"
            job.message = last.partition("] ")[2] if is_error else f"the command was ended: {_how(code)}"
            job.state = "failed"


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can say
        return False
    return True


def _clean(line: str) -> str:
    return scrub(line.rstrip("\n"))


def _how(code: int) -> str:
    return "it took longer than it may" if code < 0 else f"exit code {code}"
