"""Apply the change log to one destination, batch by batch: one Spark job per batch, one commit per table.

Progress is the tables' own positions, committed with their data; nothing here needs to survive a crash. A table that
cannot take its changes becomes Errored and holds up no other. While more waits in the log, the next batch is written
beside the commits of the one before.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from queue import SimpleQueue

import structlog

from penstock.changelog.log import ChangeLog
from penstock.config.destinations import DeadLetterConfig
from penstock.config.model import BatchConfig
from penstock.decode.undecodable import Undecodable
from penstock.destinations.contract import JobRunner, TableDestination
from penstock.errors import (
    ColumnsRequired,
    CommitUnknown,
    CopyNeeded,
    KeyRequired,
    LineageLost,
    LogPassed,
    PenstockError,
    PositionLost,
    Retry,
    RowsMissing,
    SchemaChanged,
    StaleBase,
    StateError,
    TableError,
    TableFailed,
    TableLocked,
)
from penstock.failpoints import reach
from penstock.fold.evolution import Followed
from penstock.model.anomaly import AnomalyCount
from penstock.model.feed import Feed, Mode
from penstock.model.position import Position, position_text
from penstock.model.table import TableId, TableSchema
from penstock.model.table_state import State, TableProgress, TableStatus
from penstock.runtime.apply.anomaly_log import log_anomalies
from penstock.runtime.apply.batch_planner import Batch, BatchPlanner, Bound, TableWork, gather, unbounded
from penstock.runtime.apply.batch_writer import BatchWriter, InFlightBatch, Planned
from penstock.runtime.apply.followed_table import FollowedTable
from penstock.runtime.apply.structure_step import structure_step
from penstock.runtime.apply.table_boundary import Contained, of_table
from penstock.runtime.apply.task import Applied
from penstock.runtime.dead_letter_box import DeadLetterBox
from penstock.runtime.meter import METER
from penstock.state.store import StateStore

LOG = structlog.get_logger("apply")
ONE_AFTER_THE_OTHER = 2.0  # seconds, in which batches follow each other without a pause
MOST_RESYNCS = 3  # for rows that are missing, of one table
RESYNCS_WITHIN = 3600.0  # seconds
LOCKED_FOR = 5.0  # seconds, until a table that another session locks is tried again


class ApplyLoop:
    """`processed` is how far the log has been applied to every table that is not Errored."""

    def __init__(
        self,
        source: str,
        destination: TableDestination,
        runner: JobRunner,
        log: ChangeLog,
        limits: BatchConfig,
        state: StateStore,
        bound: Bound = unbounded,
        dlq: DeadLetterConfig = DeadLetterConfig(),
    ) -> None:
        self.source, self.destination, self.runner, self.log, self.state = source, destination, runner, log, state
        self._planner, self._limits = BatchPlanner(log, limits, bound=bound), limits
        self._joining: deque[FollowedTable] = deque()
        self.resyncs: SimpleQueue[tuple[TableId, str]] = SimpleQueue()  # feeds to be copied again, and why
        self._last_batch = time.monotonic()
        self.tables: dict[TableId, FollowedTable] = {}  # by the feed's name
        self.processed: Position = 0
        self.letters = DeadLetterBox(state, destination.name, dlq)
        self._writer = BatchWriter(
            source,
            destination,
            runner,
            log,
            state=state,
            tables=self.tables,
            followed=self._followed,
            containing=self.containing,
            letters=self.letters,
        )
        self.in_threads = self._writer.in_threads
        self._rows_missed: dict[TableId, list[float]] = {}  # when a table was copied again for it

    def close(self) -> None:
        self._writer.close()

    def track(self, feed: Feed, schema: TableSchema, position: Position, start: Position) -> None:
        """Take in a table that the destination holds at `position`; `start` is where the log begins.

        A clone whose changes the log no longer holds is copied again: it was left out for a while, or stood still
        for longer than the log is kept. Of the other modes the missing changes are lost, which is for the operator.
        """
        before = self.state.progress(self.destination.name).get(feed.name)
        tracked = FollowedTable(feed, schema, position)
        if before is not None:
            tracked.changes, tracked.fetched = before.changes, before.fetched
        self.tables[feed.name] = tracked
        try:
            self._require_covered(tracked, start)
        except PositionLost as error:
            self.mark_errored(tracked, error)
            return
        self._mark_ready(tracked)

    def track_errored(self, feed: Feed, schema: TableSchema, error: TableError, position: Position = 0) -> None:
        """Take in a table that the destination cannot take, or that cannot go on from its position."""
        self.tables[feed.name] = FollowedTable(feed, schema, position)
        self.mark_errored(self.tables[feed.name], error)

    def begin(self, start: Position) -> None:
        """Start, once the tables that take part from the beginning are tracked.

        How far they are is recorded at once: a run that was killed behind a commit has not recorded that, and a source
        that stays quiet brings no other batch that would.
        """
        positions = [tracked.position for tracked in self.tables.values() if not tracked.errored]
        self.processed = min(positions, default=start)
        if positions:
            self._record({})

    def join(self, feed: Feed, schema: TableSchema, position: Position) -> None:
        """Take a copied table in at the next batch boundary. May be called from any thread."""
        self._joining.append(FollowedTable(feed, schema, position, level=position))

    def resume(self, tracked: FollowedTable) -> None:
        """Try an Errored table again, from its own position."""
        tracked.errored = tracked.lacks_key = tracked.lacks_columns = False
        tracked.level = tracked.position

    def hold(self, tracked: FollowedTable, until: Position | None = None) -> Position:
        """Let the table go no further than `until`, or stay; the others go on. Return how far it is."""
        if tracked.level is None:
            tracked.level = self.processed
        tracked.held, tracked.until = True, until
        return max(tracked.level, tracked.position)

    def let_go(self, tracked: FollowedTable) -> None:
        """Let a held table go on, and join the others again."""
        tracked.held, tracked.until = False, None

    def pause(self, tracked: FollowedTable, paused: bool) -> None:
        """Leave a table behind for as long as an operator wants it, or let it go on."""
        if paused and tracked.level is None:
            tracked.level = self.processed
        tracked.paused = paused

    @property
    def level(self) -> bool:
        """Whether no table is behind the others, but for those that are paused."""
        waiting = any(
            tracked.level is not None and not tracked.errored and not tracked.paused for tracked in self.tables.values()
        )
        return not self._joining and self.resyncs.empty() and not waiting

    @property
    def following(self) -> list[FollowedTable]:
        """All tables, with those that wait to be taken in: what they need of the log must stay."""
        return [*self.tables.values(), *self._joining]

    def forget(self, table: TableId) -> None:
        """Let the table take no part any more; its destination stays as it is."""
        self.tables.pop(table, None)
        for joining in [one for one in self._joining if one.name == table]:
            self._joining.remove(joining)

    def step(self, *, now: bool = False, stopping: Callable[[], bool] = lambda: False) -> bool:
        """Apply the next batch, if there is one, and those that follow it at once, for a while.

        Return False when there was nothing to do. Raises what concerns the destination as a whole; then call again.
        """
        self.letters.expire()
        caught_up = self._catch_up()
        batch = self._next(self.processed, now=now)
        if batch is None:
            return caught_up
        began = time.monotonic()
        self._planner.take()
        self._take_renamed(batch)
        flight = self._writer.write(batch)
        is_first = True  # which another one may follow, however long it took
        while True:
            goes_on = self.level and not stopping() and (is_first or time.monotonic() - began < ONE_AFTER_THE_OTHER)
            foreseen = self._foreseen(flight, now=now) if goes_on else None
            self._writer.commit(flight)
            if foreseen is None:
                self._land(flight)
                return True
            flight, is_first = self._written_beside(flight, *foreseen), False

    def _next(self, after: Position, *, now: bool, beside: bool = False) -> Batch | None:
        return self._planner.next(after, self._level_positions(), self._relations(), now=now, beside=beside)

    def _foreseen(self, flight: InFlightBatch, *, now: bool) -> tuple[Batch, Mapping[TableId, Planned]] | None:
        """Return the batch that follows the flight, and the bases of its writes that the flight's commits will make.

        None when there is none yet, or it has to wait for them.
        """
        try:
            following = self._next(flight.batch.end, now=now, beside=True)
            ahead = None if following is None else self._writer.plan_next(flight, following)
        except BaseException:
            self._writer.discard(flight)
            raise
        return None if following is None or ahead is None else (following, ahead)

    def _written_beside(
        self, flight: InFlightBatch, following: Batch, ahead: Mapping[TableId, Planned]
    ) -> InFlightBatch:
        """Write the next batch while the one before it is committed, which is done when this returns or raises."""
        self._planner.take()
        try:
            follower = self._writer.write(following, ahead)
            reach("apply.written_beside")
        except BaseException:
            self._land(flight)
            raise
        try:
            self._land(flight)
        except BaseException:
            self._writer.discard(follower)
            raise
        self._writer.refuse(follower, flight.void & ahead.keys())
        return follower

    def _land(self, flight: InFlightBatch) -> None:
        """Record what the batch has committed."""
        committed = self._writer.finish(flight)
        if committed:
            reach("apply.batch_committed")
        self.processed = flight.batch.end
        self._record(committed)
        if committed:
            METER.batch(
                self.source,
                self.destination.name,
                changes=flight.batch.changes,
                bytes=flight.batch.bytes,
                seconds=time.monotonic() - flight.began,
                newest=max((one.last_commit_time for one in committed.values() if one.changes), default=0) / 1e6
                or None,
            )
            LOG.debug(
                "applied",
                changes=sum(result.changes for result in committed.values()),
                tables=len(committed),
                position=position_text(flight.batch.end),
                seconds=round(time.monotonic() - flight.began, 3),
            )

    def containing(self, tracked: FollowedTable, doing: str) -> Contained:
        """Make what goes wrong in the block the table's own, or raise what concerns all tables.

        `doing` completes "while …". May be called from any thread.
        """
        return Contained(
            lambda error: self.mark_errored(
                tracked, of_table(self.destination, self.source, tracked.feed, doing, error)
            )
        )

    def _lacks_rows(self, tracked: FollowedTable, error: PenstockError) -> bool:
        """Return whether the table lacks rows of its source, and a copy may help.

        If a copy has not helped a few times, it does not.
        """
        if not isinstance(error, RowsMissing):
            return False
        count = AnomalyCount("row", error.rows, (position_text(tracked.position),))
        self.state.add_anomalies(self.destination.name, tracked.name, [count])
        now = time.monotonic()
        recent = [at for at in self._rows_missed.get(tracked.name, []) if now - at < RESYNCS_WITHIN]
        self._rows_missed[tracked.name] = [*recent, now]
        return len(recent) < MOST_RESYNCS

    def mark_errored(self, tracked: FollowedTable, error: PenstockError) -> None:
        """Make the table Errored, or have it copied again where that is the way out and loses nothing."""
        if isinstance(error, TableLocked):
            self._wait(tracked, error)
            return
        lost = isinstance(error, LineageLost | LogPassed) and tracked.feed.mode is Mode.CLONE
        if lost or isinstance(error, CopyNeeded) or self._lacks_rows(tracked, error):
            try:
                self.want_resync(tracked, error.what)
                return
            except TableError as refused:
                error = refused
        elif isinstance(error, RowsMissing):
            tried = f"It was copied again {MOST_RESYNCS} times within an hour, which did not help"
            error = TableError(
                error.what, f"{tried}: run `penstock verify`, and report it; `penstock resync` copies it"
            )
        trace = {"exception": error.trace} if isinstance(error, TableFailed) and error.trace else {}
        LOG.error("table errored", table=str(tracked.name), what=error.what, solution=error.solution, **trace)
        status = TableStatus(State.ERRORED, datetime.now(UTC), error.what, error.solution, error.retry, error.code)
        if isinstance(error, Undecodable):
            self.state.quarantine(self.destination.name, tracked.name, error.messages)
        self.state.set_table_status(self.destination.name, tracked.name, status)
        self.state.add_event("errored", error.what, tracked.name, destination=self.destination.name)
        tracked.errored = True
        tracked.lacks_key |= isinstance(error, KeyRequired)
        tracked.lacks_columns |= isinstance(error, ColumnsRequired)
        tracked.lost |= isinstance(error, PositionLost)

    def _wait(self, tracked: FollowedTable, error: TableLocked) -> None:
        """Leave the table behind the others, which go on, and try it again a little later."""
        LOG.warning("table locked at the destination, retrying", table=str(tracked.name), what=error.what)
        tracked.waiting, tracked.try_again_at = True, time.monotonic() + LOCKED_FOR
        tracked.level = tracked.position if tracked.level is None else min(tracked.level, tracked.position)

    def mark_all_errored(self, error: PenstockError) -> None:
        """Make all tables Errored for what none can pass: a gap, a damaged log."""
        for tracked in self.tables.values():
            if not tracked.errored:
                self.mark_errored(tracked, error)

    def _mark_ready(self, tracked: FollowedTable) -> None:
        name, now = self.destination.name, datetime.now(UTC)
        before = self.state.table_status(name).get(tracked.name)
        if before is None:
            self.state.set_table_status(name, tracked.name, TableStatus(State.INIT, now))
        elif before.state is State.CATCHUP:  # its copy was committed, and then we were killed
            self.state.set_table_status(name, tracked.name, TableStatus(State.SYNC_DONE, now))
        if before is None or before.state is not State.READY:
            self.state.set_table_status(name, tracked.name, TableStatus(State.READY, now))

    def _require_covered(self, tracked: FollowedTable, start: Position) -> None:
        if tracked.position < start:
            raise self.lost(tracked, start)

    def lost(self, tracked: FollowedTable, start: Position) -> LogPassed:
        """Return the error of a table whose changes the log has let go of."""
        return LogPassed(
            f"table {tracked.name}: the change log begins at {position_text(start)}, "
            f"after the table's position {position_text(tracked.position)}",
            f"Copy it again: penstock resync FILE {tracked.name}",
        )

    def _level_positions(self) -> dict[Feed, Position]:
        return {
            tracked.feed: tracked.position
            for tracked in self.tables.values()
            if not tracked.errored and tracked.level is None
        }

    def _relations(self) -> dict[int, TableId]:
        return {tracked.schema.relation_id: tracked.feed.table for tracked in self.tables.values()}

    def _take_renamed(self, batch: Batch) -> None:
        """Take in what a table went through under another name: it is not in the table's own changes."""
        for name, other in batch.renamed.items():
            batch.tables.pop(name, None)
            try:
                self.want_resync(self.tables[name], f"it was called {other} for a while, and changed under that name")
            except TableError as error:
                self.mark_errored(self.tables[name], error)

    def _catch_up(self) -> bool:
        """Apply one batch for each table that is behind the others; those that are level take part from now on."""
        while self._joining:
            self.tables[self._joining[0].name] = self._joining[0]
            self._joining.popleft()
        worked = False
        for tracked in [tracked for tracked in self.tables.values() if tracked.level is not None]:
            if not tracked.errored and (not tracked.waiting or time.monotonic() >= tracked.try_again_at):
                tracked.waiting = False
                with self.containing(tracked, "it caught up with the others"):
                    worked |= self._bring_on(tracked)
        return worked

    def _bring_on(self, tracked: FollowedTable) -> bool:
        """Apply one batch for a table that is behind. False when it has to wait: where it is held, or for the log.

        It joins as soon as it is level: with the next batch the others would be ahead again, and so on for ever.
        """
        level, until = tracked.level, tracked.until
        assert level is not None
        if tracked.held and (until is None or level >= until):
            return False
        if tracked.paused and not tracked.held:
            return False
        segments = self.log.segments(after=level)
        if segments and segments[0].start > level:
            self.mark_errored(tracked, self.lost(tracked, segments[0].start))
            return True
        segments = [name for name in segments if name.start < (self.processed if until is None else until)]
        if segments and segments[-1].end > self.processed:  # the others stand within it
            until = self.processed if until is None else min(until, self.processed)
        batch = gather(self.log, segments, {tracked.feed: tracked.position}, self._limits, self._relations(), until)
        if batch is not None:
            self._take_renamed(batch)
            committed = self._writer.apply(batch) if batch.tables else {}
            if tracked.waiting:
                return False
            tracked.level = batch.end
            self._record(committed)
        is_level = batch is None or batch.end >= self.processed
        waits = tracked.held or tracked.paused
        if is_level and not waits and not tracked.errored:
            tracked.level = None
            self._mark_ready(tracked)
            if tracked.feed.mode is not Mode.EVENTS:  # which went on without them
                passed = max(self.processed, tracked.position)
                self.state.release_before(self.destination.name, tracked.name, passed)
            LOG.info("table joined", table=str(tracked.name), position=position_text(tracked.position))
        return batch is not None or not waits

    def _followed(self, tracked: FollowedTable, work: TableWork) -> Followed | None:
        """Return where the table's structure goes in this batch; None when it has to be copied again."""
        step = structure_step(tracked, work)
        if isinstance(step, Followed):
            return step
        self.want_resync(tracked, step)
        return None

    def take_structure(self, tracked: FollowedTable, structure: TableSchema) -> None:
        """Follow a structure that the catalogue has and no row has shown, or copy the table again if its rows cannot.

        The table must be level with the others, and everything up to the moment of the look applied: then no row of an
        earlier structure is still to come. A commit that somebody else's crosses is left to the next look. TableError
        when the table has to wait for the operator.
        """
        followed = self._followed(tracked, TableWork(tracked.feed, versions=[structure]))
        if followed is None or not followed.changes or tracked.feed.mode is Mode.EVENTS:
            return
        end = max(self.processed, tracked.position)
        try:
            plan = self.destination.plan(tracked.target, self.source, followed.schema, tracked.feed.on_column_drop)
            if plan.position != tracked.position:
                return
            self.destination.commit(plan, [], truncated=False, position=end)
        except StaleBase as error:
            LOG.info("structure change postponed", table=str(tracked.name), what=error.what)
            return
        except CommitUnknown as error:
            LOG.warning("commit outcome unknown", table=str(tracked.name), what=error.what)
            if self.destination.position(tracked.target, self.source) != end:
                return
        tracked.position, tracked.schema = end, followed.schema
        self._writer.report_changes(tracked, followed, end)

    def kept_partitions(self, table: TableId) -> list[str]:
        """Partitions that are gone at the source and whose rows the table keeps: a copy would remove them."""
        looked = self.state.partitions(self.destination.name).get(table)
        return [str(remark.relation) for remark in looked.remarks if remark.kind == "kept"] if looked else []

    def want_resync(self, tracked: FollowedTable, why: str) -> None:
        """Apply no more changes to the table, and have it copied again, unless a copy would remove what it keeps."""
        kept = self.kept_partitions(tracked.name)
        if kept and tracked.feed.mode is Mode.CLONE:
            raise SchemaChanged(
                f"table {tracked.name}: {why}, and it keeps the rows of partitions that are gone: {', '.join(kept)}",
                f"penstock resync FILE {tracked.name} copies it as the source is now; the rows kept are lost",
            )
        LOG.warning("table queued for resync", table=str(tracked.name), why=why)
        tracked.errored = True
        status = TableStatus(State.INIT, datetime.now(UTC), why, "Nothing: it is copied again by itself", Retry.AT_ONCE)
        self.state.set_table_status(self.destination.name, tracked.name, status)
        self.resyncs.put((tracked.name, why))

    def _record(self, committed: Mapping[TableId, Applied]) -> None:
        """Figures for operators; the truth is in the destination, so a state store that is away costs only these."""
        now, elapsed = datetime.now(UTC), max(time.monotonic() - self._last_batch, 1e-3)
        self._last_batch = time.monotonic()
        figures = {}
        for table, result in committed.items():
            tracked = self.tables[table]
            tracked.changes += result.changes
            tracked.fetched += result.fetched
            log_anomalies(table, result.anomalies)
            newest = datetime.fromtimestamp(result.last_commit_time / 1e6, UTC) if result.changes else None
            figures[table] = TableProgress(
                self.processed, tracked.changes, result.changes / elapsed, newest, now, tracked.fetched
            )
        try:
            if figures:
                self.state.record_progress(self.destination.name, figures)
            for table, result in committed.items():
                self.state.add_rescued(self.destination.name, table, result.rescues)
                self.state.add_anomalies(self.destination.name, table, result.anomalies)
            self.state.set_processed(self.destination.name, self.processed)
        except StateError as error:
            LOG.warning("progress not recorded", what=error.what)
