"""penstock from outside, as a user has it: a pipeline file, its commands, and a `penstock run` that a test may kill.

Everything goes through the command line. Every process carries a mark in its environment, so that a test can say which
processes a run left behind, whatever sessions and groups they made for themselves.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from databases import Database
from penstock.config.load import load
from penstock.model.table_state import State
from penstock.state.sql import find_store
from slowness import slowness

PENSTOCK = (sys.executable, "-m", "penstock.cli.main")
MARK = "PENSTOCK_TEST_MARK"
START_SECONDS = 180.0
STOP_SECONDS = 120.0
DRAIN_SECONDS = 240.0
MOST_SLOWNESS = 4.0


def await_condition(holds: Callable[[], bool], what: str, seconds: float, every: float = 0.03) -> None:
    """Returns as soon as the condition holds; fails the test when it does not in time. Those are seconds of a machine
    of its own: where other programs want the same processors, they are as much longer as the wait for a processor is.
    """
    began, measured = time.monotonic(), [1.0]
    while not holds():
        waited = time.monotonic() - began
        if waited > seconds * min(sum(measured) / len(measured), MOST_SLOWNESS):
            raise AssertionError(f"after {waited:.0f} s still waiting for: {what}")
        if waited > seconds / 2 + len(measured) - 1:  # once a second, when half of the time is over
            measured.append(slowness())
        time.sleep(every)


@dataclass
class PipelineFile:
    """A pipeline.yaml in a folder of its own, and what penstock keeps beside it."""

    folder: Path
    database: Database
    settings: dict[str, Any]
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.settings["name"])

    @property
    def path(self) -> Path:
        return self.folder / "pipeline.yaml"

    @property
    def warehouse(self) -> Path:
        return self.folder / "warehouse"

    @property
    def home(self) -> Path:
        return self.folder / f"penstock-{self.name}"

    @property
    def log(self) -> Path:
        return self.home / "log"

    @property
    def state(self) -> Path:
        return self.folder / "state.db"

    @property
    def state_url(self) -> str | Path:
        """Where the state is: a file, or a URL if the test says so."""
        where = str(self.settings["state"])
        return where if "://" in where else self.state

    @property
    def slot(self) -> str:
        return f"penstock_{self.name}"

    @property
    def failpoint(self) -> Path:
        return self.folder / "failpoint"

    def write(self) -> None:
        self.path.write_text(yaml.safe_dump(self.settings, sort_keys=False, allow_unicode=True))

    def arm(self, name: str, nth: int = 1, send: signal.Signals = signal.SIGKILL) -> None:
        """The next process that reaches the failpoint dies there, or gets another signal. Whole or not at all, for it
        is read all the time."""
        unready = self.failpoint.with_suffix(".unready")
        unready.write_text(f"{name} {nth} {send.name}")
        unready.replace(self.failpoint)

    def fired(self) -> bool:
        return not self.failpoint.exists()

    def full_environment(self, mark: str) -> dict[str, str]:
        ours = {MARK: mark, "PENSTOCK_FAILPOINT_FILE": str(self.failpoint), "COLUMNS": "200"}
        return {**os.environ, **ours, **self.environment}

    def command(self, *arguments: str, seconds: float = 120.0) -> subprocess.CompletedProcess[str]:
        """One command to its end; `FILE` among the arguments stands for the pipeline file."""
        return subprocess.run(
            [*PENSTOCK, *(str(self.path) if word == "FILE" else word for word in arguments)],
            env=self.full_environment(uuid.uuid4().hex),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )

    def run_once(self, *options: str, seconds: float = 120.0) -> None:
        done = self.command("run", "FILE", "--once", *options, seconds=seconds)
        assert done.returncode == 0, done.stderr[-4000:]

    def status(self) -> dict[str, Any]:
        done = self.command("status", "FILE", "--json")
        assert done.returncode == 0, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    def component(self, name: str) -> dict[str, Any]:
        """How a component fares, as `status --json` says."""
        (found,) = [component for component in self.status()["components"] if component["name"] == name]
        return dict(found)

    def processed(self) -> int | None:
        """How far the destination has processed the log, as the state store says; None while a table is copied."""
        store = find_store(self.state_url)
        if store is None:
            return None
        try:
            processed = store.processed("lake")  # first: what a batch makes of its tables is recorded before its end
            unsettled = [
                table
                for table, status in store.table_status("lake").items()
                if status.state is not State.READY
                and (status.state is not State.ERRORED or status.tried_again_by_itself)
            ]
            followed = load(self.path) if unsettled else None
            settled = followed is None or all(followed.feed(table) is None for table in unsettled)
            return processed if settled else None
        finally:
            store.close()

    def slot_state(self) -> Mapping[str, int]:
        """The slot's confirmed position and the WAL it holds back, in bytes."""
        with self.database.connect() as connection:
            row = connection.execute(
                "select confirmed_flush_lsn - '0/0'::pg_lsn, pg_current_wal_lsn() - restart_lsn "
                "from pg_replication_slots where slot_name = %s",
                (self.slot,),
            ).fetchone()
        assert row is not None, f"slot {self.slot} is not there"
        return {"confirmed": int(row[0]), "retained": int(row[1])}

    def await_confirmed(self, seconds: float = 30.0) -> int:
        """Waits until the slot has passed everything that was written before this call; gives where it then is."""
        target = self.database.flush_position()
        await_condition(lambda: self.slot_state()["confirmed"] >= target, f"the slot to reach {target:x}", seconds)
        return self.slot_state()["confirmed"]


