"""Brings the source to where a pipeline can run: tables found, publication in step, then the slot made.

Used by `run` and by `capture` alone. What must be fixed by a person raises SourceMisconfigured with the statement.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from penstock.changelog.log import ChangeLog
from penstock.config.model import Pipeline
from penstock.errors import GapError, LogDamaged, SourceMisconfigured
from penstock.model.position import Position
from penstock.model.table import TableId, TableSchema
from penstock.source.postgres import resume
from penstock.source.postgres.check import check_source
from penstock.source.postgres.connect import Connection
from penstock.source.postgres.discover import discover
from penstock.source.postgres.publication import ensure_publication
from penstock.source.postgres.slot import create_slot, slot_state
from penstock.source.sink import Origin

LOG = structlog.get_logger("source")


@dataclass(frozen=True)
class Prepared:
    """The source as the pipeline finds it. `slot_position` is where the slot stands."""

    schemas: list[TableSchema]
    slot_position: Position


def find_log_gap(connection: Connection, pipeline: Pipeline, log: ChangeLog) -> GapError | None:
    """The gap between the pipeline's log and its source, if one shows: to be known before anything is altered."""
    try:
        chain = log.segments()
        last = log.header(chain[-1]) if chain else None
    except LogDamaged:
        return None  # capture says which segment, and what to do
    if last is None:
        return None
    origin = Origin(last.system_id, last.timeline, last.replica)
    url = pipeline.source.url.get_secret_value()
    return resume.find_gap(url, connection, pipeline.source.slot, last.end, origin)


def prepare_source(connection: Connection, pipeline: Pipeline, log: ChangeLog) -> Prepared:
    source = pipeline.source
    gap = find_log_gap(connection, pipeline, log)
    if gap is not None:
        raise gap

    def wanted(table: TableId) -> bool:
        return pipeline.rule_for(table) is not None

    for finding in check_source(connection, source, wanted, pipeline.each_partition, pipeline.modes):
        if finding.level == "error" and finding.table is None:
            raise SourceMisconfigured(finding.what, f"Fix: {finding.fix}")
        if finding.level != "note":
            LOG.warning(finding.what, fix=finding.fix)
    found = discover(connection, wanted, source.publication, pipeline.each_partition)
    for statement in ensure_publication(
        connection, source.publication, [schema.table for schema in found], pipeline.name
    ):
        LOG.info("publication", statement=statement)
    found = discover(connection, wanted, source.publication, pipeline.each_partition)
    return Prepared(found, _ensure_slot(connection, pipeline, log))


def _ensure_slot(connection: Connection, pipeline: Pipeline, log: ChangeLog) -> Position:
    name = pipeline.source.slot
    state = slot_state(connection, name)
    if state is not None:
        return state.confirmed_flush_lsn or 0
    if log.end() is not None:
        raise GapError(
            f"the slot {name} is gone, so what happened since the change log's end cannot be read any more",
            resume.START_OVER,
        )
    position = create_slot(
        connection,
        pipeline.source.url.get_secret_value(),
        name,
        waiting=lambda who: LOG.warning("the slot waits for transactions that are still open", on=who),
    )
    LOG.info("slot created", slot=name)
    return position
