"""Capture in a thread of the test, between a real database and a log in a folder; and the same as a process."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from databases import Database
from penstock.changelog.log import ChangeLog
from penstock.changelog.writer import SegmentWriter
from penstock.model.change import RawChanges
from penstock.runtime.capture.process import LogSink
from penstock.source.postgres.capture import Capture, CaptureSettings
from penstock.source.postgres.connect import connect
from penstock.source.postgres.slot import SlotState, create_slot, drop_slot, slot_state
from running import await_condition

SLOT, PUBLICATION = "capture_test", "capture_test"
SECONDS = 30.0


@dataclass
class CaptureBench:
    """A database with a publication and a slot, and the log that is captured from it."""

    database: Database
    log: ChangeLog
    settings: dict[str, Any] = field(default_factory=dict)
    max_bytes: int | None = None

    @property
    def slot(self) -> str:
        return f"{SLOT}_{self.database.name}"

    def prepare(self, *statements: str) -> int:
        """Runs the statements, then makes publication (of all tables) and slot; gives the consistent point."""
        self.database.execute(*statements, f"create publication {PUBLICATION} for all tables")
        with connect(self.database.url) as connection:
            return create_slot(connection, self.database.url, self.slot)

    def slot_state(self) -> SlotState:
        with connect(self.database.url) as connection:
            state = slot_state(connection, self.slot)
        assert state is not None
        return state

    def drop_slot(self) -> None:
        """As soon as nobody reads it."""
        await_condition(lambda: self.slot_state().active_pid is None, "the slot to be free", 10)
        with connect(self.database.url) as connection:
            drop_slot(connection, self.slot)

    def move_slot(self) -> None:
        """What somebody else might do with it, as soon as nobody reads it: changes up to now are never sent again."""

        def moved() -> bool:
            try:
                self.database.execute(f"select pg_replication_slot_advance('{self.slot}', pg_current_wal_lsn())")
            except psycopg.errors.ObjectInUse:
                return False
            return True

        await_condition(moved, "the slot to be free", 10, every=0.001)

    def confirmed(self) -> int:
        return self.slot_state().confirmed_flush_lsn or 0

    def capture_settings(self, **changes: Any) -> CaptureSettings:
        values: dict[str, Any] = {
            "url": self.database.url,
            "slot": self.slot,
            "publication": PUBLICATION,
            "segment_bytes": 1 << 20,
            "segment_age": 0.05,
            "idle_every": 0.1,
            **self.settings,
            **changes,
        }
        return CaptureSettings(**values)

    @contextmanager
    def capturing(self, **changes: Any) -> Iterator[Capturing]:
        """Captures while the block runs, then stops and raises what went wrong."""
        capture = Capturing(self, self.capture_settings(**changes))
        capture.thread.start()
        try:
            yield capture
        finally:
            capture.stop.set()
            capture.thread.join(SECONDS)
        assert not capture.thread.is_alive()
        if capture.error is not None:
            raise capture.error

    def capture_all(self, **changes: Any) -> None:
        """Until everything that is in the WAL now is in the log."""
        with self.capturing(**changes) as capture:
            capture.drain()


class Capturing:
    def __init__(self, bench: CaptureBench, settings: CaptureSettings) -> None:
        self.bench = bench
        self.stop = threading.Event()
        self.reports: list[dict[str, Any]] = []
        self.error: BaseException | None = None
        self._settings = settings
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            with SegmentWriter(self.bench.log, self.bench.max_bytes) as writer:
                Capture(self._settings, LogSink(writer, self.bench.log), self.stop, self.reports.append).run()
        except BaseException as error:  # noqa: BLE001  the test's thread raises it
            self.error = error

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [report for report in self.reports if report["event"] == kind]

    def await_event(self, kind: str, count: int = 1) -> None:
        self.await_condition(lambda: len(self.events(kind)) >= count, f"{count} {kind} of {self.reports[-5:]}")

    def await_condition(self, holds: Any, what: str) -> None:
        await_condition(lambda: bool(self.error) or bool(holds()), what, SECONDS)
        if self.error is not None:
            raise self.error

    def drain(self, target: int | None = None) -> None:
        position = self.bench.database.flush_position() if target is None else target
        self.await_condition(lambda: (self.bench.log.end() or 0) >= position, f"the log's end at {position:x}")


class CaptureProcess:
    """`python -m penstock.runtime.capture.process FILE`, with its pipes."""

    def __init__(self, file: Path, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock.runtime.capture.process", str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment or None,
        )

    def await_event(self, kind: str) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            report: dict[str, Any] = json.loads(line)
            if report["event"] == kind:
                return report
        assert self.process.stderr is not None
        raise AssertionError(f"it ended before it said {kind}: {self.process.stderr.read()}")

    def peak_mebibytes(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) / 1024

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


def changes(log: ChangeLog) -> list[RawChanges]:
    return [item for name in log.segments() for item in log.read(name)]


def rows(log: ChangeLog, table: str | None = None) -> list[dict[str, Any]]:
    """Every raw row, with its `table` and `schema`, in stream order."""
    found = [
        {**row, "table": item.schema.table.name, "schema": item.schema}
        for item in changes(log)
        for row in item.batch.to_pylist()
        if table in (None, item.schema.table.name)
    ]
    return sorted(found, key=lambda row: (row["commit_position"], row["ordinal"]))


def first_values(log: ChangeLog, table: str | None = None) -> list[str]:
    """Of each insert, the first column's text."""
    values = []
    for row in rows(log, table):
        message = row["data"]
        if message[:1] == b"I":
            (length,) = struct.unpack_from(">i", message, 9)
            values.append(message[13 : 13 + length].decode())
    return values
