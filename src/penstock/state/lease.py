"""The lease of a pipeline whose state is in Postgres: which run, on whatever machine, the pipeline belongs to.

One row says who holds it, under which epoch, and counts its renewals. The holder renews every RENEW_SECONDS. Others
take it when it was given back, when its holder is a process of this machine that has ended, or when they have watched
the count stand still for LEASE_SECONDS: durations by their own clock, so that clocks need not agree. Whoever takes it
raises the epoch. A holder that was thought dead finds another epoch: when it renews, and in every transaction on the
state store, which begins with `require`. What it may still do to tables and to the change log, these refuse by
themselves (strict commits, `changelog/claims.py`).

Neighbours: `lock.py` keeps two runs apart where the state is a file. `runtime/pipeline.py` takes the lease.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Protocol

import structlog
from sqlalchemy import Connection, Engine, insert, select, text, update
from sqlalchemy.exc import SQLAlchemyError

from penstock.errors import LeaseLost, LockedError, StateError
from penstock.state.sql_engine import engine_of
from penstock.state.sql_tables import LEASE

LEASE_SECONDS = 5.0
RENEW_SECONDS = 1.0
POLL_SECONDS = 0.25
TAKING = 0x70656E6C65617365  # "penlease": held shared by what `require` lets through, and alone by whoever takes over
ENDED = ("Z", "X", "x")  # its parent has not asked for it yet
LOG = structlog.get_logger("lease")


class StopFlag(Protocol):
    def wait(self, timeout: float | None = None) -> bool: ...


@dataclass(frozen=True)
class Holder:
    """A process, and the machine that it is on. `machine` is empty where processes cannot be told apart."""

    host: str
    machine: str
    pid: int
    started: str

    @staticmethod
    def this_process() -> Holder:
        pid = os.getpid()
        return Holder(socket.gethostname(), _machine(), pid, _started(pid))

    @property
    def has_ended(self) -> bool:
        """Whether it is known to have ended: of processes of other machines nothing is known."""
        return bool(self.machine) and self.machine == _machine() and _started(self.pid) != self.started

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@dataclass(frozen=True)
class Found:
    """The row as it was read. `beats` counts the renewals under this epoch."""

    holder: Holder
    epoch: int
    beats: int
    released: bool
    taken: datetime


def can_be_leased(where: str) -> bool:
    """Tell whether the state store at this path or URL is one that several machines reach."""
    kind, separator, _ = where.partition("://")
    return bool(separator) and kind.partition("+")[0] in ("postgres", "postgresql")


class Lease:
    """A context manager around the time that it is held; `take` comes first.

    `taken_from` is who held it and did not give it back. `failure` is set once another run has it.
    """

    def __init__(self, where: str, lost: Callable[[], None] = lambda: None) -> None:
        """`where` is the state store's URL, with its tables made. `lost` is called when another run has taken over."""
        self._engine: Engine = engine_of(where, frozen_seconds=LEASE_SECONDS)
        self._where = self._engine.url.render_as_string(hide_password=True)
        self._me, self._lost = Holder.this_process(), lost
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.epoch = 0
        self.taken_from: Holder | None = None
        self.failure: LeaseLost | None = None

    def take(self, stop: StopFlag, *, patient: bool) -> bool:
        """Wait until the lease can be taken, and take it; False when stopped meanwhile.

        LockedError when another run renews it, unless `patient`: then it is waited for, however long that takes, and
        through times in which the state store does not answer.
        """
        taken = False
        try:
            taken = self._await(stop, patient=patient)
        finally:
            if not taken:
                self._engine.dispose()
        return taken

    def _await(self, stop: StopFlag, *, patient: bool) -> bool:
        seen: Found | None = None
        since, told = 0.0, False
        while True:
            try:
                found = self._read()
                if found is None or found.released or found.holder.has_ended or _is_due(seen, found, since):
                    if self._claim(found):
                        return True
                    seen = None
                elif seen is None or (found.epoch, found.beats) != (seen.epoch, seen.beats):
                    if seen is not None and not patient:
                        raise LockedError(
                            f"this pipeline is running already: {found.holder} holds its lease",
                            "Stop it first, look at it with `penstock status`, or start this one with --standby",
                        )
                    seen, since = found, time.monotonic()
            except StateError as error:
                if not patient:
                    raise
                seen = None  # a leader that could not renew either gets the time to do so
                LOG.warning("lease not read", what=error.what)
            if seen is not None and patient and not told:
                told = True
                LOG.info("standing by", leader=str(seen.holder), epoch=seen.epoch)
            if stop.wait(POLL_SECONDS):
                return False

    def require(self, connection: Connection) -> None:
        """Begin a transaction on the state store with this: LeaseLost unless the lease is still ours until its end."""
        connection.execute(text("SELECT pg_advisory_xact_lock_shared(:key)"), {"key": TAKING})
        if connection.scalar(select(LEASE.c.epoch)) != self.epoch:
            raise self._taken_over(None)

    def __enter__(self) -> Lease:
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Give the lease back, so that whoever waits has it at once."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        try:
            if self.failure is None:
                with self._transaction() as connection:
                    connection.execute(update(LEASE).filter_by(epoch=self.epoch).values(released=1))
        except StateError as away:
            LOG.warning("lease not given back: it ends by itself", seconds=LEASE_SECONDS, what=away.what)
        finally:
            self._engine.dispose()

    def _renew(self) -> None:
        away = False
        while not self._ended.wait(RENEW_SECONDS):
            try:
                with self._transaction() as connection:
                    renewed = connection.execute(
                        update(LEASE).filter_by(epoch=self.epoch).values(beats=LEASE.c.beats + 1)
                    )
                    found = None if renewed.rowcount else _found(connection)
            except StateError as error:
                if not away:
                    LOG.warning("lease not renewed", what=error.what, solution=error.solution)
                away = True
                continue
            away = False
            if not renewed.rowcount:
                self.failure = self._taken_over(found)
                LOG.error("lease lost", what=self.failure.what, solution=self.failure.solution)
                self._lost()
                return

    def _read(self) -> Found | None:
        with self._transaction() as connection:
            return _found(connection)

    def _claim(self, found: Found | None) -> bool:
        """Take the lease if it is still as it was found."""
        me = {"host": self._me.host, "machine": self._me.machine, "pid": self._me.pid, "started": self._me.started}
        epoch = 1 if found is None else found.epoch + 1
        values = {**me, "epoch": epoch, "beats": 0, "released": 0, "taken": datetime.now(UTC)}
        with self._transaction() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": TAKING})
            if found is None:
                if _found(connection) is not None:
                    return False
                connection.execute(insert(LEASE).values(id=1, **values))
            else:
                as_found = update(LEASE).filter_by(epoch=found.epoch, beats=found.beats)
                if not connection.execute(as_found.values(**values)).rowcount:
                    return False
        self.epoch = epoch
        self.taken_from = None if found is None or found.released else found.holder
        return True

    def _taken_over(self, found: Found | None) -> LeaseLost:
        by = "another run" if found is None else f"{found.holder}, at {found.taken:%H:%M:%S} UTC"
        return LeaseLost(
            f"this pipeline was taken over by {by}, because this run (epoch {self.epoch}) had not renewed its lease "
            f"for {LEASE_SECONDS:g} seconds",
            "Nothing is applied twice: tables and change log refuse what this run still had. With --standby it waits "
            "for its turn again",
        )

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            reason = str(error.__cause__ or error).strip().splitlines()[0]
            raise StateError(
                f"the state store {self._where} does not answer: {reason}", "Make it reachable: it is tried again"
            ) from error


def _is_due(seen: Found | None, found: Found, since: float) -> bool:
    """Return whether the lease has stood still for its whole time, as seen from here."""
    same = seen is not None and (seen.epoch, seen.beats) == (found.epoch, found.beats)
    return same and time.monotonic() - since >= LEASE_SECONDS


def _found(connection: Connection) -> Found | None:
    row = connection.execute(select(LEASE)).first()
    if row is None:
        return None
    holder = Holder(row.host, row.machine, row.pid, row.started)
    return Found(holder, row.epoch, row.beats, bool(row.released), row.taken)


def _machine() -> str:
    """Name the boot of this machine and the namespace that process ids are of."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 - it names no file
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Return when a process started, in ticks since the boot; "" when there is none of that id, or it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in ENDED else fields[19]
    except (OSError, IndexError):
        return ""
