"""Log the changes of a batch that did not suit what was there, for tables with `anomalies: log`."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from penstock.model.anomaly import KINDS, AnomalyCount
from penstock.model.table import TableId

LOG = structlog.get_logger("apply")


def log_anomalies(table: TableId, counts: Iterable[AnomalyCount]) -> None:
    """Log the first ten of each kind with their keys, and say how many more there are."""
    for found in counts:
        for place, key in found.examples:
            LOG.warning("anomaly", table=str(table), kind=found.kind, key=key, place=place)
        more = found.changes - len(found.examples)
        if found.examples and more:
            LOG.warning("more anomalies", table=str(table), kind=found.kind, changes=more, what=KINDS[found.kind])
