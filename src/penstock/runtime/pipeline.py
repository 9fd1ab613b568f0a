"""`penstock run`: the whole pipeline in one process, beside it the capture process that it supervises.

Order of things: lock, source made ready, capture started, Spark and destination opened, tables made, then batches
until it is told to stop (SIGTERM, Ctrl-C: the batch in flight is finished first) or, with `once`, until everything up
to the source's position at the start has been applied.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from datetime import UTC, datetime

import structlog

from penstock.changelog.log import ChangeLog
from penstock.config.model import Pipeline
from penstock.destinations.contract import Destination, JobRunner
from penstock.destinations.iceberg.destination import IcebergDestination
from penstock.errors import CheckFailed, GapError, LogDamaged, PenstockError, StateError
from penstock.model.position import Position, position_text
from penstock.model.table import TableId
from penstock.runtime.apply_loop import ApplyLoop
from penstock.runtime.backoff import Backoff
from penstock.runtime.housekeeping import Housekeeping
from penstock.runtime.preparation import Prepared, prepare_source
from penstock.runtime.signals import SignalFlag, stop_on_signals
from penstock.runtime.spark import SparkRunner, session
from penstock.runtime.supervisor import CaptureSupervisor
from penstock.source.postgres.check_tables import has_rows
from penstock.source.postgres.connect import Connection, connect
from penstock.source.postgres.slot import flush_position
from penstock.state.lock import PipelineLock
from penstock.state.sql import open_store
from penstock.state.store import Health, HealthState, StateStore

LOG = structlog.get_logger("pipeline")
POLL_SECONDS = 0.05


def run(pipeline: Pipeline, *, once: bool = False) -> None:
    """Returns when stopped or, with `once`, when drained. Raises what no retry can mend."""
    stop = SignalFlag()
    with ExitStack() as cleanup:
        cleanup.enter_context(PipelineLock(pipeline.home / "lock"))
        preparing = True
        stop_on_signals(stop, at_once=lambda: preparing)  # making a slot may wait long, and nothing is in flight yet
        state = open_store(pipeline.state_url)
        cleanup.callback(state.close)
        log = ChangeLog(pipeline.log_uri)
        url = pipeline.source.url.get_secret_value()
        with connect(url) as connection:
            prepared = prepare_source(connection, pipeline, log)
            target = flush_position(connection) if once else None
        preparing = False
        start = log.start() if log.end() is not None else None
        capture = CaptureSupervisor(pipeline.file, state)
        capture.start()
        cleanup.callback(capture.stop)
        runner, destination = _open_destination(pipeline, cleanup)
        loop = ApplyLoop(pipeline.name, destination, runner, log, pipeline.batch, state)
        cleanup.callback(loop.close)
        created = loop.track(
            prepared.schemas,
            {schema.table: pipeline.target(schema.table) for schema in prepared.schemas},
            prepared.slot_position if start is None else start,
        )
        with connect(url) as connection:
            _say_what_is_not_copied(connection, prepared, created, state)
        LOG.info("streaming", tables=len(prepared.schemas), position=position_text(loop.processed))
        _drive(pipeline, loop, capture, state, stop, target)
        LOG.info("stopped", position=position_text(loop.processed))
        errored = [str(tracked.table) for tracked in loop.tables.values() if tracked.errored]
        if once and errored:
            raise CheckFailed(
                f"{len(errored)} of {len(loop.tables)} tables are Errored: {', '.join(sorted(errored))}",
                f"`penstock status {pipeline.file.name}` says why and what to do",
            )


def _open_destination(pipeline: Pipeline, cleanup: ExitStack) -> tuple[JobRunner, Destination]:
    config = pipeline.destinations[0]
    spark = session(pipeline)
    cleanup.callback(spark.stop)
    destination = IcebergDestination(config, spark, index=pipeline.home / "index")
    destination.open()
    cleanup.callback(destination.close)
    return SparkRunner(spark), destination


def _drive(
    pipeline: Pipeline,
    loop: ApplyLoop,
    capture: CaptureSupervisor,
    state: StateStore,
    stop: SignalFlag,
    target: Position | None,
) -> None:
    housekeeping = Housekeeping(loop, pipeline.destinations[0].maintenance, pipeline.log)
    backoff = Backoff()
    component = f"destination {loop.destination.name}"
    _tell(state, component, "ok")
    while not stop.is_set() and (target is None or loop.processed < target):
        if capture.failure is not None:
            if isinstance(capture.failure, GapError | LogDamaged):
                loop.mark_all_errored(capture.failure)
            raise capture.failure
        try:
            worked = loop.step(now=target is not None)
            housekeeping.run()
        except LogDamaged as error:
            loop.mark_all_errored(error)
            raise
        except PenstockError as error:
            if error.retry not in ("backoff", "at once"):
                raise
            LOG.warning("waiting", what=error.what, solution=error.solution, seconds=backoff.delay)
            _tell(state, component, "retrying", error, backoff.attempts + 1)
            backoff.wait(stop)
            continue
        if backoff.attempts:
            backoff.reset()
            _tell(state, component, "ok")
        if not worked:
            stop.wait(POLL_SECONDS)
    _tell(state, component, "stopped")


def _say_what_is_not_copied(
    connection: Connection, prepared: Prepared, created: Collection[TableId], state: StateStore
) -> None:
    for schema in prepared.schemas:
        if schema.table in created and has_rows(connection, schema.table):
            message = f"table {schema.table}: rows that were there before its changes are read are not in the lake yet"
            LOG.warning(message, solution="They come with the initial copy, which this version does not have")
            state.add_event("not copied", message, schema.table)


def _tell(
    state: StateStore, component: str, health: HealthState, error: PenstockError | None = None, attempts: int = 0
) -> None:
    """For people: a state store that is away must not end the run."""
    what, solution = (error.what, error.solution) if error else ("", "")
    try:
        state.set_health(component, Health(health, datetime.now(UTC), what, solution, attempts))
    except StateError as away:
        LOG.warning("health not recorded", what=away.what)
