"""`python`: a function of the user's, in a process of its own with limits on time and memory.

The function runs in a child of the executor's worker, which is kept for the batches that follow. A call that takes too
long, uses too much memory or kills its process costs that child and nothing else: the next call starts another.
`worker.py` is the child's side, `exchange.py` what they send one another.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from typing import IO

from penstock.errors import ProcessorFailed
from penstock.processors.batch import EventBatch, StepFailed
from penstock.processors.exchange import FAILED, FRAME, READY, from_octets, to_octets

START_SECONDS = 60.0  # to start Python and import the function's module


@dataclass(frozen=True)
class PythonStep:
    """`function` is `module:name`, to be found in `folder` (the pipeline file's) or where Python finds modules."""

    function: str
    folder: str
    rows: bool
    adds: tuple[str, ...]
    seconds: float
    memory: int
    most: int = 4096  # events per call, so that the limit on time does not depend on the batch

    def check(self) -> None:
        """Start the function's process. ProcessorFailed when it cannot be found or imported here."""
        _child_of(self).start()

    def run(self, batch: EventBatch) -> EventBatch:
        return from_octets(batch, _child_of(self).call(to_octets(batch), self.seconds), self.adds)


class _Child:
    """The process that runs one function. One call at a time."""

    def __init__(self, step: PythonStep) -> None:
        self._step, self._lock = step, threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._lock:
            self._started()

    def call(self, given: bytes, seconds: float) -> bytes:
        """Return the function's answer. StepFailed when it raises, takes too long or dies."""
        with self._lock:
            process = self._started()
            try:
                assert process.stdin is not None
                process.stdin.write(FRAME.pack(READY, len(given)) + given)
                process.stdin.flush()
                kind, answer = self._answer(process, seconds)
            except (BrokenPipeError, EOFError) as error:
                code = self._end()
                raise StepFailed("died", f"its process ended with {code}; was it out of memory?") from error
            except TimeoutError as error:
                self._end()
                raise StepFailed("too-slow", f"it took longer than {seconds:g} s", slow=True) from error
        if kind == FAILED:
            said = json.loads(answer)
            raise StepFailed(said["code"], said["reason"])
        return answer

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        path = os.pathsep.join([self._step.folder, *(one for one in sys.path if one)])
        quiet = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock.processors.worker", json.dumps(asdict(self._step))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **quiet, "PYTHONPATH": path},
        )
        try:
            kind, answer = self._answer(self._process, START_SECONDS)
        except (EOFError, TimeoutError) as error:
            self._end()
            raise self._unfit(f"its process did not start within {START_SECONDS:g} s, or ended") from error
        if kind == FAILED:
            self._end()
            raise self._unfit(json.loads(answer)["reason"])
        return self._process

    def _unfit(self, reason: str) -> ProcessorFailed:
        return ProcessorFailed(
            f"processor {self._step.function}: {reason}",
            "Every executor must find the function: put its module beside the pipeline file or install it; then "
            "`penstock retry`",
        )

    def _answer(self, process: subprocess.Popen[bytes], seconds: float) -> tuple[bytes, bytes]:
        assert process.stdout is not None
        until = time.monotonic() + seconds
        kind, length = FRAME.unpack(_read(process.stdout, FRAME.size, until))
        return kind, _read(process.stdout, length, until)

    def _end(self) -> str:
        """Kill the process, and say how it ended."""
        process, self._process = self._process, None
        if process is None:
            return "nothing"
        code = process.poll()
        if code is None:
            process.kill()
            code = process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def close(self) -> None:
        with self._lock:
            self._end()


def _read(pipe: IO[bytes], length: int, until: float) -> bytes:
    found = bytearray()
    while len(found) < length:
        left = until - time.monotonic()
        if left <= 0 or not select.select([pipe], [], [], left)[0]:
            raise TimeoutError
        some = os.read(pipe.fileno(), min(length - len(found), 2**20))
        if not some:
            raise EOFError
        found += some
    return bytes(found)


_CHILDREN: dict[tuple[int, PythonStep], _Child] = {}
_STARTING = threading.Lock()


def _child_of(step: PythonStep) -> _Child:
    """Return this process's child for a function: one that was forked off must not share its parent's."""
    with _STARTING:
        return _CHILDREN.setdefault((os.getpid(), step), _Child(step))


def close_children() -> None:
    """End the children of this process. They end by themselves when it does."""
    with _STARTING:
        own = [child for (pid, _), child in _CHILDREN.items() if pid == os.getpid()]
        _CHILDREN.clear()
    for child in own:
        child.close()
