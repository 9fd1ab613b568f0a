"""Record how a component fares, for `penstock status`."""

from __future__ import annotations

from datetime import UTC, datetime

import structlog

from penstock.errors import PenstockError, StateError
from penstock.state.store import Health, HealthReports, HealthState

LOG = structlog.get_logger("pipeline")


def record_health(
    state: HealthReports,
    component: str,
    health: HealthState,
    error: PenstockError | None = None,
    attempts: int = 0,
    since: datetime | None = None,
) -> None:
    """Record a component's health, since now or since an outage began.

    A state store that is away does not end the run.
    """
    what, solution, code = (error.what, error.solution, error.code) if error else ("", "", "")
    try:
        state.set_health(component, Health(health, since or datetime.now(UTC), what, solution, attempts, code))
    except StateError as away:
        LOG.warning("health not recorded", what=away.what)
