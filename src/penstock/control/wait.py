"""Wait until what the source has written is delivered, as the commit policy says it.

It looks at the state store only, so it works beside a run in another process. A destination has a position when it has
processed the log up to it and none of its tables is Errored or being copied.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from penstock.config.model import Pipeline
from penstock.errors import CheckFailed, UsageError
from penstock.model.position import Position, position_text
from penstock.model.table_state import State
from penstock.state.sql import SqlStateStore, find_store

LOOK_EVERY = 0.2


def await_delivery(
    pipeline: Pipeline, until: Mapping[str, Position], timeout: float, clock: Callable[[], float] = time.monotonic
) -> None:
    """Return when everything before these positions, by the name of the source, is delivered. CheckFailed when it is
    not in time, or cannot be because tables are Errored."""
    deadline = clock() + timeout
    store = find_store(pipeline.state_url)
    if store is None:
        raise UsageError(f"pipeline {pipeline.name} has not run yet", f"`penstock run {pipeline.file}` delivers")
    try:
        while waiting := _undelivered(pipeline, store, until):
            if clock() >= deadline:
                raise CheckFailed(
                    f"not delivered within {timeout:g} s: {'; '.join(waiting)}",
                    f"`penstock status {pipeline.file.name}` shows how far each destination is",
                )
            time.sleep(LOOK_EVERY)
    finally:
        store.close()


def _undelivered(pipeline: Pipeline, store: SqlStateStore, until: Mapping[str, Position]) -> list[str]:
    """What is missing, by source. CheckFailed when waiting does not help."""
    waiting = []
    for source_view in pipeline.source_views:
        state = store.of_source(source_view.scope)
        position, policy = until[source_view.source.name], source_view.policy
        states = {
            destination_view.destination.name: [
                status.state
                for table, status in state.table_status(destination_view.destination.name).items()
                if destination_view.feed(table) is not None
            ]
            for destination_view in source_view.destination_views
        }
        done = {
            name: (state.processed(name) or 0) >= position and all(one is State.READY for one in found)
            for name, found in states.items()
        }
        if policy.is_met(done):
            continue
        errored = sorted(name for name, found in states.items() if State.ERRORED in found and name in policy.among)
        if not policy.is_met({name: name not in errored for name in states}):
            raise CheckFailed(
                f"not delivered: tables are Errored at {', '.join(errored)}",
                f"`penstock status {pipeline.file.name}` says why and what to do",
            )
        behind = [name for name in states if name in policy.among and not done[name]]
        source = f"{source_view.source.name}: " if source_view.is_scoped else ""
        waiting.append(f"{source}{position_text(position)} at {', '.join(behind)}")
    return waiting
