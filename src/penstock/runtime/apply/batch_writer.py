"""Apply batches: plan each table's write, run one Spark job per batch, commit each table once, redo refused commits.

The job of the next batch runs beside the commits of the one before: a destination can tell what those commits will make
of a table before they are made (`plan_after`). Should one of them come to something else, what was written over it is
void, and written again; no commit is made over anything but what it was written for. So at most two batches are under
way, and in every table one commit after the other. A destination that can commits all tables of a batch in one step.
Whatever fails for one table is met by `containing`, which makes it that table's own or raises it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import structlog

from penstock.changelog.log import ChangeLog
from penstock.destinations.contract import (
    JobRunner,
    TableCommit,
    TableDestination,
    WholeBatches,
    WritePlan,
    WrittenPart,
    committing_whole_batches,
)
from penstock.errors import (
    CommitUnknown,
    LineageLost,
    PenstockError,
    StaleBase,
    StateError,
    TableError,
)
from penstock.failpoints import reach
from penstock.fold.evolution import Followed, follow
from penstock.model.anomaly import merged_anomalies
from penstock.model.position import Position, position_text
from penstock.model.quarantine import RawMessage
from penstock.model.rescue import merged
from penstock.model.table import TableId
from penstock.runtime.apply.batch_planner import Batch, TableWork
from penstock.runtime.apply.followed_table import FollowedTable
from penstock.runtime.apply.job import run_tasks
from penstock.runtime.apply.table_boundary import Contained
from penstock.runtime.apply.task import Applied, ApplyTask, tasks_for
from penstock.runtime.dead_letter_box import DeadLetterBox
from penstock.runtime.meter import BATCH_SECONDS, COMMIT_SECONDS, timing
from penstock.runtime.process.log_context import inheriting
from penstock.state.store import Events, Quarantine

LOG = structlog.get_logger("apply")
COMMIT_THREADS = 6
REDOS = 8
PLANNING, APPLYING, COMMITTING = "its write was planned", "its changes were applied", "its commit was made"

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Planned:
    """The base of one table's write, and where its structure goes."""

    plan: WritePlan
    followed: Followed


@dataclass
class InFlightBatch:
    """A batch whose rows are written, and not all committed."""

    batch: Batch
    plans: Mapping[TableId, Planned]
    results: dict[TableId, list[Applied]]
    began: float  # monotonic
    void: set[TableId] = field(default_factory=set)  # tables whose write was in vain
    commits: dict[TableId, Future[Applied | None]] = field(default_factory=dict)  # None: it was refused


class BatchState(Events, Quarantine, Protocol):
    """What the writing of batches needs of the state store."""


