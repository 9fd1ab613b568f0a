"""Brings the source to where a pipeline can run: tables found, publication in step, then the slot made.

Used by `run` and by `capture` alone. What must be fixed by a person raises SourceMisconfigured with the statement.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from penstock.changelog.log import ChangeLog
from penstock.config.model import Pipeline
from penstock.errors import GapError, SourceMisconfigured
from penstock.model.position import Position
from penstock.model.table import TableId, TableSchema
from penstock.source.postgres import ddl_trigger
from penstock.source.postgres.check import check_source
from penstock.source.postgres.connect import Connection
from penstock.source.postgres.discover import discover
from penstock.source.postgres.publication import ensure_publication
from penstock.source.postgres.slot import create_slot, slot_state

LOG = structlog.get_logger("source")


@dataclass(frozen=True)
class Prepared:
    """The source as the pipeline finds it. `slot_position` is where the slot stands."""

    schemas: list[TableSchema]
    slot_position: Position


def prepare_source(connection: Connection, pipeline: Pipeline, log: ChangeLog) -> Prepared:
    source = pipeline.source

    def wanted(table: TableId) -> bool:
        return pipeline.rule_for(table) is not None

    if source.ddl_trigger == "auto":
        _ensure_ddl_trigger(connection)
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


def _ensure_ddl_trigger(connection: Connection) -> None:
    """Install the DDL trigger where the role may, unless somebody has disabled it. The pipeline runs without it too."""
    if ddl_trigger.state(connection) not in ("absent", "outdated"):
        return
    try:
        ddl_trigger.install(connection)
    except SourceMisconfigured as error:
        LOG.warning("DDL trigger not installed", what=error.what, solution=error.solution)
    else:
        LOG.info("DDL trigger installed", trigger=ddl_trigger.TRIGGER)


def _ensure_slot(connection: Connection, pipeline: Pipeline, log: ChangeLog) -> Position:
    name = pipeline.source.slot
    state = slot_state(connection, name)
    if state is not None:
        return state.confirmed_flush_lsn or 0
    if log.end() is not None:
        raise GapError(
            f"the slot {name} is gone, so what happened since the change log's end cannot be read any more",
            f"Start anew: remove {pipeline.log_uri}, run again, and copy each table again with `penstock resync`",
        )
    position = create_slot(
        connection,
        pipeline.source.url.get_secret_value(),
        name,
        waiting=lambda who: LOG.warning("the slot waits for transactions that are still open", on=who),
    )
    LOG.info("slot created", slot=name)
    return position
