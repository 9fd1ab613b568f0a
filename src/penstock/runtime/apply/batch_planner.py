"""Plan a batch: which segments of the change log, and what of them belongs to which table. Reads headers only.

A batch is made of whole segments, and a segment of whole transactions, so a batch never splits a transaction; one that
is cut within a segment, at a position, takes the transactions that commit before it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.changelog.chain import SegmentName
from penstock.changelog.log import ChangeLog
from penstock.decode.choices import chosen
from penstock.model.feed import Feed, Mode
from penstock.model.position import Position
from penstock.model.table import TableId, TableSchema

if TYPE_CHECKING:  # tasks import this module, and need no configuration, which takes a quarter of a second to load
    from penstock.config.model import BatchConfig

WORTH_A_BUCKET = 16 << 20  # each bucket reads all of the table's changes and finds their keys: fewer cost less
MOST_BUCKET_BYTES = 48 << 20
MOST_BUCKETS = 64  # of a table's part of a batch that all its tasks hold
MOST_HELD_BYTES = 256 << 20  # of that: of a larger one, each task holds its own share


@dataclass
class TableWork:
    """One feed's part of a batch."""

    feed: Feed
    slices: list[tuple[str, str]] = field(default_factory=list)  # segment name, schema fingerprint
    versions: list[TableSchema] = field(default_factory=list)  # in stream order; the same one again counts again
    bytes: int = 0
    rows: int = 0
    moved_keys: int = 0
    truncates: int = 0
    first_commit: Position = 2**64
    last_commit: Position = 0
    until: Position | None = None  # what commits at or after it is left out

    def buckets(self, slots: int) -> int:
        """Return how many tasks share the table, if `slots` of them run side by side.

        Keys that move may need another key's earlier image: then it is one, unless it is shared out, which finds
        whether any does.
        """
        keyed = [bool(schema.key) for schema in self.versions]
        moves = self.moved_keys and (self.feed.anomalies or not self._can_be_shared)
        if self.feed.mode is not Mode.EVENTS and (moves or not (all(keyed) or self._can_be_shared)):
            return 1
        for_speed = min(slots, math.ceil(self.bytes / WORTH_A_BUCKET))
        for_memory = math.ceil(self.bytes / MOST_BUCKET_BYTES)
        buckets = max(1, for_speed, for_memory)
        return buckets if self._can_be_shared else min(MOST_BUCKETS, buckets)

    def shared(self, slots: int) -> bool:
        """Return whether it is so large that a task holds no more of it than its own bucket's part."""
        return self._can_be_shared and self.buckets(slots) > 1

    @property
    def _can_be_shared(self) -> bool:
        """A table that got a key, or lost it, is for one task.

        Moments of a history come from all changes, so they must be of one; begin and commit of transactions as well.
        """
        if self.bytes <= MOST_HELD_BYTES or len({bool(schema.key) for schema in self.versions}) > 1:
            return False
        if self.feed.mode is Mode.EVENTS:
            return not self.feed.markers
        return self.feed.mode is not Mode.HISTORY or self.first_commit == self.last_commit


@dataclass(frozen=True)
class Batch:
    """`renamed`: feeds whose table has changed under another name, with that name. `full`: it has reached a limit."""

    end: Position
    tables: dict[TableId, TableWork]  # by the feed's name
    changes: int
    bytes: int
    renamed: dict[TableId, TableId] = field(default_factory=dict)
    full: bool = False


Bound = Callable[[Sequence[SegmentName]], Position | None]


def unbounded(_segments: Sequence[SegmentName]) -> None:
    """Let batches go as far as the log does."""


