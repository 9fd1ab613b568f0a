"""Destinations as users write them, for tests that run a pipeline: one with a position of its own, one without."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import penstock


class Ledger(penstock.Destination):
    """Events in SQLite, with the position in the same transaction: exactly once."""

    def __init__(self, path: str) -> None:
        self._path = path

    def startup(self) -> None:
        self._database = sqlite3.connect(self._path)
        self._database.execute("create table if not exists events (n integer primary key, stream, id, at_table, event)")
        self._database.execute("create table if not exists positions (stream text primary key, position text)")

    def shutdown(self) -> None:
        self._database.close()

    def position(self, stream: str) -> str | None:
        found = self._database.execute("select position from positions where stream = ?", (stream,)).fetchone()
        return None if found is None else str(found[0])

    def begin_copy(self, table: penstock.TableId) -> None:
        with self._database:
            self._database.execute("delete from events where at_table = ?", (str(table),))

    def write_events(self, events: penstock.Events) -> None:
        rows = [(events.stream, event.id, str(event.table), event.json) for event in events]
        with self._database:
            self._database.executemany("insert into events (stream, id, at_table, event) values (?, ?, ?, ?)", rows)
            self._database.execute("insert or replace into positions values (?, ?)", (events.stream, events.position))


class Lines(penstock.Destination):
    """Events as lines of a file, without a position: at least once."""

    def __init__(self, path: str, refuses: str = "") -> None:
        self._path, self._refuses = Path(path), refuses

    def write_events(self, events: penstock.Events) -> penstock.Delivery:
        if self._refuses and any(event.table.name == self._refuses for event in events):
            raise ValueError(f"no {self._refuses} here")
        lines = "".join(f"{json.dumps([events.stream, event.json])}\n" for event in events)
        with self._path.open("ab", buffering=0) as file:
            file.write(lines.encode())  # at once: a process that is killed leaves no half of a line
        return penstock.ACCEPTED

    def flush(self) -> None:
        with self._path.open("a") as file:
            file.flush()


def ledger_events(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return what a ledger holds: streams and events, in order."""
    with sqlite3.connect(path) as database:
        found = database.execute("select stream, event from events order by n").fetchall()
    return [(stream, json.loads(event)) for stream, event in found]


def line_events(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return what a file of lines holds: streams and events, in order."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [(stream, json.loads(event)) for stream, event in map(json.loads, lines)]
