"""The state store's twin in memory: the contract of `store.py` without a database, for tests."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Mapping
from datetime import UTC, datetime

from penstock.model.position import Position
from penstock.model.table import TableId
from penstock.model.table_state import TableProgress, TableStatus
from penstock.state.store import EVENTS_KEPT, Event, Health, require_legal


class MemoryStateStore:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._status: defaultdict[str, dict[TableId, TableStatus]] = defaultdict(dict)
        self._progress: defaultdict[str, dict[TableId, TableProgress]] = defaultdict(dict)
        self._processed: dict[str, Position] = {}
        self._events: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self._health: dict[str, Health] = {}

    def table_status(self, destination: str) -> dict[TableId, TableStatus]:
        with self._lock:
            return dict(sorted(self._status[destination].items()))

    def set_table_status(self, destination: str, table: TableId, status: TableStatus) -> None:
        with self._lock:
            present = self._status[destination].get(table)
            require_legal(table, present.state if present else None, status.state)
            self._status[destination][table] = status

    def record_progress(self, destination: str, progress: Mapping[TableId, TableProgress]) -> None:
        with self._lock:
            self._progress[destination].update(progress)

    def progress(self, destination: str) -> dict[TableId, TableProgress]:
        with self._lock:
            return dict(sorted(self._progress[destination].items()))

    def set_processed(self, destination: str, position: Position) -> None:
        with self._lock:
            self._processed[destination] = position

    def processed(self, destination: str) -> Position | None:
        with self._lock:
            return self._processed.get(destination)

    def add_event(self, kind: str, message: str, table: TableId | None = None) -> None:
        with self._lock:
            self._events.append(Event(datetime.now(UTC), kind, message, table))

    def events(self, limit: int = 20) -> list[Event]:
        with self._lock:
            return list(self._events)[-limit:]

    def set_health(self, component: str, health: Health) -> None:
        with self._lock:
            self._health[component] = health

    def health(self) -> dict[str, Health]:
        with self._lock:
            return dict(sorted(self._health.items()))

    def close(self) -> None:
        """Nothing to give back."""
