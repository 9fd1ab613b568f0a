"""The state store's contract: table states, progress, health of the components, events of note.

Everything in it is for people and for the next start's convenience. Positions live in the destinations: a lost store
loses no position, and nothing here is ever needed to decide what was applied. One process writes (the one that holds
the pipeline's lock); any number of others read while it does. `sql.py` is the real store, `memory.py` its twin; one
behaviour suite (tests/behaviour/test_state_store.py) holds for both. The pipeline writes it, `control/` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from penstock.model.position import Position
from penstock.model.table import TableId
from penstock.model.table_state import LEGAL_MOVES, State, TableProgress, TableStatus

EVENTS_KEPT = 1000

HealthState = Literal["ok", "retrying", "stopped", "failed"]


@dataclass(frozen=True)
class Health:
    """How a component (capture, a destination, …) fares. `attempts` counts failures in a row, while it is retried."""

    state: HealthState
    since: datetime
    message: str = ""
    solution: str = ""
    attempts: int = 0


@dataclass(frozen=True)
class Event:
    """Something a person may want to know later."""

    at: datetime
    kind: str
    message: str
    table: TableId | None = None


class StateStore(Protocol):
    """What a method wrote outlives the process, even by SIGKILL. Safe from several threads; StateError when it fails.

    Times are aware (UTC); a store gives back what it was given, to the microsecond.
    """

    def table_status(self, destination: str) -> dict[TableId, TableStatus]: ...

    def set_table_status(self, destination: str, table: TableId, status: TableStatus) -> None:
        """Refuses moves that LEGAL_MOVES does not list. The same state again is legal: it replaces reason and times."""

    def record_progress(self, destination: str, progress: Mapping[TableId, TableProgress]) -> None:
        """Replaces the progress of the tables named; all of them at once or none."""

    def progress(self, destination: str) -> dict[TableId, TableProgress]: ...

    def set_processed(self, destination: str, position: Position) -> None:
        """How far the destination has processed the log, for all of its tables that are not Errored."""

    def processed(self, destination: str) -> Position | None: ...

    def add_event(self, kind: str, message: str, table: TableId | None = None) -> None:
        """Stamped with the present time. The newest EVENTS_KEPT are kept."""

    def events(self, limit: int = 20) -> list[Event]:
        """The newest, oldest of them first."""

    def set_health(self, component: str, health: Health) -> None: ...

    def health(self) -> dict[str, Health]: ...

    def close(self) -> None: ...


def require_legal(table: TableId, present: State | None, wanted: State) -> None:
    """Raises ValueError on a move that no part of penstock may make. An unknown table starts as if it were Init."""
    origin = State.INIT if present is None else present
    if wanted is not origin and wanted not in LEGAL_MOVES[origin]:
        raise ValueError(f"table {table} may not move from {origin} to {wanted}")
