"""Bring the source to where a pipeline can run: tables found, their changes sent, then kept for the pipeline.

Used by `run` and by `capture` alone. What concerns the whole source and must be fixed by an operator raises
SourceMisconfigured with the statement; what concerns one table is that table's and is returned.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from penstock.changelog.log import ChangeLog
from penstock.config.model import Pipeline
from penstock.errors import GapError, LogDamaged, SourceMisconfigured
from penstock.runtime.capture.publisher import Publisher
from penstock.runtime.watch.catalogue import Catalogue
from penstock.source.contract import Retained, Session
from penstock.source.sink import Origin

LOG = structlog.get_logger("source")


@dataclass(frozen=True)
class Prepared:
    """The source as the pipeline finds it.

    `retained` says from where on it keeps its changes. `reading` is what capture will read from its start on, in the
    source's own names.
    """

    catalogue: Catalogue
    retained: Retained
    reading: frozenset[str]


def find_log_gap(session: Session, log: ChangeLog) -> GapError | None:
    """Return the gap between a pipeline's log and its source, if one shows: to be known before anything is altered."""
    try:
        chain = log.segments()
        last = log.header(chain[-1]) if chain else None
    except LogDamaged:
        return None  # capture says which segment, and what to do
    if last is None:
        return None
    return session.find_gap(last.end, Origin(last.origin, last.state))


def prepare_source(session: Session, pipeline: Pipeline, log: ChangeLog, publisher: Publisher) -> Prepared:
    gap = find_log_gap(session, log)
    if gap is not None:
        raise gap
    session.install()
    for finding in session.check(pipeline):
        if finding.level == "error" and finding.table is None:
            raise SourceMisconfigured(finding.what, f"Fix: {finding.fix}")
        if finding.level != "note":
            LOG.warning(finding.what, fix=finding.fix)
    reading = session.readable()
    catalogue = publisher.look(session, reading=reading)
    retained = session.retain(log.end())
    if not pipeline.source.keeps_changes:
        log.remove_all()  # an earlier run's, which nothing can follow; last, when nothing refuses this one any more
    return Prepared(catalogue, retained, reading)
