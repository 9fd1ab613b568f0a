"""The state store in memory: the contract of `store.py` without a database.

For tests, and for runs with `state: memory`, which leave no state behind. The twin of `sql.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.state.memory_copies import MemoryCopyFacts, MemoryCopyRecords, MemoryUpkeepReports
from penstock.state.memory_letters import MemoryDeadLetters
from penstock.state.memory_messages import MemoryPins, MemoryQuarantine, MemorySchemaVersions
from penstock.state.memory_states import (
    MemoryEvents,
    MemoryHealthReports,
    MemoryPauses,
    MemoryProgress,
    MemoryRequests,
    MemoryTableStates,
)
from penstock.state.store import component_of


class MemoryStateStore(
    MemoryTableStates,
    MemoryProgress,
    MemoryEvents,
    MemoryHealthReports,
    MemoryCopyRecords,
    MemoryCopyFacts,
    MemoryUpkeepReports,
    MemoryRequests,
    MemoryPauses,
    MemorySchemaVersions,
    MemoryQuarantine,
    MemoryDeadLetters,
    MemoryPins,
):
    def __init__(self, ids: Iterator[int] | None = None) -> None:
        super().__init__(ids)
        self._views: dict[str | None, MemoryStateStore] = {None: self}

    def of_source(self, source: str | None) -> MemoryStateStore:
        with self._lock:
            if source not in self._views:
                made = self._views[source] = MemoryStateStore(self._ids)
                made._views = self._views
            return self._views[source]

    def forget_destination(self, destination: str) -> None:
        super().forget_destination(destination)
        with self._lock:
            self._processed.pop(destination, None)
            self._pauses.pop((destination, None), None)
            self._health.pop(component_of(destination), None)
            kept = [event for event in self._events if event.destination != destination]
            self._events.clear()
            self._events.extend(kept)

    def close(self) -> None:
        """Nothing to give back."""
