"""A table of a stream, as the driver keeps it in mind. `loop.py` moves it along, `stream_tables.py` judges it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.errors import EventsMissing
from penstock.model.feed import Feed
from penstock.model.table import TableId


@dataclass
class PublishedTable:
    """A table whose changes are published.

    `lost`: the log no longer holds what it needs. `incomplete`: events of it were never captured, or are not now, so
    trying again does not help. `copying`: its rows are published first. `outdated`: an Errored table whose rows at the
    destination must be replaced; it is copied again by itself. `relation_id` is the table's at the source, 0 while that
    is not known.
    """

    feed: Feed
    relation_id: int = 0
    errored: bool = False
    lost: bool = False
    incomplete: bool = False
    copying: bool = False
    outdated: bool = False
    paused: bool = False  # by an operator: its events wait
    changes: int = 0
    tolerated: set[str] = field(default_factory=set)  # messages in quarantine, by place
    letters: set[str] = field(default_factory=set)  # records of this batch kept as dead letters, by name

    @property
    def waits(self) -> bool:
        """Whether batches pass it by for now."""
        return self.errored or self.copying or self.paused

    @property
    def name(self) -> TableId:
        return self.feed.name


def by_relation(tables: Iterable[PublishedTable]) -> dict[int, TableId]:
    """Return the tables by what they are at the source, whatever their name there is at some place of the log."""
    return {table.relation_id: table.name for table in tables if table.relation_id}


def events_under_another_name(table: TableId, other: TableId) -> EventsMissing:
    """Return the error of a table that was called otherwise for a while, and changed meanwhile."""
    return EventsMissing(
        f"table {table}: events are missing, because it was called {other} for a while, and changed under that name",
        f"To go on behind them, with `snapshot: true` after its rows were sent again: penstock resync FILE {table}",
    )
