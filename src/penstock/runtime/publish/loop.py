"""Publish the change log to one stream destination, batch by batch: one Spark job per batch, one task per shard.

Progress is the places of the shards, which the destination keeps with the events; nothing here needs to survive a
crash. A table that cannot be published becomes Errored and stands behind; the others go on. When it is tried again it
is brought on by itself, from its own place, until it is level.

A message that cannot be decoded is first kept in quarantine and then passed over, so none is lost without a trace. The
same holds for dead letters: records that cannot be rendered or that the destination refuses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import structlog

from penstock.changelog.log import ChangeLog
from penstock.config.destinations import DeadLetterConfig
from penstock.config.model import BatchConfig
from penstock.decode.undecodable import Undecodable
from penstock.destinations.contract import JobRunner, Task
from penstock.destinations.key_layout import KeyLayout
from penstock.destinations.stream_contract import Layout, Publisher, StreamDestination, StreamId
from penstock.errors import (
    CopyNeeded,
    DeadLettersFull,
    EventRefused,
    LogPassed,
    Overtaken,
    PenstockError,
    TopicsRefused,
)
from penstock.failpoints import reach
from penstock.model.dead_letter import DeadLetter
from penstock.model.feed import Feed
from penstock.model.place import Place, place_at, position_of
from penstock.model.position import Position, position_text
from penstock.model.table import TableId, TableSchema
from penstock.render.event import Origin
from penstock.render.format import NATIVE, EventFormat
from penstock.runtime.apply.batch_planner import Batch, BatchPlanner, Bound, TableWork, gather, unbounded
from penstock.runtime.dead_letter_box import DeadLetterBox
from penstock.runtime.meter import METER
from penstock.runtime.publish.copied_rows import rows_lost
from penstock.runtime.publish.dead_letters import LetterSender
from penstock.runtime.publish.log_range import (
    log_ends_before_stream,
    log_passed_stream,
    log_passed_table,
    starts_before_the_log,
    stream_gone,
)
from penstock.runtime.publish.published_table import PublishedTable, by_relation, events_under_another_name
from penstock.runtime.publish.row_copier import RowCopier
from penstock.runtime.publish.row_publication import RowPublication
from penstock.runtime.publish.schema_numbers import SchemaNumbers
from penstock.runtime.publish.shard_places import ShardPlaces
from penstock.runtime.publish.table_records import TableRecords, TableSum, summed
from penstock.runtime.publish.task import PublishTask, ShardOutcome, TablePart, place_name, publish
from penstock.state.store import StateStore

LOG = structlog.get_logger("publish")
ADVANCE_EVERY = 60.0  # seconds, after which places move on over what held no events


class PublishLoop:
    """`processed` is how far the log has been published for every table that does not stand behind."""

    def __init__(
        self,
        source: str,
        destination: StreamDestination,
        runner: JobRunner,
        log: ChangeLog,
        limits: BatchConfig,
        state: StateStore,
        *,
        start: Position | Literal["log", "now"] = "log",
        rows: RowCopier | None = None,
        dlq: DeadLetterConfig = DeadLetterConfig(),
        origin: Origin | None = None,
        format: EventFormat = NATIVE,
        bound: Bound = unbounded,
    ) -> None:
        """Set up the loop of one stream.

        `start` is where a stream starts that does not exist yet: at the beginning of the log, at its end, or at a
        position. `rows` reads what tables hold, for streams that publish that as well. `origin` and `format` say how
        events are written. `bound` gives the position that no batch crosses.
        """
        self._source, self._destination, self._runner, self._log = source, destination, runner, log
        self._limits, self._state, self._start = limits, state, start
        self._bound = bound
        self._planner = BatchPlanner(log, limits, bound=bound)
        self._letters = DeadLetterBox(state, destination.name, dlq)
        self._origin, self._format = origin or Origin(source), format
        self._sender = LetterSender(self._origin, format, destination, runner, state)
        self._numbers = SchemaNumbers(log, state)
        self._rows = RowPublication(self, rows, self._origin, format, destination.name, limits.max_bytes, state)
        self._records = TableRecords(state, destination.name)
        self.tables: dict[TableId, PublishedTable] = {}
        self.processed: Position = 0
        self.is_unrecorded = False  # the stream is there, and the state store does not know it
        self.layout: Layout = KeyLayout()
        self._shards = 0  # 0: not begun
        self._places = ShardPlaces(source, destination)
        self._advanced_at = time.monotonic()

    @property
    def has_begun(self) -> bool:
        return bool(self._shards)

    def begin(self) -> bool:
        """Create the stream, or find where it is.

        False while the log is empty, for there is no history yet, or has not reached the position where the stream
        starts.
        """
        if self._shards:
            return True
        history, start, end = self._log.history(), self._log.start(), self._log.end()
        if history is None or start is None or end is None:
            return False
        first = start if self._start == "log" else end if self._start == "now" else self._start
        is_there = bool(self._destination.places(self._source))
        published = sum(one.changes for one in self._state.progress(self._destination.name).values())
        if not is_there and published:
            raise stream_gone(self._destination.name, published)
        if not is_there and first < start:
            raise starts_before_the_log(self._destination.name, first, start)
        if not is_there and first > end:
            return False
        wanted = StreamId(self._source, history, place_at(first))
        if self._state.processed(self._destination.name) is None:
            self.is_unrecorded = is_there
            if not is_there:  # recorded first: a stream that is there without a record has lost it
                self._state.set_processed(self._destination.name, position_of(wanted.start))
        self.layout = self._destination.ensure(wanted)
        self._places.read()
        self.processed = self._least()
        if self.processed < start:
            raise log_passed_stream(self._destination.name, self.processed, start)
        if self.processed > end:
            raise log_ends_before_stream(self._destination.name, self.processed, end)
        self._shards = self.layout.shards
        where = position_text(self.processed)
        LOG.info("stream begins", stream=self._destination.name, shards=self._shards, position=where)
        return True

    def note_recorded(self) -> None:
        """Note that the state store knows the stream's tables from now on."""
        if self.is_unrecorded:
            self._state.set_processed(self._destination.name, self.processed)
            self.is_unrecorded = False

    def follow(self, feed: Feed, *, errored: bool = False, copying: bool = False) -> PublishedTable:
        """Take a table in: from now on, or from its own place if it stands behind.

        It is Ready unless it is `errored` or its rows come first.
        """
        known = self.tables.get(feed.name)
        if known is not None:
            return known
        before = self._state.progress(self._destination.name).get(feed.name)
        table = PublishedTable(feed, errored=errored, copying=copying, changes=before.changes if before else 0)
        self.tables[feed.name] = table
        if not errored and not copying:
            self._records.ready(table)
        return table

    def forget(self, name: TableId) -> None:
        """Publish no more of a table; what is published of it stays."""
        self.tables.pop(name, None)
        self._rows.remove(name)

    def copy(self, table: PublishedTable, schema: TableSchema) -> None:
        """Publish a table's rows, all of them, and then what follows."""
        table.errored = table.lost = table.incomplete = table.outdated = False
        table.copying = True
        self._rows.add(table, schema)

    def retry(self, table: PublishedTable) -> None:
        """Try an Errored table again, from its own place."""
        table.errored = False
        self._records.ready(table)

    def skip(self, table: PublishedTable, upto: Position = 0) -> None:
        """Let a table that stands behind go on from where the others are, without the events in between.

        Events before `upto` may be missing as well.
        """
        behind = self._behind(table)
        self._places.leave_behind(place_name(table.name))
        said = []
        if behind is not None:
            said.append(f"events from {behind} to {place_at(self.processed)} were left out")
        if upto > self.processed:
            said.append(f"events before {position_text(upto)} may be missing")
        if said:
            self._state.add_event("skipped", "; ".join(said), table.name, destination=self._destination.name)
            LOG.warning("events left out", table=str(table.name), what="; ".join(said))
        table.lost = False
        self.retry(table)

    @property
    def is_level(self) -> bool:
        """Whether no table is behind that could go on, and no dead letter is to be sent again."""
        return self._sender.is_idle and all(
            (table.errored and not table.outdated) or table.paused or self._is_level(table) or self._is_ahead(table)
            for table in self.tables.values()
        )

    def _is_ahead(self, table: PublishedTable) -> bool:
        """Whether the table was copied later than where the others must stop: it waits there for the next run."""
        bound, own = self._bound([]), self._behind(table)
        return (
            bound is not None
            and bound <= self.processed
            and not table.copying
            and own is not None
            and (position_of(own) >= self.processed)
        )

    @property
    def needed_from(self) -> Position:
        """What the log must keep for tables that are well."""
        copies = self._rows.needed_from()  # before the others: a copy that ends stands behind
        needed = [self._least(), *([] if copies is None else [copies])]
        behind = [self._behind(table) for table in self.tables.values() if not table.errored and not table.copying]
        return min([*needed, *(position_of(place) for place in behind if place is not None)])

    @property
    def held_from(self) -> Position:
        """What the log should keep for Errored tables too."""
        behind = [self._behind(table) for table in self.tables.values() if table.errored and not table.lost]
        return min([self.needed_from, *(position_of(place) for place in behind if place is not None)])

    def pass_over(self, before: Position) -> None:
        """Do without the log before this position. StreamBroken when the stream itself needs it."""
        for table in self.tables.values():
            behind = None if table.copying else self._behind(table)
            if behind is not None and position_of(behind) < before and not table.lost:
                self.mark_errored(table, log_passed_table(table.name, behind, before))
        if self._shards and self.processed < before:
            raise log_passed_stream(self._destination.name, self.processed, before)

    def step(self, *, now: bool = False) -> bool:
        """Publish the next batch, if there is one; False when there was nothing to do.

        Raises what concerns the destination or the log as a whole; then call again.
        """
        if not self.begin():
            return False
        try:
            return self._step(now=now)
        except Overtaken:  # the shards are elsewhere than was thought, perhaps further back: look again
            self._shards, self._planner = 0, BatchPlanner(self._log, self._limits, bound=self._bound)
            raise

    def _step(self, *, now: bool) -> bool:
        self._letters.expire()
        worked = self._send_letters() | self._rows.step() | self._bring_on()
        level = [table for table in self.tables.values() if self._is_level(table)]
        positions = {table.feed: self.processed for table in level}
        batch = self._planner.next(self.processed, positions, by_relation(level), now=now)
        if batch is None:
            self._advance_if_due()
            return worked
        self._planner.take()
        self._take_renamed(batch)
        if batch.tables:
            sums = self._publish(batch, batch.tables.values())
        else:
            self._places.note_waiting(self._waiting())
            sums = {}
        self.processed = batch.end
        self._records.progress(sums, self.tables, self.processed)
        self._advance_if_due()
        return True

    def _take_renamed(self, batch: Batch) -> None:
        """Make tables Errored whose events came under a name that is nobody's: they are not published."""
        for name, other in batch.renamed.items():
            if other not in self.tables:
                batch.tables.pop(name, None)
                self.tables[name].incomplete = True
                self.mark_errored(self.tables[name], events_under_another_name(name, other))

    def close(self) -> None:
        """Move the places on to what has been processed, so that the next start begins there."""
        if self._shards:
            self._advance()

    def mark_errored(self, table: PublishedTable, error: PenstockError) -> None:
        self._records.errored(table, error)
        table.errored = True
        table.lost |= isinstance(error, LogPassed)

    def mark_all_errored(self, error: PenstockError) -> None:
        """Make all tables Errored for what none can pass: a gap, a damaged log."""
        for table in self.tables.values():
            if not table.errored:
                self.mark_errored(table, error)

    def _is_level(self, table: PublishedTable) -> bool:
        """Whether the table takes part in batches with the others."""
        return not table.waits and self._behind(table) is None

    def _least(self) -> Position:
        """Return how far every shard is published: where the next start begins."""
        least = self._places.least()
        return self.processed if least is None else least

    def _behind(self, table: PublishedTable) -> Place | None:
        """Return how far a table is that is behind in some shard; None when it is behind in none."""
        return self._places.behind(place_name(table.name))

    def _bring_on(self) -> bool:
        """Publish one batch for each table that is behind and well."""
        tables = [one for one in self.tables.values() if not one.waits]
        behind = {one.name: place for one in tables if (place := self._behind(one)) is not None}
        if not behind:
            return False
        reached = place_at(self.processed)
        if not self._places.are_at(reached):  # a table is brought on to there, and then joins the others
            self._advance()
        if not self._places.are_at(reached):
            return False  # another writer was here
        worked = False
        for name, place in behind.items():
            if self._places.lacks_rows(place_name(name)):  # though nobody copies it: rows were lost there
                self.tables[name].incomplete = True
                self.mark_errored(self.tables[name], rows_lost(name))
            elif place <= reached:  # a copy may be ahead of the others
                worked |= self._bring_one_on(self.tables[name], place)
        return worked

    def _bring_one_on(self, table: PublishedTable, behind: Place) -> bool:
        position = position_of(behind)
        segments = self._log.segments(after=position)
        if segments and segments[0].start > position:
            self.mark_errored(table, log_passed_table(table.name, behind, segments[0].start))
            return False
        reached = self._places.greatest()
        segments = [name for name in segments if name.start < reached]
        batch = gather(self._log, segments, {table.feed: position}, self._limits, by_relation([table]))
        if batch is not None:
            self._take_renamed(batch)
            if table.errored:
                return False
            work = batch.tables.get(table.name, TableWork(table.feed))
            self._records.progress(self._publish(batch, [work], alone=True), self.tables, self.processed)
        elif self._places.lacks_events(place_name(table.name)):
            return False
        else:  # it stands where the others are
            self._places.leave_behind(place_name(table.name))
        if self._behind(table) is None and not table.errored:
            table.tolerated.clear()
            self._records.ready(table)
            LOG.info("table joined", table=str(table.name), position=position_text(self.processed))
        return True

    def _publish(self, batch: Batch, works: Iterable[TableWork], *, alone: bool = False) -> dict[TableId, TableSum]:
        began = time.monotonic()
        works = list(works)
        sums = summed(self.run_shards(publish, lambda: self._tasks(batch, works, alone)))
        for work in works:
            self.tables[work.feed.name].letters.clear()
        METER.batch(
            self._source,
            self._destination.name,
            changes=batch.changes,
            bytes=batch.bytes,
            seconds=time.monotonic() - began,
            newest=max((one.last_commit_time for one in sums.values() if one.events), default=0) / 1e6 or None,
        )
        LOG.debug(
            "published",
            events=sum(one.events for one in sums.values()),
            tables=len(sums),
            position=position_text(batch.end),
            seconds=round(time.monotonic() - began, 3),
        )
        return sums

    def run_shards(
        self, function: Callable[[Task], ShardOutcome], tasks: Callable[[], Sequence[Task]]
    ) -> list[ShardOutcome]:
        """Run a task for each shard, again while one must stay where it is; return what those did that moved.

        `tasks` is asked for them each time: none ends it."""
        published: list[ShardOutcome] = []
        while given := tasks():
            outcomes = self._runner.run(function, given)
            reach("publish.batch_done")
            self._places.now = [outcome.at for outcome in outcomes]
            moved = [outcome for outcome in outcomes if not outcome.stays]
            published += moved
            self._take_failures(outcomes)
            if len(moved) == len(outcomes):
                break
            self._clear_the_way(outcomes)
        return published

    def publisher(self, shard: int) -> Publisher:
        return self._places.publisher(shard)

    def _tasks(self, batch: Batch, works: Iterable[TableWork], alone: bool) -> list[PublishTask]:
        parts = []
        for work in works:
            table = self.tables[work.feed.name]
            if not table.errored:
                kept = frozenset(table.tolerated), frozenset(table.letters)
                parts.append(TablePart(work.feed, tuple(work.slices), *kept))
        waiting = [table for table in self.tables.values() if not self._is_level(table)]
        numbers = self._numbers.of(one for part in parts for one in part.slices)
        origin = replace(self._origin, versions=numbers)
        return [
            PublishTask(
                log=self._log,
                publisher=self.publisher(shard),
                origin=origin,
                format=self._format,
                shard=shard,
                layout=self.layout,
                tables=tuple(parts),
                until=batch.end,
                followed=frozenset(map(place_name, self.tables)),
                waiting=frozenset(place_name(table.name) for table in waiting),
                alone=alone,
                known=self._places.now[shard],
                weight=batch.bytes,
            )
            for shard in range(self._shards)
        ]

    def _clear_the_way(self, outcomes: Iterable[ShardOutcome]) -> None:
        """Look topics up and keep dead letters, so that the batch can be published; else make their tables Errored."""
        wanted: dict[TableId, frozenset[str]] = {}
        letters: dict[TableId, list[DeadLetter]] = {}
        for outcome in outcomes:
            for name, done in outcome.tables.items():
                if done.unknown_topics:
                    wanted[name] = wanted.get(name, frozenset()) | done.unknown_topics
                if done.letters:
                    letters.setdefault(name, []).extend(done.letters)
        if wanted:
            self._look_up(wanted)
        for name, found in letters.items():
            self._keep(self.tables[name], found)

    def _look_up(self, wanted: Mapping[TableId, frozenset[str]]) -> None:
        names = sorted(frozenset().union(*wanted.values()))
        try:
            self.layout = self._destination.topics(self._source, names)
        except TopicsRefused as refused:
            for table, topics in wanted.items():
                reasons = [f"topic {name}: {refused.reasons[name]}" for name in sorted(topics & refused.reasons.keys())]
                if reasons:
                    self.mark_errored(
                        self.tables[table], EventRefused(f"table {table}: {reasons[0]}", refused.solution)
                    )
            rest = [name for name in names if name not in refused.reasons]
            if rest:
                self.layout = self._destination.topics(self._source, rest)

    def _keep(self, table: PublishedTable, letters: Sequence[DeadLetter]) -> None:
        """Keep dead letters, so that the stream can go on without their events; without room its table is Errored."""
        try:
            table.letters |= self._letters.keep(table.name, letters)
        except DeadLettersFull as full:
            self.mark_errored(table, full)

    def _send_letters(self) -> bool:
        """Send dead letters again that were asked for. False when there were none."""
        asked = self._sender.asked()
        if not asked:
            return False
        feeds = {table.name: table.feed for table in self.tables.values()}
        self._places.now = self._sender.send(asked, self.layout, feeds, self._learn_topics) or self._places.now
        return True

    def _learn_topics(self, names: Sequence[str]) -> None:
        self.layout = self._destination.topics(self._source, names)

    def _take_failures(self, outcomes: Iterable[ShardOutcome]) -> None:
        """Keep messages that cannot be decoded, so that their table can go on without them; make others Errored."""
        for outcome in outcomes:
            for name, done in outcome.tables.items():
                table, error = self.tables[name], done.error
                if error is None or table.errored:
                    continue
                if done.undecodable and isinstance(error, Undecodable):
                    self._state.quarantine(self._destination.name, name, error.messages)
                    table.tolerated |= {message.order for message in error.messages}
                    LOG.warning("messages put into quarantine", table=str(name), messages=len(error.messages))
                else:
                    self.mark_errored(table, error)
                    table.outdated = isinstance(error, CopyNeeded) and self._rows.is_possible

    def _advance_if_due(self) -> None:
        if time.monotonic() - self._advanced_at >= ADVANCE_EVERY:
            self._advance()

    def _advance(self) -> None:
        """Move places on over a stretch of the log that held no events for them."""
        self._advanced_at = time.monotonic()
        self._places.advance(self.processed, set(map(place_name, self.tables)), self._waiting())

    def _waiting(self) -> list[str]:
        return [place_name(table.name) for table in self.tables.values() if table.waits]
