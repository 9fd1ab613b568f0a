"""The pipelines of a server: which files there are, whether each is to run, and how it fares.

A folder is looked through every few seconds, so a file that is put there is started. Whether a pipeline is to run is
kept in the server's own folder and outlives the server; whether it is paused is kept in the pipeline's state store.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import structlog
import yaml

from penstock.config.load import load
from penstock.config.model import Pipeline
from penstock.control.pauses import is_paused
from penstock.control.status.report import Problem, Status
from penstock.control.tables import requests as table_requests
from penstock.control.tables.requests import Tables
from penstock.errors import ConfigError, PenstockError, UsageError
from penstock.runtime.process import log_level
from penstock.runtime.process.log_level import LevelName
from penstock.server.observatory import Observatory
from penstock.server.problems import pipeline_not_found
from penstock.server.runs import COMMAND, OwnRun, Run, RunView, SupervisedRun

TICK_SECONDS = 0.5
SCAN_EVERY = 3.0
FRESH_SECONDS = 0.5  # an answer that is younger is given again
DRAIN_SECONDS = 120.0
WANTED = "wanted.json"  # in the server's own folder
LOG = structlog.get_logger("server")


@dataclass
class Member:
    """One pipeline of the server. `pipeline` is None when its file cannot be read: then `problem` says why."""

    name: str
    file: Path
    pipeline: Pipeline | None
    problem: Problem | None
    run: Run
    observatory: Observatory | None
    stamp: int
    _tables: tuple[float, Tables] | None = None
    _paused: tuple[float, bool] | None = None
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def loaded(self) -> Pipeline:
        """Return the pipeline; ConfigError when its file cannot be read."""
        if self.pipeline is None:
            assert self.problem is not None
            raise ConfigError(self.problem.what, self.problem.solution)
        return self.pipeline

    def status(self) -> Status:
        self.loaded()
        assert self.observatory is not None
        return self.observatory.status()

    def tables(self) -> Tables:
        """Return the tables as `penstock tables` has them, at most half a second old."""
        with self._guard:
            now = time.monotonic()
            if self._tables is None or now - self._tables[0] > FRESH_SECONDS:
                self._tables = now, table_requests.look(self.loaded())
            return self._tables[1]

    def paused(self) -> bool:
        """Whether an operator has paused the whole pipeline."""
        with self._guard:
            now = time.monotonic()
            if self._paused is None or now - self._paused[0] > FRESH_SECONDS:
                self._paused = now, self.pipeline is not None and is_paused(self.pipeline)
            return self._paused[1]

    def changed(self) -> None:
        """Have the next answer looked up again: somebody has just acted."""
        with self._guard:
            self._tables = self._paused = None

    def set_log_level(self, level: LevelName) -> None:
        """Have the pipeline's process log from another level on."""
        if self.pipeline is not None:
            log_level.ask(self.pipeline.home, level)

    @property
    def wanted(self) -> bool | None:
        """Whether it is to run; None when that is only written down, as its file cannot be read."""
        return self.run.is_wanted if isinstance(self.run, SupervisedRun) else None

    @property
    def is_changed(self) -> bool:
        """Whether its file says something else by now than the server knows."""
        return _stamp(self.file) not in (0, self.stamp)

    @property
    def is_failed(self) -> bool:
        """Whether it does not run, although it should, and does not come back by itself."""
        return self.problem is not None or self.run.view().status == "failed"

    @property
    def shown_status(self) -> str:
        """`running`, `paused`, `stopped`, `failed`, …: DeltaForge's words where it has them."""
        if self.problem is not None:
            return "failed"
        run = self.run.view()
        return "paused" if run.status == "running" and self.paused() else run.status


