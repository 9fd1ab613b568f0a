"""The control table: a row every quarter of a second, and how late the lake is with it.

It may be late by 10 s on a machine of its own. Where other programs want the same processors everything takes longer,
so how much longer is measured every second, and lateness is counted in that measure.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import psycopg

from penstock.errors import PenstockError
from penstock.model.table import TableId
from penstock.state.sql import find_store
from slowness import slowness

EVERY_SECONDS = 0.25
LOOK_SECONDS = 1.0
MOST_SECONDS = 10.0


class Pulse:
    """`late` lists every look that found the control table more than 10 s behind while it was watched. `latest` is the
    most that it was, in seconds of a machine of its own, and of the clock."""

    def __init__(self, url: str, state: Path, table: str) -> None:
        self._url, self._state, self._table = url, state, TableId("public", table)
        self._ending, self._quiet = threading.Event(), threading.Event()
        self._quiet.set()
        self._idle = threading.Event()
        self._idle.set()
        self._since: datetime | None = None
        self._pulses: list[datetime] = []
        self.late: list[str] = []
        self.latest = (0.0, 0.0)
        self._slowness: deque[tuple[float, float]] = deque(maxlen=300)  # by the clock
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for target, name in ((self._beat, "pulse"), (self._look, "pulse-watch"))
        ]

    def start(self) -> None:
        self._quiet.clear()
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._ending.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(30)

    def watch(self) -> None:
        """From now on the lake may be late by 10 s at most."""
        self._since = datetime.now(UTC)

    def unwatch(self) -> None:
        self._since = None

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """No row is written inside the block."""
        self._quiet.set()
        self._idle.wait(30)
        try:
            yield
        finally:
            self._quiet.clear()

    def _beat(self) -> None:
        connection: psycopg.Connection[tuple[datetime]] | None = None
        while not self._ending.is_set():
            if self._quiet.is_set():
                if connection is not None:
                    connection.close()
                    connection = None
                self._idle.set()
            else:
                self._idle.clear()
                try:
                    connection = connection or psycopg.connect(self._url, autocommit=True)
                    row = connection.execute(f"insert into {self._table.name} default values returning at").fetchone()
                    self._pulses.append(row[0] if row else datetime.now(UTC))
                except psycopg.Error:  # the server or the table is away: the next beat tries again
                    if connection is not None:
                        connection.close()
                    connection = None
            self._ending.wait(EVERY_SECONDS)
        if connection is not None:
            connection.close()

    def _look(self) -> None:
        while not self._ending.wait(LOOK_SECONDS):
            self._slowness.append((time.time(), slowness()))
            since = self._since
            if since is None:
                continue
            with suppress(PenstockError):
                self._judge(since)

    def _judge(self, since: datetime) -> None:
        store = find_store(self._state)
        if store is None:
            return
        try:
            progress = store.progress("lake").get(self._table)
        finally:
            store.close()
        applied = progress.commit_time if progress is not None else None
        waiting = [at for at in self._pulses[-2000:] if applied is None or at > applied]
        if not waiting or self._since != since:
            return
        began = max(waiting[0], since)
        seconds = (datetime.now(UTC) - began).total_seconds()
        measured = [factor for at, factor in self._slowness if at >= began.timestamp()]
        factor = sum(measured) / len(measured) if measured else 1.0
        self.latest = max(self.latest, (seconds / factor, seconds))
        if seconds / factor > MOST_SECONDS:
            self.late.append(
                f"{time.strftime('%H:%M:%S')} the control table was {seconds:.1f} s late, "
                f"{seconds / factor:.1f} s if it had not waited for a processor"
            )
