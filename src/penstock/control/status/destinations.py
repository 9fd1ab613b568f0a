"""Sum up tables by destination, and what the commit policy makes of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from penstock.config.model import Pipeline
from penstock.control.delivery import Arrival
from penstock.control.status.report import Delivery, DestinationReport, TableReport
from penstock.model.position import Position
from penstock.model.table_state import State
from penstock.state.store import Health, component_of


def destination_reports(
    pipeline: Pipeline,
    tables: Sequence[TableReport],
    *,
    processed: Mapping[str, Position | None],
    health: Mapping[str, Health],
    head: Position | None,
) -> list[DestinationReport]:
    """Report each destination of a source. `pipeline` is as the source sees it; `head` is the source's position."""
    reports = []
    for view in pipeline.destination_views:
        name, policy = view.destination.name, pipeline.policy
        own = [table for table in tables if table.destination == name]
        lags = [table.lag_seconds for table in own if table.followed and table.state is State.READY]
        known = [lag for lag in lags if lag is not None]
        fares = health.get(component_of(name))
        reports.append(
            DestinationReport(
                source=pipeline.scope,
                name=name,
                type=view.destination.type,
                counts=name in policy.among,
                position=processed.get(name),
                lag_bytes=_behind(head, processed.get(name)),
                lag_seconds=max(known) if known and len(known) == len(lags) else None,
                states=dict(Counter(table.shown_state for table in own)),
                health=fares,
                holds_log=fares is not None and fares.state == "failed" and len(pipeline.destination_views) > 1,
            )
        )
    return reports


def delivery(
    pipeline: Pipeline,
    tables: Sequence[TableReport],
    *,
    processed: Mapping[str, Position | None],
    head: Position | None,
) -> Delivery:
    """Say what the policy calls delivered of a source. Arguments as above."""
    policy = pipeline.policy
    states = {
        name: tuple(table.state for table in tables if table.destination == name and table.followed)
        for name in policy.among
    }
    paused = Counter(table.destination for table in tables if table.followed and table.paused)
    arrivals = {name: Arrival(processed.get(name), found, paused[name]) for name, found in states.items()}
    position = policy.reached({name: one.complete_to for name, one in arrivals.items()}) or None
    return Delivery(
        source=pipeline.scope,
        position=position,
        lag_bytes=_behind(head, position),
        among=tuple(one.name for one in pipeline.whole.destinations if one.name in policy.among),
        least=policy.least,
        waiting={name: one.missing for name, one in sorted(arrivals.items()) if one.missing},
    )


def _behind(head: Position | None, position: Position | None) -> int | None:
    return None if head is None or position is None else max(head - position, 0)
