"""One source's way into the destination: its capture process, change log, batches, copies and members.

A pipeline has a lane for each of its sources. What a lane works on is its own, but for what all lanes share: the
destination, Spark's runner and the state store, of which it sees its own rows. Order of things: `prepare`,
`start_capture`, `stream`, `close`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime

import structlog

from penstock.changelog.log import ChangeLog
from penstock.changelog.scratch import remove_leftovers
from penstock.config.model import Pipeline
from penstock.destinations.contract import JobRunner, TableDestination
from penstock.errors import CheckFailed, GapError, LogDamaged, PenstockError, StateError
from penstock.fold.rule import noted
from penstock.model.position import Position, position_text
from penstock.model.table_state import State, TableStatus
from penstock.runtime.apply.loop import ApplyLoop
from penstock.runtime.apply.table_lifecycle import TableLifecycle
from penstock.runtime.apply.target_claims import TargetClaims
from penstock.runtime.capture.preparation import Prepared, prepare_source
from penstock.runtime.capture.publisher import Publisher
from penstock.runtime.capture.supervisor import CaptureSupervisor
from penstock.runtime.copy.copier import Copier
from penstock.runtime.copy.copying_table import CopyingTable, ProgressView
from penstock.runtime.pins import Pins
from penstock.runtime.process.backoff import Backoff
from penstock.runtime.process.outage import Outage
from penstock.runtime.process.signals import SignalFlag
from penstock.runtime.upkeep.housekeeping import Housekeeping
from penstock.runtime.upkeep.schema_registry import SchemaRegistry
from penstock.runtime.watch.table_watch import Look, TableWatch
from penstock.source.postgres.connect import Connection, connect
from penstock.source.postgres.publication import inserts_publication
from penstock.source.postgres.slot import drop_slot, flush_position
from penstock.state.store import Health, HealthState, StateStore

LOG = structlog.get_logger("pipeline")
POLL_SECONDS = 0.05


class SourcePipeline:
    """`pipeline` and `state` are as the source sees them. With `once` it ends when all that the source had at
    `prepare` is applied."""

    def __init__(
        self,
        pipeline: Pipeline,
        state: StateStore,
        owners: TargetClaims,
        progress: ProgressView,
        *,
        once: bool,
        may_leave: bool = False,
    ) -> None:
        self.pipeline, self.state = pipeline, state
        self._owners, self._progress, self._once = owners, progress, once
        self._log = ChangeLog(pipeline.log_uri)
        self._capture = CaptureSupervisor(pipeline, state)
        self._publisher = Publisher(pipeline, state, may_leave=may_leave)
        self._prepared: Prepared | None = None
        self._look: Look | None = None
        self._begun = False  # tables depend on the slot
        self._until: Position | None = None  # with `once`

    def prepare(self) -> None:
        """Brings the source to where the lane can run. May wait long, when the slot has to be made."""
        with connect(self.pipeline.source.url.get_secret_value()) as connection:
            self._prepared = self._prepare(connection)
            try:
                self._look = TableWatch(self.pipeline, self.state).look(connection, self._prepared.schemas)
                self._until = flush_position(connection) if self._once else None
            except BaseException:
                self._give_up_slot()
                raise

    def start_capture(self) -> None:
        self._capture.start()

    def close(self) -> None:
        self._capture.stop()

    def ended(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the lane; a first start that failed before any table was taken in leaves no slot behind."""
        self.close()
        if kind is not None and not self._begun:
            self._give_up_slot()

    def _give_up_slot(self) -> None:
        """Drop the slot that this start made, with what was captured from it: the server would keep WAL for it."""
        if self._prepared is None or not self._prepared.slot_made:
            return
        slot = self.pipeline.source.slot
        try:
            self._log.remove_all()  # first: a log without its slot would be a gap
            with connect(self.pipeline.source.url.get_secret_value()) as connection:
                drop_slot(connection, slot)
        except PenstockError as error:
            LOG.error(
                "slot left behind by a start that failed",
                slot=slot,
                what=error.what,
                solution=f"Run again, or free the WAL that the server keeps: SELECT pg_drop_replication_slot('{slot}')",
            )
        else:
            LOG.info("slot dropped, for the start failed", slot=slot)

    def stream(self, destination: TableDestination, runner: JobRunner, stop: SignalFlag) -> None:
        """Returns when stopped or, with `once`, when drained. Raises what no retry can mend."""
        assert self._prepared is not None
        assert self._look is not None
        pipeline, state, log = self.pipeline, self.state, self._log
        if remove_leftovers(log):
            LOG.info("removed scratch files left by a killed run", log=log.uri)
        start = log.start()
        log_begins = self._prepared.slot_position if start is None else start
        with ExitStack() as cleanup:
            loop = ApplyLoop(pipeline.key, destination, runner, log, pipeline.batch, state)
            cleanup.callback(loop.close)
            registry = SchemaRegistry(log, state)
            registry.look()
            copier = Copier(
                pipeline,
                destination,
                runner,
                log,
                state,
                self._joined(loop, registry, state),
                self._progress,
            )
            membership = TableLifecycle(
                pipeline, loop, copier, state, log_begins, self._owners, self._publisher, self._inserts_read
            )
            membership.found(self._prepared.findings)
            for schema in self._prepared.schemas:
                membership.admit(schema)
            membership.note_missing()
            loop.begin(log_begins)
            for tracked in loop.tables.values():
                if not tracked.errored:
                    registry.held(tracked.schema, tracked.position)
            membership.looked(self._look)
            membership.tend()
            self._begun = True
            copier.start()
            cleanup.callback(copier.stop)
            membership.start()
            cleanup.callback(membership.stop)
            LOG.info("streaming", tables=len(self._prepared.schemas), position=position_text(loop.processed))
            self._drive(loop, copier, membership, registry, stop)
            LOG.info("stopped", position=position_text(loop.processed))
            errored = [tracked.name for tracked in loop.tables.values() if tracked.errored]
            errored += [*copier.errored, *membership.set_aside]
        if self._once and errored:
            raise CheckFailed(
                f"{len(errored)} of {membership.followed} tables are Errored: {', '.join(map(str, sorted(errored)))}",
                f"`penstock status {pipeline.file.name}` says why and what to do",
            )

    def tell(
        self,
        component: str,
        health: HealthState,
        error: PenstockError | None = None,
        attempts: int = 0,
        since: datetime | None = None,
    ) -> None:
        """Record a component's health, since now or since an outage began. A state store that is away must not end the
        run."""
        what, solution = (error.what, error.solution) if error else ("", "")
        try:
            self.state.set_health(component, Health(health, since or datetime.now(UTC), what, solution, attempts))
        except StateError as away:
            LOG.warning("health not recorded", what=away.what)

    def _prepare(self, connection: Connection) -> Prepared:
        """A gap that shows here is told for every table."""
        try:
            return prepare_source(connection, self.pipeline, self._log, self._publisher)
        except GapError as gap:
            for destination in self.pipeline.destinations:
                for table in self.state.table_status(destination.name):
                    status = TableStatus(State.ERRORED, datetime.now(UTC), gap.what, gap.solution, gap.retry, gap.code)
                    self.state.set_table_status(destination.name, table, status)
            raise

    def _inserts_read(self) -> bool:
        """Whether capture reads the publication for tables without a replica identity."""
        assert self._prepared is not None
        read = self._capture.publications
        return (
            self._prepared.inserts_read
            if read is None
            else inserts_publication(self.pipeline.source.publication) in read
        )

    @staticmethod
    def _joined(
        loop: ApplyLoop, registry: SchemaRegistry, state: StateStore
    ) -> Callable[[CopyingTable, Position], None]:
        def joined(copied: CopyingTable, position: Position) -> None:
            registry.held(copied.schema, position)
            state.set_rule(loop.destination.name, copied.feed.name, noted(copied.feed, copied.schema))
            loop.join(copied.feed, copied.schema, position)

        return joined

    def _drive(
        self, loop: ApplyLoop, copier: Copier, membership: TableLifecycle, registry: SchemaRegistry, stop: SignalFlag
    ) -> None:
        maintenance, until = self.pipeline.destinations[0].maintenance, self._until
        pins = Pins(loop, self.state)
        housekeeping = Housekeeping(loop, maintenance, self.pipeline.log, copier.needed_from, registry.prune)
        backoff, outage = Backoff(), Outage("destination", "pipeline")
        component = f"destination {loop.destination.name}"
        self.tell(component, "ok")

        def drained() -> bool:
            if until is None or loop.processed < until or copier.busy or not membership.is_settled(until):
                return False
            return loop.level and self._capture.verified  # else the log may go on from a history that is no more

        while not stop.is_set() and not drained():
            if copier.failure is not None:
                raise copier.failure
            if self._capture.failure is not None:
                if isinstance(self._capture.failure, GapError | LogDamaged):
                    loop.mark_all_errored(self._capture.failure)
                raise self._capture.failure
            try:
                membership.tend()
                pins.tend()
                worked = loop.step(now=until is not None or backoff.attempts > 0, stopping=stop.is_set)
                if worked:
                    registry.look()
                housekeeping.run()
            except LogDamaged as error:
                loop.mark_all_errored(error)
                raise
            except PenstockError as error:
                if error.retry not in ("backoff", "at once"):
                    raise
                since = outage.note(error.what, error.solution)
                self.tell(component, "retrying", error, backoff.attempts + 1, since)
                backoff.wait(stop)
                continue
            if backoff.attempts:
                backoff.reset()
                outage.end()
                self.tell(component, "ok")
            if not worked:
                stop.wait(POLL_SECONDS)
        pins.end()
        self.tell(component, "stopped")