class BatchPlanner:
    """Watch the log from `processed` on and return the next batch once it is large or old enough.

    So batches fit the load by themselves: what came while one was applied makes the next, at once if it is old enough
    by then, up to the limits when there is much of it."""

    def __init__(
        self,
        log: ChangeLog,
        limits: BatchConfig,
        clock: Callable[[], float] = time.monotonic,
        bound: Bound = unbounded,
    ) -> None:
        """`bound` gives the position that no batch crosses, if there is one in the segments that are to make it."""
        self._log, self._limits, self._clock, self._bound = log, limits, clock, bound
        self._nothing_waited = clock()  # when that was so for the last time
        self._offered: float | None = None  # when it was looked, if nothing waits behind the batch that was given

    def next(
        self,
        processed: Position,
        positions: Mapping[Feed, Position],
        relations: Mapping[int, TableId] | None = None,
        *,
        now: bool = False,
        beside: bool = False,
    ) -> Batch | None:
        """Return what follows `processed` for the feeds in `positions`, or None while there is nothing or not enough.

        Who applies it calls `take`. `relations` are the source's tables by their relation. With `now`, whatever there
        is makes a batch at once. `beside`: asked while another one is applied, during which everything counts as
        waiting.
        """
        looked_at = self._clock()
        segments = self._log.segments(after=processed)
        bound = self._bound(segments)
        if bound is not None:
            segments = [name for name in segments if name.start < bound and processed < bound]
        cut = bound if segments and bound is not None and segments[-1].end > bound else None
        batch = gather(self._log, segments, positions, self._limits, relations, cut)
        if batch is None:
            self._nothing_waited = self._nothing_waited if beside else looked_at
            return None
        waited = looked_at - self._nothing_waited >= self._limits.max_age
        if batch.changes and not (now or waited or batch.full):
            return None
        self._offered = looked_at if batch.end == segments[-1].end else None
        return batch

    def take(self) -> None:
        """Note that the batch that `next` gave is applied: what came since then has waited since then."""
        if self._offered is not None:
            self._nothing_waited = self._offered


def gather(
    log: ChangeLog,
    segments: Sequence[SegmentName],
    positions: Mapping[Feed, Position],
    limits: BatchConfig,
    relations: Mapping[int, TableId] | None = None,
    until: Position | None = None,
) -> Batch | None:
    """Return the batch that these segments make for the feeds in `positions`, up to the limits; None without segments.

    With `until` it ends there at the latest, even within a segment: transactions that commit before it are in it,
    and no others.
    """
    tables: dict[TableId, TableWork] = {}
    renamed: dict[TableId, TableId] = {}
    feeds: dict[TableId, list[Feed]] = {}
    for feed in positions:
        feeds.setdefault(feed.table, []).append(feed)
    changes = size = 0
    full = False
    end: Position | None = None
    for name in segments:
        slices = log.slices(name)
        full = bool(changes) and size + sum(part.slice.bytes for part in slices) > limits.max_bytes
        if full:
            break  # a huge transaction is a batch of its own
        end = name.end if until is None else min(name.end, until)
        for part in slices:
            schema = part.table_schema
            if until is not None and part.slice.first_commit >= until:
                continue
            known_as = (relations or {}).get(schema.relation_id, schema.table)
            if known_as != schema.table:
                behind = [feed for feed in feeds.get(known_as, ()) if part.slice.last_commit >= positions[feed]]
                renamed |= {feed.name: schema.table for feed in behind}
            behind = [feed for feed in feeds.get(schema.table, ()) if part.slice.last_commit >= positions[feed]]
            for feed in behind:
                work = tables.setdefault(feed.name, TableWork(feed, until=until))
                if (name.text, part.slice.schema) not in work.slices:
                    work.slices.append((name.text, part.slice.schema))
                carried = chosen(schema, feed.types, feed.type_map)
                if not work.versions or work.versions[-1] != carried:
                    work.versions.append(carried)
                work.bytes += part.slice.bytes
                work.rows += part.slice.rows
                work.moved_keys += part.slice.moved_keys
                work.truncates += part.slice.truncates
                work.first_commit = min(work.first_commit, part.slice.first_commit)
                work.last_commit = max(work.last_commit, part.slice.last_commit)
            changes += part.slice.rows * len(behind)
            size += part.slice.bytes * len(behind)
        full = size >= limits.max_bytes or changes >= limits.max_changes
        if full:
            break
    return None if end is None else Batch(end, tables, changes, size, renamed, full)
