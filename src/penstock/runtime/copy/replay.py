"""Hand a copied table to the stream: replay the log over the copy's files, unseen by readers, then commit them all.

Each range was read under a snapshot of its own position C (a source without one gives the positions around it: C is the
lower one where the replay begins, and the higher one where it has passed).
The log is replayed from the lowest C until every C has been
passed: a key that has not changed since then has not moved and was read once; a changed key is replaced by its last
image, however often it was read. So in between the files hold a state that never was, and nobody sees it; once the
replay has passed every C they hold the table as it was at the replay's position, but for rows in doubt (`doubt`: cells
that were not sent, and that the copy is not sure to have). Those are read again by key under a new snapshot C', and put
into their places when the replay is exactly there. docs/copy.md says why that is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event

import pyarrow as pa

from penstock.changelog.log import ChangeLog
from penstock.config.model import BatchConfig
from penstock.decode.schema import arrow_schema
from penstock.destinations.contract import JobRunner, TableDestination, WrittenPart
from penstock.errors import CommitUnknown, PositionLost, RangeVoid
from penstock.fold.evolution import Followed, follow, identity_change
from penstock.fold.keys import encode_keys
from penstock.fold.layout import layout_of
from penstock.fold.net_effect import NetEffect
from penstock.fold.projection import kept_schema
from penstock.model.feed import Feed, Mode
from penstock.model.position import Position, position_text
from penstock.model.rescue import RescueCount, merged
from penstock.model.table import TableSchema
from penstock.runtime.apply.batch_planner import Batch, TableWork, gather
from penstock.runtime.apply.job import run_tasks
from penstock.runtime.apply.processed import Keep
from penstock.runtime.apply.task import tasks_for
from penstock.runtime.copy.merge_into_past import merge_copy
from penstock.runtime.copy.uncertain_rows import UncertainRows

FEW_CHANGES = 10_000  # what is left to replay when a table joins the stream: it is applied between two batches
POLL_SECONDS = 0.1
MOST_REREADS = 5
MOST_DOUBTS = 100_000  # rows to read again by key: past that, reading the table again is not much slower
MOST_DOUBT_BYTES = 32 << 20  # of their keys


@dataclass(frozen=True)
class FinishedRange:
    """A range that was read. It holds everything before `position`, and nothing from `high` on, if that is later."""

    part: WrittenPart
    position: Position
    high: Position = 0


class Unresolved(Exception):
    """Rows stay in doubt, however often they are read again, or they are too many: the copy is to start again."""


Reread = Callable[[pa.Table], FinishedRange]
"""Reads the rows of some keys (given as columns) under a new snapshot; RangeVoid when the table is rewritten then."""


def _unaltered(schema: TableSchema, work: TableWork) -> Followed:
    """RangeVoid when the table was altered since it was read: what was read is of another structure."""
    followed = follow(schema, work.versions, work.feed.type_map)
    altered = arrow_schema(followed.schema) != arrow_schema(schema) or any(
        arrow_schema(version) != arrow_schema(schema) for version in followed.versions.values()
    )
    altered |= any(version.altered for version in work.versions)
    identity = identity_change(schema, work.versions) if work.feed.mode is Mode.CLONE else ""
    if followed.resync or altered or identity:
        how = followed.resync or identity or "; ".join(followed.changes)
        raise RangeVoid(
            f"table {work.feed.name} was altered while it was copied: {how}",
            "What was read of it is void; its copy starts again by itself",
        )
    return followed


def catch_up(
    destination: TableDestination,
    runner: JobRunner,
    log: ChangeLog,
    *,
    limits: BatchConfig,
    source: str,
    feed: Feed,
    schema: TableSchema,
    ranges: Sequence[FinishedRange],
    taken_at: Position,
    moment: int,
    stop: Event,
    reread: Reread,
    rescuing: Callable[[tuple[RescueCount, ...]], None],
    keep: Keep,
) -> Position | None:
    """Bring the copy to a position near the log's end, commit it, and return that position; None when stopped.

    `taken_at` is the position of the newest snapshot, which counts even when the table had no range to read; `moment`
    the source's time then. A copy that is merged into its table is brought to that position exactly: what follows
    counts change by change.
    Unresolved when there is doubt after MOST_REREADS times of reading rows again, or about more than MOST_DOUBTS rows,
    or as soon as their keys take more than MOST_DOUBT_BYTES.
    `rescuing` is called with what each batch had to rescue, `keep` with rows that processors failed on.
    """
    replay = _Replay(
        destination,
        runner,
        log,
        source=source,
        feed=feed,
        schema=schema,
        ranges=ranges,
        taken_at=taken_at,
        moment=moment,
        rescuing=rescuing,
        keep=keep,
    )
    rereads, relations = 0, {schema.relation_id: feed.table}
    while not stop.is_set():
        segments = log.segments(after=replay.position)
        if segments and segments[0].start > replay.position:
            raise PositionLost(
                f"table {feed.name}: the change log begins at {position_text(segments[0].start)}, after its copy's "
                f"position {position_text(replay.position)}",
                "Its copy starts again by itself; raise log.max_bytes if this repeats",
            )
        batch = None
        if not (replay.merges and replay.settled):
            batch = gather(log, segments, {feed: replay.position}, limits, relations)
        if batch is not None:
            replay.step(batch)
            if replay.doubts.bytes > MOST_DOUBT_BYTES:
                raise _too_doubtful(replay, rereads)
        if not replay.settled:
            if batch is None:
                stop.wait(POLL_SECONDS)  # capture has not come that far yet
        elif batch is not None and batch.changes >= FEW_CHANGES and not replay.merges:
            continue
        elif not replay.doubts:
            return replay.commit()
        else:
            if rereads == MOST_REREADS or len(replay.doubts) > MOST_DOUBTS:
                raise _too_doubtful(replay, rereads)
            rereads += 1
            replay.read_again(reread)
    return None


def _too_doubtful(replay: _Replay, rereads: int) -> Unresolved:
    return Unresolved(
        f"{len(replay.doubts)} rows changed while it was copied from several snapshots, and their "
        f"unchanged cells are in none of them (read again {rereads} times)"
    )


class _Replay:
    """The copy's parts, and how far the log has been replayed over them."""

    def __init__(
        self,
        destination: TableDestination,
        runner: JobRunner,
        log: ChangeLog,
        *,
        source: str,
        feed: Feed,
        schema: TableSchema,
        ranges: Sequence[FinishedRange],
        taken_at: Position,
        moment: int,
        rescuing: Callable[[tuple[RescueCount, ...]], None],
        keep: Keep,
    ) -> None:
        self.merges = _merges(destination, source, feed)
        self._moment, self._rescuing, self._keep = moment, rescuing, keep
        self._destination, self._runner, self._log = destination, runner, log
        self._source, self._feed, self._schema = source, feed, schema
        self._parts = [finished.part for finished in ranges if not finished.part.empty]
        self._passed = max([max(finished.position, finished.high) for finished in ranges], default=taken_at)
        if self.merges:
            self._passed = max(self._passed, taken_at)
        self._reread: FinishedRange | None = None  # rows that are to come in at its position
        self._reread_keys: pa.Table | None = None
        self.position = min([finished.position for finished in ranges], default=taken_at)
        self.doubts = UncertainRows(schema)

    @property
    def settled(self) -> bool:
        """Whether the parts hold the table as it was at `position`, but for rows in doubt."""
        return self._reread is None and self.position >= self._passed

    def step(self, batch: Batch) -> None:
        """Replay the batch, or as much of it as comes before rows that were read again."""
        if other := batch.renamed.get(self._feed.name):
            raise RangeVoid(
                f"table {self._feed.name} was called {other} for a while, and changed under that name while it was "
                "copied",
                "What was read of it is void; its copy starts again by itself",
            )
        end = batch.end if self._reread is None else min(batch.end, self._reread.position)
        if self.merges and self.position < self._passed:
            end = min(end, self._passed)
        work = batch.tables.get(self._feed.name)
        if work is not None:
            followed = _unaltered(self._schema, work)
            # Until the snapshots of all ranges have been passed, a row that changed its key may be in no range, and
            # another row that took that key be in one.
            any_fetched = self.position < self._passed and bool(work.moved_keys)
            doubt = self.doubts.before(any_fetched=any_fetched) if self._schema.key else None
            plan = self._destination.plan_catchup(self._feed.target, self._source, self._parts, self.position)
            tasks = tasks_for(
                self._log,
                work,
                self.position,
                plan,
                followed,
                doubt=doubt,
                until=end,
                slots=self._runner.slots,
            )
            results = run_tasks(self._log, self._runner, tasks)
            error = next((result.error for result in results if result.error), None)
            if error is not None:
                raise error
            if any(result.truncated for result in results):
                self._parts = []  # nothing of it is left; the files are garbage once the copy is committed
            self._add(*(result.part for result in results if result.part is not None))
            self.doubts.take(result.doubted for result in results)
            self._rescuing(merged(count for result in results for count in result.rescues))
            self._keep([letter for result in results for letter in result.letters])
        self.position = end
        if self._reread is not None and self.position == self._reread.position:
            self._exchange(self._reread)

    def read_again(self, reread: Reread) -> None:
        """Has the rows in doubt read under a new snapshot; a rewrite at this very moment is a try that failed."""
        try:
            self._reread, self._reread_keys = reread(self.doubts.rows), self.doubts.rows
        except RangeVoid:
            return
        if self._reread.position <= self.position:
            self._exchange(self._reread)

    def _exchange(self, read: FinishedRange) -> None:
        """Replace all that the copy has of these keys by the rows that were read again."""
        assert self._reread_keys is not None
        keys = encode_keys([self._reread_keys[name] for name in self._schema.key])
        nothing = arrow_schema(kept_schema(self._feed.projection, self._schema)).empty_table()
        gone = NetEffect(False, nothing, encode_keys([nothing[name] for name in self._schema.key]), keys, (), 0, 0)
        plan = self._destination.plan_catchup(self._feed.target, self._source, self._parts, self.position)
        self._add(plan.write(gone), read.part)
        self.doubts.drop(keys)
        self._reread = self._reread_keys = None

    def _add(self, *parts: WrittenPart) -> None:
        self._parts += [part for part in parts if not part.empty]

    def commit(self) -> Position:
        try:
            if self.merges:
                self._merge()
            else:
                target, history = self._feed.target, self._log.history() or ""
                self._destination.commit_copy(target, self._source, self._parts, self.position, history)
        except CommitUnknown:
            if self._destination.position(self._feed.target, self._source) != self.position:
                raise
        return self.position

    def _merge(self) -> None:
        target, source = self._feed.target, self._source
        copy = self._destination.plan_catchup(target, source, self._parts, self.position)
        plan = self._destination.plan_merge(target, source)
        moment = max(self._moment, plan.moment)
        if self._feed.mode is Mode.EVENTS:
            parts = self._parts  # what was read is events already
        else:
            first = self._destination.position(target, source) is None
            kept = kept_schema(self._feed.projection, self._schema)
            parts = merge_copy(self._runner, copy, plan, kept, moment, first=first)
        versions = plan.layout.period is not None
        history = self._log.history() or ""
        self._destination.commit_merge(plan, parts, self.position, moment if versions else None, history)


def _merges(destination: TableDestination, source: str, feed: Feed) -> bool:
    """Return whether the table keeps what the copy does not have."""
    if feed.mode is Mode.APPEND:
        return destination.position(feed.target, source) is not None
    return layout_of(feed).keeps_past
