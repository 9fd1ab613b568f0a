"""Tag all tables of a destination with the source position that they stand at, every now and then.

Any engine can then read all of them as of one source position, whatever its catalog can do: `penstock_{position}` is
the same position in every table. Between two batches all tables stand at what has been processed, so the tags are
true one by one; a reader takes a tag that every table has. Older tags are removed as newer ones are made; those that
a killed run left are given up after BOOKMARKS_LAST. Called by `destination_pipeline` between batches.
"""

from __future__ import annotations

import time
from collections import deque

import structlog

from penstock.errors import StaleBase, TableError
from penstock.model.position import Position, position_text, stored_text
from penstock.model.table import TableId
from penstock.runtime.apply.loop import ApplyLoop

LOG = structlog.get_logger("tags")
KEPT = 10  # tags of each table


class ConsistentTags:
    """Of one source's tables at one destination. `scope` tells several sources' tags apart; None: there is one."""

    def __init__(self, loop: ApplyLoop, every: float | None, scope: str | None) -> None:
        self._loop, self._every, self._scope = loop, every, scope
        self._made_at = time.monotonic()
        self._position: Position = 0
        self._tags: deque[tuple[str, tuple[TableId, ...]]] = deque()

    def tend(self) -> None:
        """Make the next tags when they are due and the tables have moved on since the last ones."""
        loop = self._loop
        if self._every is None or time.monotonic() - self._made_at < self._every or loop.processed == self._position:
            return
        self._made_at, self._position = time.monotonic(), loop.processed
        name = "_".join(filter(None, ("penstock", self._scope, stored_text(loop.processed))))
        tagged = []
        for tracked in list(loop.tables.values()):
            if tracked.errored or tracked.level is not None:
                continue  # it stands elsewhere
            try:
                loop.destination.bookmark(tracked.target, loop.source, name)
            except (StaleBase, TableError) as error:
                LOG.warning("table not tagged", table=str(tracked.name), what=error.what)
            else:
                tagged.append(tracked.target)
        self._tags.append((name, tuple(tagged)))
        LOG.debug("tables tagged", tag=name, tables=len(tagged), position=position_text(loop.processed))
        while len(self._tags) > KEPT:
            old, targets = self._tags.popleft()
            for target in targets:
                loop.destination.release(target, loop.source, old)
