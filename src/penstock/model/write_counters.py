"""How many rows of a table were updated or deleted, as the source counts them, and how many links to partitions made.

Kept for tables of which the source sends inserts only, and for those with partitions. source/postgres/write_counters.py
reads them and says what they can tell; the state store keeps those from before a table's copy;
runtime/watch/unsent_writes.py compares them, and runtime/watch/source_partitions.py the links.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LinkCounts:
    """How many links between tables and their partitions were made and removed so far, in the whole database."""

    made: int
    removed: int


@dataclass(frozen=True)
class WriteCounters:
    """The rows updated and deleted in a table so far, by the relations that hold its rows.

    `links` is None where they are not counted, and in records that are older than this field.
    """

    epoch: str
    written: Mapping[int, int]
    links: LinkCounts | None = None

    def to_json(self) -> str:
        raw: dict[str, Any] = {"epoch": self.epoch, "written": {str(key): n for key, n in self.written.items()}}
        if self.links is not None:
            raw["links"] = [self.links.made, self.links.removed]
        return json.dumps(raw)

    @classmethod
    def from_json(cls, text: str) -> WriteCounters:
        raw = json.loads(text)
        links = LinkCounts(*raw["links"]) if "links" in raw else None
        return cls(raw["epoch"], {int(key): value for key, value in raw["written"].items()}, links)

    def since(self, before: WriteCounters | None) -> int | None:
        """Return how many rows were updated or deleted since `before`; None when that cannot be known."""
        if before is None or before.epoch != self.epoch:
            return None
        moved = {relation: count - before.written.get(relation, 0) for relation, count in self.written.items()}
        return None if any(count < 0 for count in moved.values()) else sum(moved.values())
