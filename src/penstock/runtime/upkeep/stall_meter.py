"""How long batches are held up by what is done between them.

A batch is held while changes for it wait in the log and something else has the loop: from the moment when that began,
or the first of them was sealed if that is later, until it ended. A batch waits for `batch.max_age` anyhow, so this is
the most that it may have been held up, not the least. The log is looked at only after what took long enough to matter.
Neighbour: `housekeeping`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

LOG = structlog.get_logger("housekeeping")
LEAST = 0.05  # seconds; shorter is not looked at
TOO_LONG = 2.0


class StallMeter:
    """`longest` is the most that a batch has been held up since the start, in seconds.

    A new longest one is logged, and every one that is too long, with what took most of it.
    """

    def __init__(self, waiting_since: Callable[[], float | None], clock: Callable[[], float] = time.time) -> None:
        """`waiting_since`: when the first of the changes that wait was sealed, by the same clock; None: none wait."""
        self._waiting_since, self._clock = waiting_since, clock
        self._parts: dict[str, float] = {}
        self.longest = 0.0

    @contextmanager
    def between_batches(self) -> Iterator[None]:
        """Count how long the block keeps batches waiting. A block that fails is not counted: then all wait anyway."""
        self._parts = {}
        began = self._clock()
        yield
        ended = self._clock()
        if ended - began < LEAST:
            return
        since = self._waiting_since()
        if since is not None:
            self._note(ended - min(ended, max(began, since)))

    @contextmanager
    def part(self, what: str) -> Iterator[None]:
        """Of what is done between batches."""
        began = self._clock()
        try:
            yield
        finally:
            self._parts[what] = self._parts.get(what, 0.0) + self._clock() - began

    def _note(self, seconds: float) -> None:
        if seconds < LEAST:
            return
        by = max(self._parts, key=lambda what: self._parts[what], default="")
        if seconds >= TOO_LONG:
            LOG.warning("batch held up", seconds=round(seconds, 3), by=by)
        elif seconds > self.longest:
            LOG.info("batch held up", seconds=round(seconds, 3), by=by)
        self.longest = max(self.longest, seconds)