class Fleet:
    """`places` are files and folders. With `supervise` its pipelines are started and watched."""

    def __init__(
        self,
        places: Sequence[Path],
        home: Path,
        run_options: Sequence[str] = (),
        *,
        supervise: bool = True,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._places, self.home, self._options, self._supervise = list(places), home, tuple(run_options), supervise
        self._command = command
        self._members: dict[str, Member] = {}
        self._guard = threading.RLock()
        self.one_edit = threading.Lock()  # held by whoever changes a pipeline file
        self._reloading: set[str] = set()  # pipelines whose file is being changed here
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="supervisor", daemon=True)
        self._scanned = 0.0

    @classmethod
    def of_own_run(cls, pipeline: Pipeline) -> Fleet:
        """Return the fleet of `penstock run --listen`: the one pipeline that this process runs."""
        fleet = cls([pipeline.file], pipeline.home, supervise=False)
        observatory = Observatory(pipeline)
        member = Member(pipeline.name, pipeline.file, pipeline, None, OwnRun(), observatory, _stamp(pipeline.file))
        fleet._members[member.name] = member
        observatory.start()
        return fleet

    @property
    def folder(self) -> Path | None:
        """The folder that new pipelines go to."""
        return next((place for place in self._places if place.is_dir()), None)

    def start(self) -> None:
        self.scan()
        self._thread.start()

    def close(self, drain: bool = True) -> None:
        """End supervision; with `drain` let every run finish its batch and end."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        runs = [(one.name, one.run) for one in self.members() if isinstance(one.run, SupervisedRun)]
        if drain:
            for _, run in runs:
                run.stop()
            deadline = time.monotonic() + DRAIN_SECONDS
            for name, run in runs:
                if not run.await_end(max(0.1, deadline - time.monotonic())):
                    LOG.warning("run has not ended in time; the next server takes it over", pipeline=name)
        for member in self.members():
            if member.observatory is not None:
                member.observatory.close()

    def members(self) -> list[Member]:
        with self._guard:
            return [self._members[name] for name in sorted(self._members)]

    def get(self, name: str) -> Member:
        with self._guard:
            member = self._members.get(name)
            if member is None:
                raise pipeline_not_found(name, sorted(self._members))
            return member

    def begin(self, name: str) -> Member:
        """Have a pipeline run from now on, also after a restart of the server."""
        member = self.get(name)
        if member.problem is not None or (self._supervise and member.is_changed and not member.run.is_up):
            member = self.reload(name)
        member.loaded()
        self._note_wanted(name, True)
        if self._supervise:
            member.run.start()
        return member

    def end(self, name: str) -> Member:
        """Have a pipeline stop, and stay stopped after a restart of the server."""
        member = self.get(name)
        self._note_wanted(name, False)
        member.run.stop()
        return member

    def reload(self, name: str, write: Callable[[], None] = lambda: None) -> Member:
        """Stop a pipeline, do something to its file, read that again and start it as before."""
        member = self.get(name)
        if not self._supervise:
            raise UsageError(
                "this pipeline runs in the server's own process", "Change its file and start `penstock run` again"
            )
        wanted = member.wanted
        with self._guard:
            self._reloading.add(name)
        try:
            if isinstance(member.run, SupervisedRun):
                member.run.stop()
                member.run.await_end(DRAIN_SECONDS)
            write()
        finally:
            with self._guard:
                self._reloading.discard(name)
                self._drop(member)
                taken = self._take(member.file, wanted=wanted)
        return taken

    def forget(self, name: str, remove: Callable[[], None]) -> None:
        """Stop a pipeline and let it leave the server."""
        member = self.get(name)
        self.end(name)
        if isinstance(member.run, SupervisedRun):
            member.run.await_end(DRAIN_SECONDS)
        remove()
        with self._guard:
            self._drop(member)

    def scan(self) -> None:
        """Take in files that are new, let go of those that are gone, and read again those that have changed.

        A file is read again only where no run is up: a run goes on with the file that it was started with.
        """
        with self._guard:
            self._scanned = time.monotonic()
            files = self._files()
            wanted: dict[Path, bool | None] = {}
            has_left = any(member.file not in files for member in self.members())  # its name may be free now
            for member in self.members():
                if member.name in self._reloading:
                    continue
                if member.file not in files:
                    LOG.info("pipeline file is gone, stopping it", pipeline=member.name)
                    member.run.stop()
                    self._drop(member)
                elif (member.is_changed or (member.problem and has_left)) and not member.run.is_up:
                    LOG.info("reading pipeline file again", pipeline=member.name)
                    wanted[member.file] = member.wanted
                    self._drop(member)
            known = {member.file for member in self.members()}
            for file in files:
                if file not in known:
                    self._take(file, wanted.get(file))

    def _take(self, file: Path, wanted: bool | None = None) -> Member:
        stamp = _stamp(file)
        try:
            pipeline = load(file)
            if pipeline.name in self._members:
                other = self._members[pipeline.name].file
                raise ConfigError(
                    f"{file}: there is a pipeline {pipeline.name} already, in {other}", "Give it another name"
                )
        except PenstockError as error:
            name = file.stem if file.stem not in self._members else file.name
            LOG.error("pipeline file not taken", file=str(file), what=error.what)
            member = Member(name, file, None, Problem.of(error), _NoRun(), None, stamp)
        else:
            run = SupervisedRun(
                pipeline,
                self.home / "logs" / f"{pipeline.name}.log",
                self._options,
                command=self._command,
                may_start=lambda: _stamp(file) == stamp,  # what has changed is read again first
            )
            observatory = Observatory(pipeline)
            member = Member(pipeline.name, file, pipeline, None, run, observatory, stamp)
            observatory.start()
        self._members[member.name] = member
        if self._supervise and (self._is_wanted(member.name) if wanted is None else wanted) and member.pipeline:
            member.run.start()
        return member

    def _drop(self, member: Member) -> None:
        self._members.pop(member.name, None)
        if member.observatory is not None:
            threading.Thread(target=member.observatory.close, daemon=True).start()

    def _files(self) -> list[Path]:
        found: list[Path] = []
        for place in self._places:
            if place.is_dir():
                files = sorted([*place.glob("*.yaml"), *place.glob("*.yml")])
                found += [file.resolve() for file in files if _is_pipeline(file)]
            else:
                found.append(place.resolve())
        return list(dict.fromkeys(found))

    def _work(self) -> None:
        while not self._ended.wait(TICK_SECONDS):
            if time.monotonic() - self._scanned > SCAN_EVERY:
                self.scan()
            for member in self.members():
                if isinstance(member.run, SupervisedRun):
                    member.run.tick()

    def _is_wanted(self, name: str) -> bool:
        return self._wishes().get(name, True)

    def _note_wanted(self, name: str, wanted: bool) -> None:
        if not self._supervise:
            return
        with self._guard:
            wishes = {**self._wishes(), name: wanted}
            file = self.home / WANTED
            file.parent.mkdir(parents=True, exist_ok=True)
            fresh = file.with_suffix(".new")
            with fresh.open("w") as stream:
                json.dump(wishes, stream, indent=1)
                stream.flush()
                os.fsync(stream.fileno())
            fresh.replace(file)

    def _wishes(self) -> dict[str, bool]:
        try:
            written = json.loads((self.home / WANTED).read_text())
            return {str(name): bool(wanted) for name, wanted in written.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError):
            LOG.warning("cannot read which pipelines are to run, so all of them are", file=str(self.home / WANTED))
            return {}


class _NoRun:
    """The run of a pipeline whose file cannot be read."""

    def __init__(self) -> None:
        self._since = datetime.now(UTC)

    is_up = False

    def view(self) -> RunView:
        return RunView("failed", self._since)

    def start(self) -> None:
        """There is nothing to start."""

    def stop(self) -> None:
        """There is nothing to stop."""


def _stamp(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _is_pipeline(file: Path) -> bool:
    """Whether a file in a folder is meant to be a pipeline. One that is no YAML may be: its error is shown."""
    try:
        written = yaml.safe_load(file.read_text())
    except (OSError, yaml.YAMLError):
        return True
    return isinstance(written, dict) and "version" in written and bool({"source", "sources"} & written.keys())
