"""Whether a pipeline delivers in time: by its commit policy and `ready.max_lag`. The server and `status` ask here."""

from __future__ import annotations

from penstock.config.model import Pipeline
from penstock.control.status.report import DestinationReport, Status, errored


def late_sources(pipeline: Pipeline, status: Status) -> list[str]:
    """Name the sources whose changes do not reach enough destinations, or not in time."""
    late = []
    for view in pipeline.source_views:
        own = [one for one in status.destinations if one.source == view.scope]
        in_time = {one.name: _is_in_time(one, pipeline.ready.max_lag) for one in own}
        if not view.policy.is_met(in_time):
            late.append(view.source.name)
    return late


def troubles(pipeline: Pipeline, status: Status) -> list[str]:
    """Say what an operator should look at, in words; nothing when everything flows.

    What is paused on purpose is no trouble.
    """
    found = []
    if status.pid is None:
        found.append("the pipeline does not run")
    parts = [(one.name, one.source, one.log) for one in status.source_views] or [("", status.source, status.log)]
    for name, source, log in parts:
        prefix = f"source {name}: " if name else ""
        found += [f"{prefix}{one.what}" for one in (source.problem, log.problem) if one is not None]
    if status.problem is not None:
        found.append(status.problem.what)
    found += [f"{table.table} is Errored at {table.destination}: {table.error}" for table in errored(status.tables)]
    if status.pid is not None:
        found += [f"what source {name} writes does not arrive in time" for name in late_sources(pipeline, status)]
    return found


def _is_in_time(destination: DestinationReport, most: float | None) -> bool:
    if destination.health is None or destination.health.state not in ("ok", "paused"):
        return False
    return most is None or (destination.lag_seconds is not None and destination.lag_seconds <= most)
