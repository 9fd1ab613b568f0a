"""Bring the source to where a pipeline can run: tables found, publications in step, then the slot made.

Used by `run` and by `capture` alone. What concerns the whole source and must be fixed by an operator raises
SourceMisconfigured with the statement; what concerns one table is that table's and is returned.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from penstock.changelog.log import ChangeLog
from penstock.config.model import Pipeline
from penstock.errors import GapError, LogDamaged, SourceMisconfigured
from penstock.model.position import Position
from penstock.model.table import TableId
from penstock.runtime.capture.publisher import Publisher
from penstock.runtime.watch.catalogue import Catalogue
from penstock.source.postgres import ddl_trigger, resume
from penstock.source.postgres.check import check_source
from penstock.source.postgres.connect import Connection
from penstock.source.postgres.publication import SKIPS_MISSING, inserts_publication, slot_sees
from penstock.source.postgres.slot import create_slot, slot_state
from penstock.source.sink import Origin

LOG = structlog.get_logger("source")


@dataclass(frozen=True)
class Prepared:
    """The source as the pipeline finds it. `slot_position` is where the slot stands; `slot_made` says that it is new.

    `inserts_read`: capture will read the publication for tables without a replica identity from its start on.
    """

    catalogue: Catalogue
    slot_position: Position
    inserts_read: bool = True
    slot_made: bool = False


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


def prepare_source(connection: Connection, pipeline: Pipeline, log: ChangeLog, publisher: Publisher) -> Prepared:
    source = pipeline.source
    gap = find_log_gap(connection, pipeline, log)
    if gap is not None:
        raise gap

    def wanted(table: TableId) -> bool:
        return pipeline.rule_for(table) is not None

    if source.ddl_trigger == "auto":
        _ensure_ddl_trigger(connection)
    for finding in check_source(connection, source, wanted, pipeline.each_partition, pipeline.modes):
        if finding.level == "error" and finding.table is None:
            raise SourceMisconfigured(finding.what, f"Fix: {finding.fix}")
        if finding.level != "note":
            LOG.warning(finding.what, fix=finding.fix)
    state = slot_state(connection, source.slot)
    second = inserts_publication(source.publication)
    # A new slot is made after both publications, so it sees them; since 18 that does not matter.
    any_slot = state is None or connection.info.server_version >= SKIPS_MISSING
    inserts_read = any_slot or slot_sees(connection, source.slot, second)
    catalogue = publisher.look(connection, inserts_read=inserts_read)
    position = _ensure_slot(connection, pipeline, log)
    return Prepared(catalogue, position, inserts_read, slot_made=state is None)


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
            resume.START_OVER,
        )
    position = create_slot(
        connection,
        pipeline.source.url.get_secret_value(),
        name,
        waiting=lambda who: LOG.warning("slot waits for open transactions", on=who),
    )
    LOG.info("slot created", slot=name)
    return position
