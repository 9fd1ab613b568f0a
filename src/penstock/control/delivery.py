"""What counts as delivered, by the commit policy: the same for `status` and for `wait`.

A destination has everything before a position when it has processed the log up to there and all of its tables are
Ready: none is Errored, being copied or paused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.config.model import Pipeline
from penstock.model.position import Position
from penstock.model.table import TableId
from penstock.model.table_state import State, TableStatus
from penstock.state.store import Pause


@dataclass(frozen=True)
class Arrival:
    """How far one destination is. `states` are of the tables that the file still names."""

    processed: Position | None
    states: tuple[State, ...]
    paused: int = 0  # tables that an operator has paused, or all of them with their destination

    @property
    def complete_to(self) -> Position:
        """Everything before this position has arrived; 0 while a table is Errored or being copied."""
        return (self.processed or 0) if not self.paused and all(state is State.READY for state in self.states) else 0

    @property
    def is_errored(self) -> bool:
        return State.ERRORED in self.states

    @property
    def missing(self) -> str:
        """Why `complete_to` is 0; "" when it is not."""
        if self.complete_to:
            return ""
        errored = self.states.count(State.ERRORED)
        copying = len(self.states) - errored - self.states.count(State.READY)
        said = [
            f"{number} {'table' if number == 1 else 'tables'} {state}"
            for number, state in ((errored, "Errored"), (copying, "being copied"), (self.paused, "paused"))
            if number
        ]
        return ", ".join(said) or "nothing processed yet"


def arrival(
    view: Pipeline, processed: Position | None, statuses: Mapping[TableId, TableStatus], pauses: Sequence[Pause]
) -> Arrival:
    """`view` is the pipeline as one source and one destination see it."""
    followed = {table: status.state for table, status in statuses.items() if view.feed(table) is not None}
    paused = [table for table in followed if is_paused_at(pauses, view.destination.name, table)]
    return Arrival(processed, tuple(followed.values()), len(paused))


def is_paused_at(pauses: Sequence[Pause], destination: str, table: TableId) -> bool:
    """Whether a table stands still at a destination: by itself, with the destination, or with the pipeline."""
    return any(one.covers(destination) or (one.destination, one.table) == (destination, table) for one in pauses)
