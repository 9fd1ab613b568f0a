"""Table states, progress, events of note, health and requests in the state store in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from penstock.model.position import Position
from penstock.model.table import TableId
from penstock.model.table_state import TableProgress, TableStatus
from penstock.state.memory_part import Key, MemoryPart, of_destination
from penstock.state.store import EVENTS_KEPT, Event, Health, Pause, Request, RequestKind, require_legal


class MemoryTableStates(MemoryPart):
    def __init__(self, ids: Iterator[int] | None = None) -> None:
        super().__init__(ids)
        self._status: dict[Key, TableStatus] = self._by_table()

    def table_status(self, destination: str) -> dict[TableId, TableStatus]:
        with self._lock:
            return of_destination(self._status, destination)

    def set_table_status(self, destination: str, table: TableId, status: TableStatus) -> None:
        with self._lock:
            present = self._status.get((destination, table))
            require_legal(table, present.state if present else None, status.state)
            self._status[destination, table] = status

    def forget_table(self, destination: str, table: TableId) -> None:
        with self._lock:
            self._forget((destination, table))

    def forget_destination(self, destination: str) -> None:
        with self._lock:
            for key in [key for key in self._known() if key[0] == destination]:
                self._forget(key)


class MemoryProgress(MemoryPart):
    def __init__(self, ids: Iterator[int] | None = None) -> None:
        super().__init__(ids)
        self._progress: dict[Key, TableProgress] = self._by_table()
        self._processed: dict[str, Position] = {}

    def record_progress(self, destination: str, progress: Mapping[TableId, TableProgress]) -> None:
        with self._lock:
            self._progress.update({(destination, table): made for table, made in progress.items()})

    def progress(self, destination: str) -> dict[TableId, TableProgress]:
        with self._lock:
            return of_destination(self._progress, destination)

    def set_processed(self, destination: str, position: Position) -> None:
        with self._lock:
            self._processed[destination] = position

    def processed(self, destination: str) -> Position | None:
        with self._lock:
            return self._processed.get(destination)


class MemoryEvents(MemoryPart):
    def __init__(self, ids: Iterator[int] | None = None) -> None:
        super().__init__(ids)
        self._events: deque[Event] = deque(maxlen=EVENTS_KEPT)

    def add_event(
        self, kind: str, message: str, table: TableId | None = None, *, destination: str | None = None
    ) -> None:
        with self._lock:
            self._events.append(Event(datetime.now(UTC), kind, message, table, destination))

    def events(self, limit: int = 20) -> list[Event]:
        with self._lock:
            return list(self._events)[-limit:]


class MemoryHealthReports(MemoryPart):
    def __init__(self, ids: Iterator[int] | None = None) -> None:
        super().__init__(ids)
        self._health: dict[str, Health] = {}

    def set_health(self, component: str, health: Health) -> None:
        with self._lock:
            self._health[component] = health

    def health(self) -> dict[str, Health]:
        with self._lock:
            return dict(sorted(self._health.items()))


class MemoryRequests(MemoryPart):
    def __init__(self, ids: Iterator[int] | None = None) -> None:
        super().__init__(ids)
        self._requests: dict[int, Request] = {}

    def add_request(self, destination: str, table: TableId, kind: RequestKind) -> int:
        with self._lock:
            number = next(self._ids)
            self._requests[number] = Request(number, destination, table, kind, datetime.now(UTC))
            return number

    def requests(self, destination: str | None = None) -> list[Request]:
        with self._lock:
            return [one for one in self._requests.values() if destination in (None, one.destination)]

    def drop_request(self, number: int) -> None:
        with self._lock:
            self._requests.pop(number, None)

    def _forget(self, key: Key) -> None:
        super()._forget(key)
        gone = [number for number, one in self._requests.items() if (one.destination, one.table) == key]
        for number in gone:
            del self._requests[number]

    def _known(self) -> set[Key]:
        return super()._known() | {(one.destination, one.table) for one in self._requests.values()}


class MemoryPauses(MemoryPart):
    def __init__(self, ids: Iterator[int] | None = None) -> None:
        super().__init__(ids)
        self._pauses: dict[tuple[str, TableId | None], Pause] = {}

    def set_pause(self, destination: str, table: TableId | None) -> bool:
        with self._lock:
            is_new = (destination, table) not in self._pauses
            if is_new:
                self._pauses[destination, table] = Pause(destination, table, datetime.now(UTC))
            return is_new

    def lift_pause(self, destination: str, table: TableId | None) -> bool:
        with self._lock:
            return self._pauses.pop((destination, table), None) is not None

    def pauses(self) -> list[Pause]:
        none = TableId("", "")
        with self._lock:
            found = list(self._pauses.values())
        return sorted(found, key=lambda one: (one.table is not None, one.destination, one.table or none))

    def _forget(self, key: Key) -> None:
        super()._forget(key)
        self._pauses.pop(key, None)

    def _known(self) -> set[Key]:
        tables = {(one.destination, one.table) for one in self._pauses.values() if one.table is not None}
        return super()._known() | tables
