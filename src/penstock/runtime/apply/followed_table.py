"""A table that the apply loop follows."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.model.feed import Feed
from penstock.model.position import Position
from penstock.model.table import TableId, TableSchema


@dataclass
class FollowedTable:
    """A feed that the destination follows, and how far it has come."""

    feed: Feed
    schema: TableSchema
    position: Position
    changes: int = 0
    fetched: int = 0  # values that the source left out of updates, read back from the destination
    errored: bool = False
    lacks_key: bool = False  # it is Errored for a change that only a key could place
    lacks_columns: bool = False  # it is Errored for having none
    lost: bool = False  # it is Errored because the log no longer has what it needs: a copy puts that right
    level: Position | None = None  # how far it alone has been processed, while it is behind the others
    waiting: bool = False  # somebody locks it at the destination: it is behind the others, and tried again later
    try_again_at: float = 0.0  # monotonic; while it waits
    held: bool = False  # it goes no further than `until`, and nowhere while that is None
    until: Position | None = None
    paused: bool = False  # by an operator: it stays where it is

    @property
    def name(self) -> TableId:
        """Return the feed's name, under which the state store and operators know it."""
        return self.feed.name

    @property
    def target(self) -> TableId:
        return self.feed.target
