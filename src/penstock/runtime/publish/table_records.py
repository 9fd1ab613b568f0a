"""What operators see of a stream's tables: states, figures and events of note, in the state store.

The truth is in the destination, so a state store that is away costs figures only; a state that cannot be set is an
error.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from penstock.decode.undecodable import Undecodable
from penstock.errors import PenstockError, StateError, TableFailed
from penstock.model.position import Position
from penstock.model.rescue import RescueCount, merged
from penstock.model.table import TableId
from penstock.model.table_state import State, TableProgress, TableStatus
from penstock.runtime.publish.published_table import PublishedTable
from penstock.runtime.publish.task import ShardOutcome
from penstock.state.store import StateStore

LOG = structlog.get_logger("publish")
_WAY_TO_READY: Mapping[State, tuple[State, ...]] = {  # states in between
    State.DATA_SYNC: (State.INIT,),
    State.FINISHED_COPY: (State.INIT,),
    State.SYNC_WAIT: (State.CATCHUP, State.SYNC_DONE),
    State.CATCHUP: (State.SYNC_DONE,),
}


@dataclass
class TableSum:
    """What the shards of one batch did for one table."""

    events: int = 0
    last_commit_time: int = 0
    rescues: tuple[RescueCount, ...] = ()


class TableRecords:
    def __init__(self, state: StateStore, destination: str) -> None:
        self._state, self._destination = state, destination
        self._recorded_at = time.monotonic()

    def errored(self, table: PublishedTable, error: PenstockError) -> None:
        trace = {"exception": error.trace} if isinstance(error, TableFailed) and error.trace else {}
        LOG.error("table errored", table=str(table.name), what=error.what, solution=error.solution, **trace)
        if isinstance(error, Undecodable):
            self._state.quarantine(self._destination, table.name, error.messages)
        status = TableStatus(State.ERRORED, datetime.now(UTC), error.what, error.solution, error.retry, error.code)
        self._state.set_table_status(self._destination, table.name, status)
        self._state.add_event("errored", error.what, table.name, destination=self._destination)

    def ready(self, table: PublishedTable) -> None:
        name, now = self._destination, datetime.now(UTC)
        before = self._state.table_status(name).get(table.name)
        if before is not None and before.state is State.READY:
            return
        for state in _WAY_TO_READY.get(State.INIT if before is None else before.state, ()):
            self._state.set_table_status(name, table.name, TableStatus(state, now))
        if before is None:
            self._state.set_table_status(name, table.name, TableStatus(State.INIT, now))
        self._state.set_table_status(name, table.name, TableStatus(State.READY, now))

    def progress(
        self, sums: Mapping[TableId, TableSum], tables: Mapping[TableId, PublishedTable], processed: Position
    ) -> None:
        """Add what a batch did to the figures."""
        now, elapsed = datetime.now(UTC), max(time.monotonic() - self._recorded_at, 1e-3)
        self._recorded_at = time.monotonic()
        figures = {}
        for name, done in sums.items():
            table = tables[name]
            table.changes += done.events
            newest = datetime.fromtimestamp(done.last_commit_time / 1e6, UTC) if done.events else None
            figures[name] = TableProgress(processed, table.changes, done.events / elapsed, newest, now)
        try:
            if figures:
                self._state.record_progress(self._destination, figures)
            for name, done in sums.items():
                self._state.add_rescued(self._destination, name, done.rescues)
            self._state.set_processed(self._destination, processed)
        except StateError as error:
            LOG.warning("progress not recorded", what=error.what)


def summed(outcomes: Iterable[ShardOutcome]) -> dict[TableId, TableSum]:
    """Return what the shards did for each table."""
    sums: dict[TableId, TableSum] = {}
    for outcome in outcomes:
        for name, done in outcome.tables.items():
            total = sums.setdefault(name, TableSum())
            total.events += done.events
            total.last_commit_time = max(total.last_commit_time, done.last_commit_time)
            total.rescues = merged([*total.rescues, *done.rescues])
    return sums
