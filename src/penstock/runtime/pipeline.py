"""`penstock run`: the whole pipeline in one process, beside it the capture process that it supervises.

Order of things: lock, source made ready, capture started, Spark and destination opened, tables made, then batches
until it is told to stop (SIGTERM, Ctrl-C: the batch in flight is finished first) or, with `once`, until everything up
to the source's position at the start has been applied.
"""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime

import structlog

from penstock.changelog.log import ChangeLog
from penstock.config.model import Pipeline
from penstock.destinations.contract import Destination, JobRunner
from penstock.destinations.iceberg.destination import IcebergDestination
from penstock.errors import CheckFailed, GapError, LogDamaged, PenstockError, StateError
from penstock.model.position import Position, position_text
from penstock.model.table_state import State, TableStatus
from penstock.runtime.apply_loop import ApplyLoop
from penstock.runtime.backoff import Backoff
from penstock.runtime.copier import Copier, ProgressView
from penstock.runtime.housekeeping import Housekeeping
from penstock.runtime.membership import Membership
from penstock.runtime.preparation import Prepared, prepare_source
from penstock.runtime.signals import SignalFlag, stop_on_signals
from penstock.runtime.spark import SparkRunner, session
from penstock.runtime.supervisor import CaptureSupervisor
from penstock.source.postgres.connect import Connection, connect
from penstock.source.postgres.slot import flush_position
from penstock.state.lock import PipelineLock
from penstock.state.sql import open_store
from penstock.state.store import Health, HealthState, StateStore

LOG = structlog.get_logger("pipeline")
POLL_SECONDS = 0.05


def run(pipeline: Pipeline, *, progress: ProgressView, once: bool = False) -> None:
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
            prepared = _prepared(connection, pipeline, log, state)
            target = flush_position(connection) if once else None
        preparing = False
        start = log.start()
        log_begins = prepared.slot_position if start is None else start
        capture = CaptureSupervisor(pipeline.file, state)
        capture.start()
        cleanup.callback(capture.stop)
        runner, destination = _open_destination(pipeline, cleanup)
        loop = ApplyLoop(pipeline.name, destination, runner, log, pipeline.batch, state)
        cleanup.callback(loop.close)
        copier = Copier(
            pipeline,
            destination,
            runner,
            log,
            state,
            lambda copied, position: loop.join(copied.feed, copied.schema, position),
            progress,
        )
        membership = Membership(pipeline, loop, copier, state, log_begins)
        for schema in prepared.schemas:
            membership.admit(schema)
        loop.begin(log_begins)
        copier.start()
        cleanup.callback(copier.stop)
        membership.start()
        cleanup.callback(membership.stop)
        LOG.info("streaming", tables=len(prepared.schemas), position=position_text(loop.processed))
        _drive(pipeline, loop, copier, membership, capture, state, stop, target)
        LOG.info("stopped", position=position_text(loop.processed))
        errored = [tracked.table for tracked in loop.tables.values() if tracked.errored] + copier.errored
        if once and errored:
            raise CheckFailed(
                f"{len(errored)} of {len(prepared.schemas)} tables are Errored: {', '.join(map(str, sorted(errored)))}",
                f"`penstock status {pipeline.file.name}` says why and what to do",
            )


def _prepared(connection: Connection, pipeline: Pipeline, log: ChangeLog, state: StateStore) -> Prepared:
    """The source made ready. A gap that shows here is told for every table, before it ends the run."""
    try:
        return prepare_source(connection, pipeline, log)
    except GapError as gap:
        for destination in pipeline.destinations:
            for table in state.table_status(destination.name):
                status = TableStatus(State.ERRORED, datetime.now(UTC), gap.what, gap.solution, gap.retry)
                state.set_table_status(destination.name, table, status)
        raise


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
    copier: Copier,
    membership: Membership,
    capture: CaptureSupervisor,
    state: StateStore,
    stop: SignalFlag,
    target: Position | None,
) -> None:
    housekeeping = Housekeeping(loop, pipeline.destinations[0].maintenance, pipeline.log, copier.needed_from)
    backoff = Backoff()
    component = f"destination {loop.destination.name}"
    _tell(state, component, "ok")

    def drained() -> bool:
        return target is not None and loop.processed >= target and not copier.busy and loop.level

    while not stop.is_set() and not drained():
        if copier.failure is not None:
            raise copier.failure
        if capture.failure is not None:
            if isinstance(capture.failure, GapError | LogDamaged):
                loop.mark_all_errored(capture.failure)
            raise capture.failure
        try:
            membership.tend()
            worked = loop.step(now=target is not None or backoff.attempts > 0)
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


def _tell(
    state: StateStore, component: str, health: HealthState, error: PenstockError | None = None, attempts: int = 0
) -> None:
    """For people: a state store that is away must not end the run."""
    what, solution = (error.what, error.solution) if error else ("", "")
    try:
        state.set_health(component, Health(health, datetime.now(UTC), what, solution, attempts))
    except StateError as away:
        LOG.warning("health not recorded", what=away.what)
