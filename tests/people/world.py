"""The world that the acts change: one server, one pipeline with its lake, and a log of everything that was done."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import psycopg
import yaml

from databases import Database
from lake import Lake
from penstock.demo.server import PostgresServer
from people.pulse import Pulse
from running import PipelineFile, Running
from schema_fuzz import Fuzzer

Connection = psycopg.Connection[Any]
DATABASE = "shop"
CONTROL = "control"
FILTERED = "large"  # whose rows a `where` may choose, and whose column `body` may be another in the lake
SALT = "pepper"  # of masks
FUZZED = ("f0", "f1", "f2")
SCHEMA = (
    "create table control (id bigserial primary key, at timestamptz not null default clock_timestamp())",
    "create type mood as enum ('low', 'even', 'high')",
    "create type place as (street text, number int)",
    "create table labels (id int, mood mood not null, home place, notes text, primary key (id, mood))",
    "insert into labels select n, (enum_range(null::mood))[1 + n % 3], row('s' || n, n)::place, 'x' "
    "from generate_series(1, 20) n",
    "create table parted (id int, kind int, note text, primary key (id, kind)) partition by list (kind)",
    *(f"create table parted_{kind} partition of parted for values in ({kind})" for kind in range(3)),
    "create table parted_deep partition of parted for values in (3) partition by range (id)",
    "create table parted_low partition of parted_deep for values from (minvalue) to (5000)",
    "create table parted_high partition of parted_deep for values from (5000) to (maxvalue)",
    "insert into parted select n, n % 4, 'p' || n from generate_series(1, 30) n",
    "create table large (id int primary key, small int, body text)",
    "alter table large alter body set storage external",
    "insert into large select n, n, repeat(md5(n::text), 200) from generate_series(1, 20) n",
    "create table loose (a int, b text)",
    "insert into loose select n % 5, 'l' || n % 3 from generate_series(1, 12) n",
    "create table whole (a int, b text)",
    "alter table whole replica identity full",
    "insert into whole select n % 5, 'w' || n % 3 from generate_series(1, 12) n",
    "create schema elsewhere",
    "create role stranger login",
)


@dataclass
class World:
    """What the acts work on. `damaged` are tables of which a file was lost, until the next quiet moment."""

    server: PostgresServer
    file: PipelineFile
    lake: Lake
    random: random.Random
    pulse: Pulse
    run: Running | None = None
    history: list[str] = field(default_factory=list)
    excluded: set[str] = field(default_factory=set)
    where: str | None = None  # of the table FILTERED
    body: str | None = None  # what becomes of that column of it: one of `operator.COLUMNS`
    image: Path | None = None
    fuzzers: dict[str, Fuzzer] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)
    paused: psutil.Process | None = None
    _connection: Connection | None = None

    @property
    def database(self) -> Database:
        return self.file.database

    @property
    def publication(self) -> str:
        return f"penstock_{self.file.name}"

    @property
    def connection(self) -> Connection:
        """A session of the application's own; opened again when the server was away."""
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self.database.url, autocommit=True)
        return self._connection

    def create(self) -> None:
        with psycopg.connect(self.server.url(), autocommit=True) as connection:
            connection.execute(f"create database {DATABASE}".encode())
        for statement in SCHEMA:
            self.connection.execute(statement.encode())
        for name in FUZZED:
            self.fuzzers[name] = Fuzzer(name, random.Random(self.random.random()))
            self.fuzzers[name].create(self.connection)

    def say(self, what: str) -> None:
        self.history.append(f"{time.strftime('%H:%M:%S')} {what}")

    def sql(self, *statements: str) -> bool:
        """Runs statements one by one; what the server refuses is as if it had not been tried. Whether all were done."""
        for statement in statements:
            try:
                self.connection.execute(statement.encode())
                self.say(statement)
            except psycopg.Error as refused:
                self.say(f"-- {statement}: {type(refused).__name__} {str(refused).splitlines()[0]}")
                if self.connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                    self.connection.execute("rollback")
                return False
        return True

    def tables(self) -> list[str]:
        """Every table of the application, by name, in schema public."""
        found = self.connection.execute(
            "select c.relname::text from pg_class c where c.relnamespace = 'public'::regnamespace "
            "and c.relkind in ('r', 'p') and not c.relispartition order by 1"
        ).fetchall()
        return [name for (name,) in found]

    def start(self, *options: str) -> None:
        """Starts the pipeline and waits until it streams; a gap is answered as its message says."""
        if self.run is not None:
            return
        self.say(f"start {' '.join(options)}")
        self.run = Running(self.file, ("run", "FILE", "--yes", *options))
        if not self._streams():
            self._answer_gap()

    def _streams(self) -> bool:
        assert self.run is not None
        try:
            self.run.await_streaming()
        except AssertionError:
            if self.run.process.poll() is None:
                raise
            return False
        self.pulse.watch()
        return True

    def _answer_gap(self) -> None:
        """The operator reads the last line and does what it says."""
        assert self.run is not None
        last = self.run.text().strip().splitlines()[-1]
        assert "penstock reset" in last, f"the run ended without a way out:\n{self.run.tail()}"
        self.say(f"reset, because: {last}")
        self.run.clean_up()
        self.run = None
        done = self.file.command("reset", "FILE", "--yes")
        assert done.returncode == 0, done.stderr
        self.start()

    def ended(self) -> bool:
        """Whether the run has ended by itself, as it does for a gap."""
        return self.run is not None and self.run.process.poll() is not None

    def stop(self, *, kill: bool = False) -> None:
        if self.run is None:
            return
        self.resume()
        self.pulse.unwatch()
        self.say("kill" if kill else "stop")
        if self.ended():
            self._gone()
            return
        if kill:
            self.run.kill()
        else:
            try:
                self.run.stop()
            except AssertionError:
                if not self._has_met_a_gap():  # at the very moment when it was to stop
                    raise
                self._gone()
        self.run = None

    def _has_met_a_gap(self) -> bool:
        return self.ended() and self.run is not None and "penstock: [gap]" in self.run.text().splitlines()[-1]

    def _gone(self) -> None:
        assert self.run is not None
        self.pulse.unwatch()
        self.say(f"had ended: {self.run.text().strip().splitlines()[-1]}")
        self.run.clean_up()
        self.run = None

    def ensure_up(self) -> None:
        """The pipeline runs, whatever happened before."""
        self.resume()
        if self.ended():
            assert self.run is not None
            self.pulse.unwatch()
            self._answer_gap()
        self.start()

    def pause(self) -> None:
        """From now on capture is behind."""
        if self.run is not None and self.paused is None and not self.ended():
            with suppress(psutil.NoSuchProcess, AssertionError):
                process = self.run.capture()
                process.suspend()
                self.paused = process
                self.pulse.unwatch()
                self.say("capture falls behind")

    def resume(self) -> None:
        if self.paused is not None:
            with suppress(psutil.NoSuchProcess):
                self.paused.resume()
            self.paused = None
            self.say("capture goes on")
            if self.run is not None:
                self.pulse.watch()

    def edit(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Changes the pipeline file; the run must be started again to see it."""
        change(self.file.settings)
        self.file.write()
        self.say(f"config: {yaml.safe_dump(self.file.settings['tables'], default_flow_style=True).strip()}")

    @contextmanager
    def server_away(self, mode: str = "fast") -> Iterator[None]:
        """The server is down inside the block."""
        self.pulse.unwatch()
        with self.pulse.stopped():
            if self._connection is not None:
                self._connection.close()
            self.server.stop(mode)
            try:
                yield
            finally:
                self.server.start()
        if self.run is not None:
            self.pulse.watch()

    def close(self) -> None:
        self.resume()
        self.pulse.close()
        if self._connection is not None:
            self._connection.close()
        if self.run is not None:
            self.run.clean_up()
        if self.image is not None:
            shutil.rmtree(self.image, ignore_errors=True)

    def told(self) -> str:
        """For whoever has to find out what went wrong."""
        output = self.run.text()[-15_000:] if self.run is not None else ""
        return "\n".join(self.history) + "\n\n" + output
