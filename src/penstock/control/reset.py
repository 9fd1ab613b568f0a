"""Starting a pipeline over: the slot goes, the change log goes, and every table is copied again at the next run.

`look` says what there is, `reset` does it. It refuses while a run or a capture is up. Killed in the middle, it may
simply be run again, and so may the pipeline: without its slot a log is a gap, and without its log a table's position is
of another history, so neither is ever continued.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from penstock.changelog.log import ChangeLog
from penstock.changelog.writer import locked
from penstock.config.model import Pipeline
from penstock.errors import Retry, SlotBusy
from penstock.failpoints import reach
from penstock.model.table_state import State, TableStatus
from penstock.source.contract import Retention
from penstock.source.factory import source_of
from penstock.state.lock import PipelineLock
from penstock.state.opening import find_store
from penstock.state.store import Health

WHY = "the pipeline was reset"


@dataclass(frozen=True)
class Standing:
    """One source as a reset finds it. `retention` is None when the source keeps nothing for the pipeline."""

    view: Pipeline
    retention: Retention | None
    log_bytes: int
    tables: int  # that the state store knows

    @property
    def endpoint(self) -> str:
        return source_of(self.view.source).endpoint


def look(view: Pipeline) -> Standing:
    """Return what a reset would remove. Changes nothing."""
    with source_of(view.source).connect() as session:
        retention = session.retention()
    store = find_store(view.state_url)
    tables = 0
    if store is not None:
        try:
            tables = sum(len(store.of_source(view.scope).table_status(one.name)) for one in view.destinations)
        finally:
            store.close()
    return Standing(view, retention, ChangeLog(view.log_uri).bytes(), tables)


def reset(pipeline: Pipeline, source_views: list[Pipeline]) -> list[Standing]:
    """Drop the sources' slots, then remove their logs; return what was there.

    LockedError while a run is up, SlotBusy while somebody reads a slot: then nothing was removed of that source.
    """
    with PipelineLock(pipeline.home / "lock"):
        return [_reset(view) for view in source_views]


def _reset(view: Pipeline) -> Standing:
    log = ChangeLog(view.log_uri)
    with locked(log):
        found = look(view)
        if found.retention is not None and found.retention.reader is not None:
            raise SlotBusy(
                f"{found.retention.name} is being read by {found.retention.reader}",
                "Stop the pipeline that reads it, then reset it",
            )
        with source_of(view.source).connect() as session:
            session.release()
        reach("reset.slot_dropped")
        log.remove_all()
        reach("reset.log_removed")
    _tell(view)
    return found


def _tell(view: Pipeline) -> None:
    """Says in the state store that tables are to be copied; what was read of copies under way is void."""
    store = find_store(view.state_url)
    if store is None:
        return
    try:
        state, now = store.of_source(view.scope), datetime.now(UTC)
        for destination_view in view.destination_views:
            destination = destination_view.destination.name
            for table in state.table_status(destination):
                state.end_copy(destination, table)
                if destination_view.feed(table) is None:
                    continue  # it is not followed; should it be again, it is copied, for the log is another
                status = TableStatus(State.INIT, now, WHY, "Nothing: the next run copies it", Retry.AT_ONCE)
                state.set_table_status(destination, table, status)
        state.set_health("capture", Health("stopped", now, WHY, "", 0))
        state.add_event("reset", f"{WHY}: slot and change log were removed, all tables are copied again", None)
    finally:
        store.close()
