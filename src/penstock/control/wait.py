"""Wait until what the source has written is delivered, as the commit policy says it (`delivery.py`).

It looks at the state store and at the lock only, so it works beside a run in another process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from penstock.config.model import Pipeline
from penstock.control.delivery import arrival
from penstock.control.text.commands import with_file
from penstock.errors import CheckFailed, DestinationUnreachable, UsageError
from penstock.model.position import Position, position_text
from penstock.source.factory import source_of
from penstock.state.lock import held_since
from penstock.state.opening import find_store
from penstock.state.store import Health, StateStore, component_of

LOOK_EVERY = 0.2


def await_delivery(
    pipeline: Pipeline, until: Mapping[str, Position], timeout: float, clock: Callable[[], float] = time.monotonic
) -> None:
    """Return when everything before these positions, by the name of the source, is delivered.

    DestinationUnreachable as soon as a destination that the policy needs has failed for good in the run that is up, and
    at the timeout while one is unavailable. CheckFailed when tables are Errored, and for any other delay.
    """
    deadline = clock() + timeout
    store = find_store(pipeline.state_url)
    if store is None:
        raise UsageError(f"pipeline {pipeline.name} has not run yet", f"`penstock run {pipeline.file}` delivers")
    try:
        while waiting := _undelivered(pipeline, store, until):
            if clock() >= deadline:
                down = [message for one in waiting for message in one.down]
                if down:
                    raise DestinationUnreachable(f"not delivered within {timeout:g} s: {'; '.join(down)}")
                raise CheckFailed(
                    f"not delivered within {timeout:g} s: {'; '.join(one.what for one in waiting)}",
                    f"`penstock status {pipeline.file.name}` shows how far each destination is",
                )
            time.sleep(LOOK_EVERY)
    finally:
        store.close()


def positions_now(pipeline: Pipeline) -> dict[str, Position]:
    """Return how far each source has written, by its name."""
    found = {}
    for source_view in pipeline.source_views:
        with source_of(source_view.source).connect() as session:
            found[source_view.source.name] = session.head()
    return found


@dataclass(frozen=True)
class _Waiting:
    """What is not delivered of a source yet, and which destinations are unavailable, so that the policy cannot hold."""

    what: str
    down: tuple[str, ...]


def _undelivered(pipeline: Pipeline, store: StateStore, until: Mapping[str, Position]) -> list[_Waiting]:
    """Return what is missing, by source. Raise when waiting does not help."""
    waiting = []
    for source_view in pipeline.source_views:
        state = store.of_source(source_view.scope)
        position, policy = until[source_view.source.name], source_view.policy
        arrivals = {
            view.destination.name: arrival(
                view,
                state.processed(view.destination.name),
                state.table_status(view.destination.name),
                state.pauses(),
            )
            for view in source_view.destination_views
        }
        done = {name: one.complete_to >= position for name, one in arrivals.items()}
        if policy.is_met(done):
            continue
        errored = sorted(name for name, one in arrivals.items() if one.is_errored and name in policy.among)
        if not policy.is_met({name: name not in errored for name in arrivals}):
            raise CheckFailed(
                f"not delivered: tables are Errored at {', '.join(errored)}",
                f"`penstock status {pipeline.file.name}` says why and what to do",
            )
        behind = [name for name in arrivals if name in policy.among and not done[name]]
        healths = state.health()
        fares = {name: healths[component_of(name)] for name in behind if component_of(name) in healths}
        failed = _failed_now(fares, held_since(pipeline.home / "lock"))
        if not policy.is_met({name: name not in failed for name in arrivals}):
            first = fares[min(failed)]
            raise DestinationUnreachable(
                f"not delivered: destination {min(failed)} has failed: {first.message}",
                with_file(first.solution, str(pipeline.file)) or "Fix the cause, then start the pipeline again",
            )
        down = {name for name, health in fares.items() if health.state in ("retrying", "failed")}
        blocked = not policy.is_met({name: name not in down for name in arrivals})
        source = f"{source_view.source.name}: " if source_view.is_scoped else ""
        waiting.append(
            _Waiting(
                f"{source}{position_text(position)} at {', '.join(behind)}",
                tuple(f"{source}destination {name}: {fares[name].message}" for name in sorted(down) if blocked),
            )
        )
    return waiting


def _failed_now(fares: Mapping[str, Health], run_began: datetime | None) -> set[str]:
    """Name the destinations that no retry brings back, as the run that is up found; nobody while none is up."""
    if run_began is None:
        return set()
    return {name for name, health in fares.items() if health.state == "failed" and health.since >= run_began}