class BatchWriter:
    """Write batches to their tables and commit them.

    `followed` returns how a table's structure develops in a batch, None when the table takes no part in it.
    `containing` is a context around the work for one table, and is given that table: it raises what concerns all
    tables, and otherwise makes this table Errored.
    """

    def __init__(
        self,
        source: str,
        destination: TableDestination,
        runner: JobRunner,
        log: ChangeLog,
        *,
        state: BatchState,
        tables: Mapping[TableId, FollowedTable],
        followed: Callable[[FollowedTable, TableWork], Followed | None],
        containing: Callable[[FollowedTable, str], Contained],
        letters: DeadLetterBox,
    ) -> None:
        self._source, self._destination, self._runner, self._log = source, destination, runner, log
        self._state, self._tables, self._followed, self._containing = state, tables, followed, containing
        self._letters = letters
        self._threads = ThreadPoolExecutor(COMMIT_THREADS, thread_name_prefix="commit", initializer=inheriting())

    def close(self) -> None:
        self._threads.shutdown()

    def in_threads(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Call the function for each item; return, or raise, only when all calls have ended.

        A commit that is redone must not meet one that still runs.
        """
        running = [self._threads.submit(function, item) for item in items]
        wait(running)
        return [done.result() for done in running]

    def apply(self, batch: Batch) -> dict[TableId, Applied]:
        """Bring every table of the batch to the batch's end, except those that become Errored."""
        flight = self.write(batch)
        self.commit(flight)
        return self.finish(flight)

    def write(self, batch: Batch, ahead: Mapping[TableId, Planned] | None = None) -> InFlightBatch:
        """Write the batch without committing it. `ahead` has the bases that the commits under way will make."""
        began, foreseen = time.monotonic(), ahead or {}
        others = {table: work for table, work in batch.tables.items() if table not in foreseen}
        plans = {**foreseen, **self._plans(others, batch.end, presumed=True)}
        with timing(BATCH_SECONDS, source=self._source, destination=self._destination.name, stage="write"):
            results = self._run_job(batch.tables, plans) if plans else {}
        return InFlightBatch(batch, plans, results, began)

    def plan_next(self, flight: InFlightBatch, following: Batch) -> dict[TableId, Planned] | None:
        """Plan the next batch's writes over commits that this batch has still to make, for the tables in both.

        Return None when the next batch has to wait for those commits.
        """
        found: dict[TableId, Planned] = {}
        if flight.void or following.renamed or not following.tables:
            return None
        for table, work in following.tables.items():
            planned, results = flight.plans.get(table), flight.results.get(table)
            if planned is None or results is None or _has_nothing(planned, results):
                continue
            next_one = None
            with self._containing(self._tables[table], PLANNING):
                next_one = self._ahead(flight, planned, results, work)
            if next_one is None:
                return None
            found[table] = next_one
        return found

    def _ahead(
        self, flight: InFlightBatch, planned: Planned, results: Sequence[Applied], work: TableWork
    ) -> Planned | None:
        followed = follow(self._tables[work.feed.name].schema, work.versions, work.feed.type_map)
        moves = planned.followed.changes or followed.changes or followed.resync
        if moves or any(result.truncated for result in results):
            return None
        plan = self._destination.plan_after(
            planned.plan, _parts(results), position=flight.batch.end, moment=_moment(planned, results)
        )
        return None if plan is None else Planned(plan, followed)

    def commit(self, flight: InFlightBatch) -> None:
        """Start the flight's commits in the background."""
        flight.commits = self._submitted(flight.plans, flight.results, flight.batch.end)

    def finish(self, flight: InFlightBatch) -> dict[TableId, Applied]:
        """Wait for the commits, redo what was refused or void, and give what was committed."""
        with timing(BATCH_SECONDS, source=self._source, destination=self._destination.name, stage="commit"):
            committed = self._committed(flight.commits)
        flight.void |= flight.commits.keys() - committed.keys()
        pending = {table: work for table, work in flight.batch.tables.items() if table in flight.void}
        tries = 1
        while pending := {table: work for table, work in pending.items() if self._takes_part(table)}:
            if tries == REDOS:
                for table in pending:
                    with self._containing(self._tables[table], COMMITTING):
                        raise _refused(table)
                break
            tries += 1
            plans = self._plans(pending, flight.batch.end, presumed=False)
            results = self._run_job(pending, plans)
            # One table that is refused again and again must not keep the others from their commits
            together = tries <= REDOS // 2
            committed |= self._committed(self._submitted(plans, results, flight.batch.end, together=together))
            pending = {table: work for table, work in pending.items() if table in results and table not in committed}
        return committed

    def _takes_part(self, table: TableId) -> bool:
        return not (self._tables[table].errored or self._tables[table].waiting)

    def _submitted(
        self,
        plans: Mapping[TableId, Planned],
        results: Mapping[TableId, list[Applied]],
        end: Position,
        *,
        together: bool = True,
    ) -> dict[TableId, Future[Applied | None]]:
        """Start the commits: one for all tables where the destination can, unless it is not to be `together`."""
        whole = committing_whole_batches(self._destination) if together and results else None
        if whole is None:
            return {
                table: self._threads.submit(self._timed_commit, plans[table], group, end)
                for table, group in results.items()
            }
        outcomes: dict[TableId, Future[Applied | None]] = {table: Future() for table in results}
        self._threads.submit(self._commit_together, whole, plans, results, end, outcomes)
        return outcomes

    def _timed_commit(self, planned: Planned, results: list[Applied], end: Position) -> Applied | None:
        with timing(COMMIT_SECONDS, source=self._source, destination=self._destination.name):
            return self._commit(planned, results, end)

    def _committed(self, commits: Mapping[TableId, Future[Applied | None]]) -> dict[TableId, Applied]:
        """Wait for the commits and return those that were made.

        Files of a failed commit stay: nobody can say whether a commit names them.
        """
        wait(commits.values())
        outcomes = {}
        for table, done in commits.items():
            with self._containing(self._tables[table], COMMITTING):
                outcomes[table] = done.result()
        return {table: done for table, done in outcomes.items() if done is not None}

    def refuse(self, flight: InFlightBatch, tables: Collection[TableId]) -> None:
        """Drop the writes of these tables: the commits that they were planned over came to something else."""
        for table in tables:
            if table in flight.results:
                self._discard(flight.results.pop(table))
                flight.void.add(table)

    def discard(self, flight: InFlightBatch) -> None:
        """Remove the files of a batch that will not be committed."""
        self._discard(result for results in flight.results.values() for result in results)

    def _plans(self, pending: Mapping[TableId, TableWork], end: Position, *, presumed: bool) -> dict[TableId, Planned]:
        """Plan each table's write. A table that is at `end` already needs none."""
        plans = {}
        for table, work in pending.items():
            tracked = self._tables[table]
            with self._containing(tracked, PLANNING):
                followed = self._followed(tracked, work)
                if followed is None:
                    continue
                on_drop = tracked.feed.on_column_drop
                plan = self._destination.plan(tracked.target, self._source, followed.schema, on_drop, presumed=presumed)
                if plan.position < tracked.position:
                    raise LineageLost(
                        f"table {table}: its position went back from {position_text(tracked.position)} to "
                        f"{position_text(plan.position)}: somebody else restored or replaced it",
                        f"Copy it again: penstock resync FILE {table}",
                    )
                tracked.position = plan.position
                if tracked.position < end:
                    plans[table] = Planned(plan, followed)
        return plans

    def _run_job(
        self, pending: Mapping[TableId, TableWork], plans: Mapping[TableId, Planned]
    ) -> dict[TableId, list[Applied]]:
        """Run one job for all tables, but for those of which something goes wrong."""
        tasks: list[ApplyTask] = []
        for table, planned in plans.items():
            with self._containing(self._tables[table], PLANNING):
                tasks += self._tasks(pending[table], planned)
        grouped: dict[TableId, list[Applied]] = {}
        for result in run_tasks(self._log, self._runner, tasks):
            grouped.setdefault(result.table, []).append(result)
        reach("apply.files_written")
        for table, results in list(grouped.items()):
            error = next((result.error for result in results if result.error), None)
            letters = [letter for result in results for letter in result.letters]
            if error is None and not letters:
                continue
            kept = False
            try:
                with self._containing(self._tables[table], APPLYING):
                    if error is not None:
                        raise error
                    self._letters.keep(table, letters)  # before the commit that goes without their rows
                    kept = True
            except PenstockError:
                self._discard(result for group in grouped.values() for result in group)
                raise
            if not kept:
                self._discard(results)
                del grouped[table]
        return grouped

    def _tasks(self, work: TableWork, planned: Planned) -> list[ApplyTask]:
        plan, followed, slots = planned.plan, planned.followed, self._runner.slots
        return tasks_for(self._log, work, plan.position, plan, followed, until=work.until, slots=slots)

    def _commit(self, planned: Planned, results: list[Applied], end: Position) -> Applied | None:
        """Commit one table. Return None when that has to be done again from the table's new state."""
        total = self._total(results)
        if _has_nothing(planned, results):
            return total  # the position follows with the table's next commit, or when it is idle
        reach("apply.before_commit")
        made = _table_commit(planned, results, end)
        try:
            self._destination.commit(made.plan, made.parts, truncated=made.truncated, position=end, moment=made.moment)
        except StaleBase as error:
            self._refused([total.table], error)
            self._discard(results)
            return None
        except CommitUnknown as error:
            LOG.warning("commit outcome unknown", table=str(total.table), what=error.what)
            if not self._is_at(total.table, end):
                return None
        reach("apply.after_commit")
        self._moved(total.table, planned, end)
        return total

    def _commit_together(
        self,
        whole: WholeBatches,
        plans: Mapping[TableId, Planned],
        results: Mapping[TableId, list[Applied]],
        end: Position,
        outcomes: Mapping[TableId, Future[Applied | None]],
    ) -> None:
        """Commit all tables in one step, and settle the outcome of each: None when it has to be done again."""
        try:
            totals = {table: self._total(group) for table, group in results.items()}
            with_rows = [table for table, group in results.items() if not _has_nothing(plans[table], group)]
            reach("apply.before_commit")
            made = self._made(whole, {table: _table_commit(plans[table], results[table], end) for table in with_rows})
            if with_rows:
                reach("apply.after_commit")
        except BaseException as error:  # noqa: BLE001 - it is raised where the outcomes are awaited
            for outcome in outcomes.values():
                outcome.set_exception(error)
            return
        for table, outcome in outcomes.items():
            settled = made.get(table, True)
            if isinstance(settled, PenstockError):
                outcome.set_exception(settled)
            elif settled:
                if table in made:
                    self._moved(table, plans[table], end)
                outcome.set_result(totals[table])
            else:
                outcome.set_result(None)

    def _made(self, whole: WholeBatches, commits: Mapping[TableId, TableCommit]) -> dict[TableId, PenstockError | bool]:
        """Commit the tables; return for each its own error, or whether it was committed."""
        if not commits:
            return {}
        try:
            errors = whole.commit_batch(list(commits.values()))
        except StaleBase as error:
            self._refused(commits, error)
            self._destination.discard([part for one in commits.values() for part in one.parts])
            return dict.fromkeys(commits, False)
        except CommitUnknown as error:
            LOG.warning("commit outcome unknown", tables=len(commits), what=error.what)
            return {table: self._is_at(table, one.position) for table, one in commits.items()}
        return {table: error or True for table, error in zip(commits, errors, strict=True)}

    def _total(self, results: Sequence[Applied]) -> Applied:
        """Sum up what the tasks of one table did. Messages that they could not decode are kept before the commit."""
        table = results[0].table
        skipped = [message for result in results for message in result.skipped]
        if skipped:
            self._keep_skipped(self._tables[table], skipped)
        return Applied(
            table,
            changes=sum(result.changes for result in results),
            truncated=any(result.truncated for result in results),
            last_commit_time=_last_commit_time(results),
            rescues=merged(count for result in results for count in result.rescues),
            anomalies=merged_anomalies(count for result in results for count in result.anomalies),
            fetched=sum(result.fetched for result in results),
        )

    def _refused(self, tables: Collection[TableId], error: StaleBase) -> None:
        for table in tables:
            LOG.warning("commit refused", table=str(table), what=error.what)

    def _is_at(self, table: TableId, end: Position) -> bool:
        return self._destination.position(self._tables[table].target, self._source) == end

    def _moved(self, table: TableId, planned: Planned, end: Position) -> None:
        """Note that the table was committed."""
        tracked, followed = self._tables[table], planned.followed
        tracked.position, tracked.schema = end, followed.schema
        if followed.changes:
            self.report_changes(tracked, followed, end)

    def _keep_skipped(self, tracked: FollowedTable, skipped: Sequence[RawMessage]) -> None:
        """Before the commit that passes them, and again when it is done again: they are kept once."""
        what = f"table {tracked.name}: {len(skipped)} messages cannot be decoded; it goes on without them"
        LOG.error(
            "messages put into quarantine", table=str(tracked.name), messages=len(skipped), first=skipped[0].order
        )
        self._state.quarantine(self._destination.name, tracked.name, skipped)
        self._state.add_event("quarantine", what, tracked.name, destination=self._destination.name)

    def report_changes(self, tracked: FollowedTable, followed: Followed, position: Position) -> None:
        """Log and record that the destination's table has moved to another structure."""
        what = "; ".join(followed.changes)
        guessed = " (guessed: the catalogue had moved on)" if followed.guessed else ""
        LOG.info("structure followed", table=str(tracked.name), what=what, guessed=followed.guessed)
        try:
            told = f"table {tracked.name}: {what}, up to {position_text(position)}{guessed}"
            self._state.add_event("structure", told, tracked.name, destination=self._destination.name)
        except StateError as error:
            LOG.warning("event not recorded", what=error.what)

    def _discard(self, results: Iterable[Applied]) -> None:
        parts = [result.part for result in results if result.part is not None]
        if parts:
            self._destination.discard(parts)


def _table_commit(planned: Planned, results: Sequence[Applied], end: Position) -> TableCommit:
    truncated = any(result.truncated for result in results)
    return TableCommit(planned.plan, _parts(results), truncated, end, _moment(planned, results))


def _refused(table: TableId) -> TableError:
    return TableError(
        f"table {table}: somebody else keeps committing to it, {REDOS} tries were refused",
        "Stop the other writer, then `penstock retry`",
    )


def _parts(results: Iterable[Applied]) -> list[WrittenPart]:
    return [result.part for result in results if result.part is not None]


def _last_commit_time(results: Sequence[Applied]) -> int:
    return max(result.last_commit_time for result in results)


def _moment(planned: Planned, results: Sequence[Applied]) -> int | None:
    """Return the last moment of a table of versions, once these are committed."""
    plan = planned.plan
    return None if plan.layout.period is None else max(plan.moment, _last_commit_time(results))


def _has_nothing(planned: Planned, results: Sequence[Applied]) -> bool:
    """Return whether there is nothing to commit."""
    if planned.followed.changes or any(result.truncated for result in results):
        return False
    return all(part.empty for part in _parts(results))
