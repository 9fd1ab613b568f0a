"""Let the change log go of what no destination needs: decided once per source, over all of its readers.

What destinations of the commit policy need is never removed. The others, those that have failed for good, and tables
that are Errored or being copied, hold the log up to `log.max_bytes` and `log.max_age`. A reader that is about to lose
what it has not read is asked to do without it first, so that nothing goes under a batch that is being read; one that
does not answer for PATIENCE has only itself to blame.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

import structlog

from penstock.changelog.log import ChangeLog
from penstock.config.model import LogConfig
from penstock.failpoints import reach
from penstock.model.position import Position, position_text
from penstock.runtime.log_reader import LogNeed, LogReader

LOG = structlog.get_logger("housekeeping")
RETAIN_EVERY = 5.0
REMOVED_FOR = 1.0  # seconds; what is left goes the next time
PATIENCE = 60.0


class LogRetention:
    def __init__(
        self,
        log: ChangeLog,
        limits: LogConfig,
        readers: Sequence[LogReader],
        needed: Callable[[Mapping[str, LogNeed]], LogNeed],
        passed: Callable[[Position], None] = lambda position: None,
    ) -> None:
        """`needed` makes one need of those of all readers, by name: the commit policy.

        `passed` is called with what lies behind all positions, when something new does.
        """
        self._log, self._limits, self._readers = log, limits, readers
        self._needed, self._passed = needed, passed
        self._retained_at = time.monotonic()
        self._asked: dict[str, float] = {}  # readers that were asked to let go, and since when

    def run(self) -> None:
        """Do what is due. Raises what concerns the log as a whole."""
        if time.monotonic() - self._retained_at >= RETAIN_EVERY:
            self._retained_at = time.monotonic()
            self.retain(self._retained_at + REMOVED_FOR)

    def retain(self, until: float = math.inf) -> None:
        """Remove segments that all have passed, but for the time to replay; as many as can be until then."""
        log, need = self._log, self._needed({reader.name: reader.log_need for reader in self._readers})
        removable = log.removable(
            needed_from=need.needed_from,
            held_from=need.held_from,
            replay=self._limits.replay,
            max_bytes=self._limits.max_bytes,
            max_age=self._limits.max_age,
        )
        if not removable or not self._all_let_go(removable[-1].end):
            return
        for name in removable:
            log.remove(name)
            reach("log.segment_removed")
            if time.monotonic() >= until:
                break
        start = log.start()
        if start is not None:
            self._passed(min(start, need.needed_from, need.held_from))

    def _all_let_go(self, before: Position) -> bool:
        now, waiting = time.monotonic(), False
        for reader in self._readers:
            if reader.let_go(before):
                self._asked.pop(reader.name, None)
                continue
            since = self._asked.setdefault(reader.name, now)
            if now - since < PATIENCE:
                waiting = True
            else:
                LOG.warning("log removed before its reader", destination=reader.name, position=position_text(before))
        return not waiting
