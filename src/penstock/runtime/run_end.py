"""When a run ends by itself: drained, at a position or moment, after so many changes, after a quiet time, or copied.

`RunEnd` is what was asked for, for the whole run. Each source has a `RunEndWatch`, which its supervision asks to `look`
and its readers ask two things: `until`, the position that they drain to (None while the run goes on), and `bound`, the
position that batches do not cross. Both lie between transactions, so none is ever split. Readers are drained to `until`
each by itself; which of them must get there is the commit policy's (`source_pipeline`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import structlog

from penstock.changelog.chain import SegmentName
from penstock.changelog.log import ChangeLog
from penstock.changelog.transactions import changes_in, may_be_after, transactions_of
from penstock.errors import SourceError
from penstock.model.position import Position, position_text

LOG = structlog.get_logger("pipeline")
LOOK_EVERY = 0.25


@dataclass(frozen=True)
class RunEnd:
    """What ends a run. Without any of these, only a stop does; with several, whichever comes first.

    `once`: when everything that the source had at the start is applied. `until`: when everything that committed before
    a position, or up to a moment, is applied; nothing later is. `idle`: after so many seconds without a change.
    `max_changes`: at the end of the transaction that brings the run's changes to so many, of each source.
    `copies_only`: when every table is copied that had to be; nothing else is applied.
    """

    once: bool = False
    until: Position | datetime | None = None
    idle: float | None = None
    max_changes: int | None = None
    copies_only: bool = False

    @property
    def is_for_now(self) -> bool:
        """Whether the run does what there is to do now, so that it does not wait for a source that is away."""
        return self.once or self.copies_only


class RunEndWatch:
    """Find where one source's part of the run ends. May be asked from any thread."""

    def __init__(
        self,
        wanted: RunEnd,
        log: ChangeLog,
        begins_at: Position,
        *,
        head: Callable[[], Position],
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`begins_at` is where the destination stands that is furthest behind: changes count from there on.

        `head` asks the source for its position now.
        """
        self._wanted, self._log, self._begins_at, self._head = wanted, log, begins_at, head
        self._clock, self._now = clock, now
        self._lock = threading.Lock()
        self._scanned = begins_at
        self._counted = 0
        self._changed_at = clock()
        self._looked_at: float | None = None
        self._quiet_head: Position | None = None  # nothing had come for long enough when the source was here
        self._ends: list[Position] = []
        self._bound: Position | None = None
        self._is_found = False  # what the log says: the moment, the number of changes
        moment = wanted.until
        self._moment = round(moment.timestamp() * 1_000_000) if isinstance(moment, datetime) else None
        self._asked_after_moment = False
        if wanted.copies_only:
            self._bound = 0
            self._ends.append(0)
        if isinstance(wanted.until, int):
            self._bind(wanted.until)

    @classmethod
    def at(cls, position: Position | None, log: ChangeLog) -> RunEndWatch:
        """Return the watch of a run that ends at a position known from the start; None: that only a stop ends.

        The run may go further than the position.
        """
        watch = cls(RunEnd(once=position is not None), log, 0, head=lambda: position or 0)
        if position is not None:
            watch.end_at(position)
        return watch

    @property
    def until(self) -> Position | None:
        """Return where readers drain to; None while the run goes on. It may come closer, but never goes away."""
        return min(self._ends, default=None)

    def bound(self, segments: Sequence[SegmentName]) -> Position | None:
        """Return the position that a batch of these segments must not cross; None when there is none in them."""
        if self._moment is not None or self._wanted.max_changes is not None:
            self._scan(segments)
        return self._bound

    def end_at(self, position: Position) -> None:
        """End the run when everything before the position is applied, though it may go further."""
        self._ends.append(position)

    def look(self) -> None:
        """See whether the end has come closer. Called often; looks now and then."""
        now = self._clock()
        if self._looked_at is not None and now - self._looked_at < LOOK_EVERY:
            return
        self._looked_at = now
        if self._moment is not None and not self._is_found:
            self._look_at_moment()
        if self._wanted.idle is not None and not self._ends:
            self._look_for_quiet(self._wanted.idle)

    def _look_at_moment(self) -> None:
        """Once the moment has passed, what the source has by then is all that can have committed up to it."""
        assert self._moment is not None
        self._scan([])
        if not self._is_found and not self._asked_after_moment and self._now() * 1_000_000 > self._moment:
            head = self._asked_head()
            if head is not None:
                self._asked_after_moment = True
                self._ends.append(head)

    def _look_for_quiet(self, idle: float) -> None:
        """End when no change has come for so long, and the source has none that capture has not read yet."""
        self._scan([])
        if self._clock() - self._changed_at < idle:
            self._quiet_head = None
            return
        if self._quiet_head is None:
            self._quiet_head = self._asked_head()
        elif (self._log.end() or 0) >= self._quiet_head:
            self._scan([])
            if self._clock() - self._changed_at >= idle:
                LOG.info("no change for a while, the run ends", seconds=idle, position=position_text(self._quiet_head))
                self._ends.append(self._quiet_head)

    def _asked_head(self) -> Position | None:
        try:
            return self._head()
        except SourceError as error:
            LOG.warning("end of the run not known yet", what=error.what)
            return None

    def _bind(self, position: Position) -> None:
        self._bound = position if self._bound is None else min(position, self._bound)
        self._ends.append(position)

    def _scan(self, segments: Sequence[SegmentName]) -> None:
        """Count what has come since the last scan. `segments` saves a listing if they begin where it ended."""
        with self._lock:
            if not segments or segments[0].start > self._scanned:
                segments = self._log.segments(after=self._scanned)
            for name in segments:
                if name.end > self._scanned and not self._is_found:
                    self._scan_one(name)

    def _scan_one(self, name: SegmentName) -> None:
        most, moment = self._wanted.max_changes, self._moment
        changes = changes_in(self._log, name)
        full = most is not None and self._counted + changes >= most
        late = moment is not None and may_be_after(self._log, name, moment)
        if changes and (full or late or name.start < self._begins_at):
            found = transactions_of(self._log, name).since(self._begins_at)
            changes = int(found.changes.sum())
            ends = []
            if most is not None:
                enough = np.flatnonzero(self._counted + np.cumsum(found.changes) >= most)
                ends += [int(found.commits[enough[0]]) + 1] if enough.size else []
            if moment is not None:
                later = np.flatnonzero(found.times > moment)
                ends += [int(found.commits[later[0]])] if later.size else []
            if ends:
                self._is_found = True
                self._bind(min(ends))
                LOG.info("end of the run found", position=position_text(min(ends)))
        if changes:
            self._changed_at = self._clock()
        self._counted += changes
        self._scanned = name.end