class Running:
    """A `penstock run` (or another command that stays). Its output goes to a file that failures quote."""

    def __init__(self, pipeline: PipelineFile, arguments: Sequence[str] = ("run", "FILE")) -> None:
        self.pipeline = pipeline
        self.mark = uuid.uuid4().hex
        self.output = pipeline.folder / f"output-{self.mark[:8]}.log"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [*PENSTOCK, *(str(pipeline.path) if word == "FILE" else word for word in arguments)],
                env=pipeline.full_environment(self.mark),
                cwd=pipeline.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def tail(self) -> str:
        return self.text()[-4000:]

    def await_text(self, text: str, seconds: float = START_SECONDS) -> None:
        def seen_or_ended() -> bool:
            return text in self.text() or self.process.poll() is not None

        try:
            await_condition(seen_or_ended, f"`{text}` in the output", seconds)
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.tail()}") from None
        assert text in self.text(), f"ended with {self.process.returncode} before `{text}`:\n{self.tail()}"

    def await_streaming(self) -> None:
        self.await_text("streaming")

    def drain(self, seconds: float = DRAIN_SECONDS) -> None:
        """Waits until everything that was written before this call has been processed."""
        target = self.pipeline.database.flush_position()

        def drained_or_ended() -> bool:
            return (self.pipeline.processed() or 0) >= target or self.process.poll() is not None

        try:
            await_condition(drained_or_ended, f"processed position {target:x}", seconds)
        except AssertionError as late:
            raise AssertionError(f"{late}, is {self.pipeline.processed() or 0:x}\n{self.tail()}") from None
        assert self.process.poll() is None, f"ended with {self.process.returncode} while draining:\n{self.tail()}"

    def members(self) -> list[psutil.Process]:
        """Every living process that descends from this run."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def captures(self) -> list[psutil.Process]:
        found = []
        for process in self.members():
            with suppress(psutil.NoSuchProcess):
                if "penstock.runtime.capture.process" in process.cmdline():
                    found.append(process)
        return found

    def capture(self) -> psutil.Process:
        found: list[psutil.Process] = []

        def alone() -> bool:
            found[:] = self.captures()
            return len(found) == 1

        await_condition(alone, "one capture process", 30)
        return found[0]

    def assert_nothing_left(self, seconds: float = 15.0) -> None:
        def gone() -> bool:
            return not self.members()

        try:
            await_condition(gone, "every process of the run to end", seconds)
        except AssertionError as late:
            names = [" ".join(process.cmdline())[:160] for process in self.members()]
            raise AssertionError(f"{late}; left: {names}\n{self.tail()}") from None

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Asks it to end, as a user does; it must drain, end with 0 and leave nothing behind."""
        assert self.process.poll() is None, f"had ended with {self.process.returncode}:\n{self.tail()}"
        self.process.send_signal(number)
        try:
            code = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end within {STOP_SECONDS:g} s:\n{self.tail()}") from None
        assert code == 0, f"ended with {code}:\n{self.tail()}"
        self.assert_nothing_left()

    def kill(self) -> None:
        """SIGKILL to the driver alone; everything it started must go by itself."""
        self.process.kill()
        self.process.wait(STOP_SECONDS)
        self.assert_nothing_left()

    def await_end(self, code: int, seconds: float = STOP_SECONDS) -> str:
        """Waits until it ends by itself, with this exit code and nothing left behind; gives its last line."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end within {seconds:g} s:\n{self.tail()}") from None
        assert self.process.returncode == code, f"ended with {self.process.returncode}:\n{self.tail()}"
        self.assert_nothing_left()
        return self.text().strip().splitlines()[-1]

    def await_killed(self, seconds: float = 60.0) -> None:
        """Waits for the driver's death at a failpoint; everything it started must go by itself."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver did not die:\n{self.tail()}") from None
        assert code == -signal.SIGKILL, f"ended with {code}, not by SIGKILL:\n{self.tail()}"
        self.assert_nothing_left()

    def clean_up(self) -> None:
        """Whatever happened in the test, nothing of the run outlives it."""
        for process in self.members():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(STOP_SECONDS)


@contextmanager
def running(pipeline: PipelineFile, *options: str) -> Iterator[Running]:
    """A pipeline that streams. After a block that went well it is stopped by SIGTERM, and must end well."""
    run = Running(pipeline, ("run", "FILE", *options))
    try:
        run.await_streaming()
        yield run
        if run.process.poll() is None:
            run.stop()
    finally:
        run.clean_up()


PipelineFactory = Callable[..., PipelineFile]


def make_pipeline(folder: Path, database: Database, **changes: Any) -> PipelineFile:
    """Writes the file. `changes` replace top-level keys, or are merged into those that are mappings."""
    settings: dict[str, Any] = {
        "version": 1,
        "name": database.name,
        "source": {"type": "postgres", "url": database.url},
        "tables": [{"match": "public.*"}, {"match": "Odd Schema.*"}],
        "destinations": [
            {
                "name": "lake",
                "type": "iceberg",
                "warehouse": "./warehouse",
                "maintenance": {
                    "expire_every": 4,
                    "keep_snapshots": 3,
                    "keep_for": "1s",
                    "compact_files": 4,
                    "advance_idle_every": "1s",
                },
            }
        ],
        "log": {"segment_bytes": "256KiB", "segment_age": "50ms", "idle_every": "200ms"},
        "batch": {"max_age": "100ms"},
        "state": "./state.db",
        "spark": {"spark.driver.memory": "1g"},
    }
    for key, value in changes.items():
        before = settings.get(key)
        settings[key] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value
    pipeline = PipelineFile(folder, database, settings)
    pipeline.write()
    return pipeline
