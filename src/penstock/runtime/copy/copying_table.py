"""A table on its way through the initial copy: what is known of it, and what the state store recorded.

`copier.py` moves it along; `apply/table_lifecycle.py` asks which files of an unfinished copy must stay.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from penstock.destinations.contract import CopyPlan, TableDestination, WrittenPart
from penstock.fold.rule import rule_text
from penstock.model.feed import Feed, Mode
from penstock.model.position import Position
from penstock.model.record import UnreadableRecord
from penstock.model.table import TableId, TableSchema
from penstock.runtime.copy.replay import FinishedRange
from penstock.source.contract import Source
from penstock.source.snapshot_contract import CopyRange, TableReader
from penstock.state.store import CopyRecord


@dataclass
class CopyingTable:
    """A feed's table on its way from Init to SyncDone."""

    feed: Feed
    schema: TableSchema
    failures: int = 0
    voids: int = 0  # how often its copy has started over
    not_before: float = 0.0
    waits_for_person: bool = False
    lacks_key: bool = False  # it failed for a change that only a key could place
    lacks_columns: bool = False  # it failed for having none
    given_up: bool = False  # for this snapshot: it failed, or what was read is void
    rows: int = 0
    estimated_rows: int = 0
    ranges: dict[int, CopyRange] = field(default_factory=dict)
    finished: dict[int, FinishedRange] = field(default_factory=dict)
    reader: TableReader | None = None  # in the snapshot that is being read
    copy: str = ""
    plan: CopyPlan | None = None
    why: str = ""  # it is copied again
    from_zero: str = ""  # why what was read of it before did not count
    replay_from: Position | None = None  # the lowest position of what is read by now, or being read

    @property
    def name(self) -> TableId:
        """Return the feed's name, under which the state store and operators know it."""
        return self.feed.name

    @property
    def spans_snapshots(self) -> bool:
        """Whether ranges of several snapshots make one table, once the log is replayed over them: by key only."""
        return bool(self.schema.key) and self.feed.mode is not Mode.EVENTS

    @property
    def target(self) -> TableId:
        return self.feed.target

    @property
    def fingerprint(self) -> str:
        """Of the structure and the rule under which rows are read: those read under another one do not count."""
        rule = hashlib.sha256(rule_text(self.feed).encode()).hexdigest()[:16]
        return f"{self.schema.fingerprint}.{rule}"

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.ranges.values())

    @property
    def bytes_done(self) -> int:
        return sum(self.ranges[number].bytes for number in self.finished)

    @property
    def left(self) -> list[CopyRange]:
        return [item for number, item in sorted(self.ranges.items()) if number not in self.finished]


def recorded_ranges(source: Source, record: CopyRecord) -> dict[int, CopyRange]:
    """Return a copy's ranges as the state store has them; UnreadableRecord when they cannot be read."""
    ranges = {item.number: source.range_from_json(item.content) for item in record.ranges}
    if any(number != item.number for number, item in ranges.items()):
        raise UnreadableRecord("the ranges of the copy are not in order")
    return ranges


def finished_ranges(record: CopyRecord, destination: TableDestination) -> dict[int, FinishedRange]:
    """Return those ranges of a copy that are finished; UnreadableRecord when they cannot be read."""
    return {
        item.number: FinishedRange(destination.part_from_json(item.part), item.position)
        for item in record.ranges
        if item.part is not None and item.position is not None
    }


def unfinished_parts(record: CopyRecord | None, destination: TableDestination) -> list[WrittenPart]:
    """Return the files of a copy that is not committed yet, which are no orphans.

    None of it counts if the record cannot be read, for then the copy starts from zero.
    """
    try:
        return [] if record is None else [item.part for item in finished_ranges(record, destination).values()]
    except UnreadableRecord:
        return []
