"""Bookmarks: the contents of a table as they are now, kept readable by a transaction that is left open.

`keep` opens a REPEATABLE READ transaction and exports its snapshot; whoever reads imports it by that name. It lasts as
long as the driver that made it, or until BOOKMARKS_LAST has passed; an open transaction holds VACUUM back, so bookmarks
are for minutes.
"""

from __future__ import annotations

import threading
import time

import psycopg

from penstock.destinations.contract import BOOKMARKS_LAST
from penstock.destinations.postgres.connection import Connection, Sessions
from penstock.model.table import TableId


class Bookmarks:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions, self._lock = sessions, threading.Lock()
        self._kept: dict[tuple[TableId, str], tuple[Connection, float]] = {}

    def keep(self, target: TableId, name: str) -> str:
        """Return the name of a snapshot in which the table is as it is now."""
        with self._sessions.errors():
            connection = self._sessions.connected()
            try:
                connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                row = connection.execute("SELECT pg_export_snapshot()").fetchone()
            except BaseException:
                connection.close()
                raise
        assert row is not None
        with self._lock:
            before = self._kept.pop((target, name), None)
            self._kept[target, name] = connection, time.monotonic()
            late = [key for key, (_, since) in self._kept.items() if time.monotonic() - since > BOOKMARKS_LAST]
            ended = [self._kept.pop(key) for key in late] + ([before] if before is not None else [])
        for old, _ in ended:
            _close(old)
        return str(row[0])

    def release(self, target: TableId, name: str) -> None:
        with self._lock:
            kept = self._kept.pop((target, name), None)
        if kept is not None:
            _close(kept[0])

    def close(self) -> None:
        with self._lock:
            kept, self._kept = self._kept, {}
        for connection, _ in kept.values():
            _close(connection)


def _close(connection: Connection) -> None:
    try:
        connection.close()
    except psycopg.Error:
        return  # it is gone, and its snapshot with it
