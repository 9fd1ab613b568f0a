"""Pipelines for benchmarks: one that runs while a benchmark goes on, and one whose changes wait to be drained.

All are real: `penstock run` in a process of its own, on a pipeline file. What Java's heap holds after each collection
is in `gc-*.log` in the pipeline's folder (`watch.heap_after_collections`).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from penstock.source.postgres.connect import connect
from watch import Usage, Watch, busy_seconds

STOP_SECONDS = 180


def write_pipeline(folder: Path, source: str | Mapping[str, str], /, **settings: Any) -> Path:
    """The file of pipeline `bench` (unless `name` says otherwise), of a source's URL or of several by name."""
    folder.mkdir(parents=True, exist_ok=True)
    sources: dict[str, Any] = (
        {"source": {"type": "postgres", "url": source}}
        if isinstance(source, str)
        else {"sources": [{"name": name, "type": "postgres", "url": url} for name, url in source.items()]}
    )
    content = {
        "version": 1,
        "name": "bench",
        "tables": [{"match": "public.*"}],
        "destinations": [{"type": "iceberg", "warehouse": str(folder / "warehouse")}],
        **sources,
        **settings,
    }
    file = folder / "pipeline.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def start(file: Path, *arguments: str) -> subprocess.Popen[str]:
    """`penstock run` on the file; its standard error is a pipe."""
    option = f"-Xlog:gc:file={file.parent}/gc-%p.log:uptime"
    told = " ".join(filter(None, (os.environ.get("JAVA_TOOL_OPTIONS"), option)))
    return subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", "run", str(file), "--log-level", "debug", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"JAVA_TOOL_OPTIONS": told},
    )


class Run:
    """A `penstock run` that works while a benchmark goes on; `applied` has what it says of each batch, `holds` the
    seconds for which batches waited for maintenance: each time that was longer than before, and all of 2 s and more.
    """

    def __init__(self, folder: Path, url: str, **settings: Any) -> None:
        self.folder = folder
        self.file = write_pipeline(folder, url, **settings)
        self.applied: list[dict[str, float]] = []
        self.holds: list[float] = []
        self.said: list[str] = []
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Run:
        self._process = start(self.file)
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def changes(self) -> int:
        """Those applied since the start."""
        return int(sum(one["changes"] for one in self.applied))

    def await_joined(self, tables: int, seconds: float = 900) -> None:
        """Until that many tables have been copied and stream."""
        self.wait_for(lambda: self._joined() >= tables, f"{tables} tables", seconds)

    def await_applied(self, changes: int, seconds: float = 900) -> None:
        """Until that many changes have been applied since the start."""
        self.wait_for(lambda: self.changes >= changes, f"{changes} changes", seconds)

    def wait_for(self, holds: Callable[[], bool], what: str, seconds: float) -> None:
        """Until it holds. Ends the benchmark, with the run's last words, when the run ends or the time is over."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"waited in vain for {what}:\n" + "".join(self.said[-20:]))
            time.sleep(0.02)

    def _joined(self) -> int:
        return sum(" table joined " in line for line in self.said)

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self.said.append(line)
            if " applied " in line:
                figures = re.findall(r"(changes|tables|seconds)=([\d.]+)", line)
                self.applied.append({name: float(value) for name, value in figures})
            elif " batch held up " in line:
                self.holds += map(float, re.findall(r"seconds=([\d.]+)", line))


@dataclass(frozen=True)
class Drained:
    """`seconds` are from the moment when capture reads the slot (the start of Spark lies within), `whole` from the
    start of the process; both until the last commit. `steps` says what happened when in between, and `busy` how many
    CPU seconds the machine and its servers took meanwhile."""

    seconds: float
    whole: float
    changes: int
    rows_copied: int
    roles: dict[str, Usage]
    steps: tuple[tuple[float, str], ...] = ()
    busy: dict[str, float] = field(default_factory=dict)


def run_once(file: Path, seconds: float = 3600, *, idle: bool = False) -> Drained:
    """`penstock run --once`, bounded in time. Ends the benchmark, with the run's last words, when it fails, or does
    nothing although it is not `idle`."""
    began_whole = time.monotonic()
    process = start(file, "--once")
    assert process.stderr is not None
    bound = threading.Timer(seconds, process.kill)
    bound.daemon = True  # an error here must not wait for it
    bound.start()
    began = ended = 0.0
    changes, rows, said = 0, 0, []
    steps: list[tuple[float, str]] = []
    before, after = busy_seconds(), dict[str, float]()
    with Watch(process.pid) as watch:
        for line in process.stderr:
            said.append(line)
            steps.append((time.monotonic(), _without_time(line)))
            if "capture started" in line and not began:
                began = time.monotonic()
                before = busy_seconds()
            elif " applied " in line:
                ended = time.monotonic()
                changes += int(line.partition("changes=")[2].split()[0])
            elif " published " in line and "events=" in line:
                ended, after = time.monotonic(), busy_seconds()
                changes += int(line.partition("events=")[2].split()[0])
            elif "stream begins" in line:
                ended = time.monotonic()
            elif re.search(r"\bcopied +.*\brows=\d+", line):
                ended = time.monotonic()
                rows += int(line.partition("rows=")[2].split()[0])
        process.wait()
    bound.cancel()
    if process.returncode or not (ended or idle):
        raise SystemExit("penstock run --once failed:\n" + "".join(said[-30:]))
    told = tuple((round(at - began, 3), what) for at, what in steps if began <= at <= ended)
    busy = {name: round(seconds - before.get(name, 0.0), 2) for name, seconds in after.items()}
    return Drained(ended - began, ended - began_whole, changes, rows, watch.roles, told, busy)


def _without_time(line: str) -> str:
    """What a line of the log says, without the time and its blanks."""
    return " ".join(line.split()[1:])


class Backlog:
    """A pipeline that has copied its tables, and whose slots keep everything from then on: each drain begins there."""

    def __init__(self, folder: Path, source: str | Mapping[str, str], name: str = "bench", **settings: Any) -> None:
        self._work, self._before = folder / name, folder / f"{name}-before"
        self.file = write_pipeline(self._work, source, name=name, **settings)
        self.slots = (  # with the URL of each
            {f"penstock_{name}": source}
            if isinstance(source, str)
            else {f"penstock_{name}_{one}": url for one, url in source.items()}
        )
        self.copied = run_once(self.file)
        shutil.copytree(self._work, self._before)
        for slot, url in self.slots.items():
            copy_slot(url, slot, f"kept_{slot}")

    def drain(self, seconds: float = 3600) -> Drained:
        """Applies all that has waited since the pipeline's copy, from the same state as any time before."""
        shutil.rmtree(self._work)
        shutil.copytree(self._before, self._work)
        for slot, url in self.slots.items():
            copy_slot(url, f"kept_{slot}", slot)
        return run_once(self.file, seconds)

    def remove(self) -> None:
        """Lets go of the slots and the files."""
        for slot, url in self.slots.items():
            for one in (slot, f"kept_{slot}"):
                drop_slot(url, one)
        for folder in (self._work, self._before):
            shutil.rmtree(folder)


def copy_slot(url: str, slot: str, copy: str) -> None:
    """Makes `copy` stand where `slot` stands."""
    drop_slot(url, copy)
    with connect(url) as connection:
        connection.execute("select pg_copy_logical_replication_slot(%s, %s)", (slot, copy))


def drop_slot(url: str, slot: str) -> None:
    with connect(url) as connection:
        found = "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = %s"
        connection.execute(found, (slot,))
