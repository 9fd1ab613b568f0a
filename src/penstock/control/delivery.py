"""What counts as delivered, by the commit policy: the same for `status` and for `wait`.

A destination has everything before a position when it has processed the log up to there and all of its tables are
Ready: none is Errored or being copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.config.model import Pipeline
from penstock.model.position import Position
from penstock.model.table import TableId
from penstock.model.table_state import State, TableStatus


@dataclass(frozen=True)
class Arrival:
    """How far one destination is. `states` are of the tables that the file still names."""

    processed: Position | None
    states: tuple[State, ...]

    @property
    def complete_to(self) -> Position:
        """Everything before this position has arrived; 0 while a table is Errored or being copied."""
        return (self.processed or 0) if all(state is State.READY for state in self.states) else 0

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
            for number, state in ((errored, "Errored"), (copying, "being copied"))
            if number
        ]
        return ", ".join(said) or "nothing processed yet"


def arrival(view: Pipeline, processed: Position | None, statuses: Mapping[TableId, TableStatus]) -> Arrival:
    """`view` is the pipeline as one source and one destination see it."""
    states = (status.state for table, status in statuses.items() if view.feed(table) is not None)
    return Arrival(processed, tuple(states))
