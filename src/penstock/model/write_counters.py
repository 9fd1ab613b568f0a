"""How many rows of a table were updated or deleted, as the source counts them.

Kept for tables of which the source sends inserts only. source/postgres/write_counters.py reads them and says what they
can tell; the state store keeps those from before a table's copy; runtime/watch/unsent_writes.py compares.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class WriteCounters:
    """The rows updated and deleted in a table so far, by the relations that hold its rows."""

    epoch: str
    written: Mapping[int, int]

    def to_json(self) -> str:
        return json.dumps({"epoch": self.epoch, "written": {str(key): value for key, value in self.written.items()}})

    @classmethod
    def from_json(cls, text: str) -> WriteCounters:
        raw = json.loads(text)
        return cls(raw["epoch"], {int(key): value for key, value in raw["written"].items()})

    def since(self, before: WriteCounters | None) -> int | None:
        """Return how many rows were updated or deleted since `before`; None when that cannot be known."""
        if before is None or before.epoch != self.epoch:
            return None
        moved = {relation: count - before.written.get(relation, 0) for relation, count in self.written.items()}
        return None if any(count < 0 for count in moved.values()) else sum(moved.values())
