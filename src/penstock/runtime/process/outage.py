"""An outage of one component, from its first failed try to the one that works: three kinds of lines in the log.

One line when it begins, one per minute while it lasts, one when it ends, however often the component is tried. `since`
is the outage's beginning, and what `penstock status` shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

import structlog

TELL_EVERY = 60.0  # seconds


class Outage:
    """`component` is who is away, as the log says it; `log` names the logger."""

    def __init__(self, component: str, log: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._component, self._log, self._clock = component, structlog.get_logger(log), clock
        self.since: datetime | None = None
        self._tries = 0
        self._began = self._told_at = 0.0

    def note(self, what: str, solution: str = "") -> datetime:
        """Note a try that failed; gives when the outage began."""
        now = self._clock()
        if self.since is None:
            self.since, self._tries, self._began = datetime.now(UTC), 0, now
        self._tries += 1
        if self._tries == 1 or now - self._told_at >= TELL_EVERY:
            self._told_at = now
            lasting = {} if self._tries == 1 else {"seconds": round(now - self._began), "tries": self._tries}
            self._log.warning(f"{self._component} unavailable, retrying", what=what, solution=solution, **lasting)
        return self.since

    def end(self) -> None:
        """Note that it works again; without an outage, nothing."""
        if self.since is None:
            return
        seconds = round(self._clock() - self._began)
        self._log.info(f"{self._component} available again", seconds=seconds, tries=self._tries)
        self.since = None
