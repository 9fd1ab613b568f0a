"""Define marks: what the source's catalogue shows of a table and its change stream does not, as a comparable value.

The marks of a table are read in the snapshot that the table is copied from, and kept in the state store. A later look
at the catalogue that finds other marks means that something may have happened to the table which no change reported:
it left the publication and came back, an enum value was renamed, a composite type altered. The table is then copied
again, which replaces its marks. The source reads and compares them (`source/snapshot_contract.py`, CatalogueReader);
`runtime/watch/table_watch.py` acts on what it finds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.model.position import Position


@dataclass(frozen=True)
class TableMarks:
    """One look at one table. `taken` orders looks.

    `facts` is what the source saw, as JSON of its own: nobody else reads it. Equal facts are certain to mean that
    nothing happened in between. `position` is that of the snapshot which a copy began with; None in other looks, and in
    records that are older than this field.
    """

    taken: int
    facts: str = "{}"
    position: Position | None = None

    @classmethod
    def of(cls, taken: int, facts: Mapping[str, Any], position: Position | None = None) -> TableMarks:
        """Make marks of JSON values. The same facts are the same text."""
        return cls(taken, json.dumps(facts, ensure_ascii=False, sort_keys=True), position)

    def to_json(self) -> str:
        raw = {**json.loads(self.facts), "taken": self.taken, "position": self.position}
        return json.dumps(raw, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> TableMarks:
        raw: dict[str, Any] = json.loads(text)
        taken, position = raw.pop("taken"), raw.pop("position", None)
        return cls.of(taken, raw, position)
