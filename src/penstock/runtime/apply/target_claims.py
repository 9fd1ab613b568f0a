"""Who writes which table of the destination, over all sources: two feeds may share one only with sids that differ."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from penstock.model.feed import Feed
from penstock.model.table import TableId


@dataclass(frozen=True)
class Claim:
    source: str
    feed: Feed

    def __str__(self) -> str:
        return f"{self.source}:{self.feed.name}" if self.feed.sid is not None else str(self.feed.name)


class TargetClaims:
    """The first to claim a table has it. May be asked from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owners: dict[TableId, list[Claim]] = {}

    def claim(self, source: str, feed: Feed) -> Claim | None:
        """None when the table is the feed's from now on; otherwise who has it already."""
        claimed = Claim(source, feed)
        with self._lock:
            others = self._owners.setdefault(feed.target, [])
            found = next((other for other in others if _clash(claimed, other)), None)
            if found is None and claimed not in others:
                others.append(claimed)
            return found


def _clash(one: Claim, other: Claim) -> bool:
    if (one.source, one.feed.name) == (other.source, other.feed.name):
        return False
    if one.feed.sid is None or other.feed.sid is None or one.feed.mode is not other.feed.mode:
        return True
    return one.source == other.source or one.feed.sid.value == other.feed.sid.value
