"""What the driver knows of a lake table, as one source sees it, whatever the table's format.

Each format adds what its log or catalog says (`open_table`), and its `tables` keeps one of these per table and source.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.destinations.lake.background_work import Counting, Merging, Sweeping
from penstock.destinations.lake.columns import LakeColumn
from penstock.destinations.lake.deferred_deletes import DeferredDeletes
from penstock.destinations.lake.file_list import TableState
from penstock.destinations.lake.recorded_structure import Move, Recorded
from penstock.destinations.lake.source_partition import SourceSlice, Turns
from penstock.destinations.lake.upsert_plan import UpsertPlan
from penstock.errors import StaleBase
from penstock.fold.layout import Layout
from penstock.model.feed import Sid
from penstock.model.position import Position
from penstock.model.table import TableId


@dataclass(frozen=True)
class CopyBase:
    """What a copy replaces: while these stay, no other driver has taken the table over."""

    position: Position | None
    fence: str | int | None


@dataclass
class TableUpkeep:
    """What maintenance remembers of a table between two calls.

    Only maintenance and sweeps change it, but for the count of commits.
    """

    deferred: DeferredDeletes
    commits_since_expiry: int = 0
    settled: TableState | None = None  # the state in which there was nothing to compact
    merging: Merging | None = None  # the compaction under way beside batches
    counting: Counting | None = None  # delete files whose entries are counted beside batches
    sweeping: Sweeping | None = None  # the search for files that nobody knows
    reported: tuple[TableState, str] | None = None  # the state last shown, and what went on beside batches then


def leading_column(columns: Sequence[LakeColumn], key: Sequence[str]) -> LakeColumn | None:
    """Return the first column of a key, by whose bounds files are passed over; None where there is no key."""
    return next((column for column in columns if key and column.name == key[0]), None)


@dataclass(kw_only=True)
class KnownTable(ABC):
    """A table that this driver works on. `turns` is shared by the sources of a table; the rest is of one."""

    target: TableId
    source: str
    turns: Turns
    sid: Sid | None
    layout: Layout
    upkeep: TableUpkeep
    # The table's structure, as last read.
    following: Recorded
    columns: tuple[LakeColumn, ...] = ()  # that follow the source
    others: tuple[LakeColumn, ...] | None = ()  # that do not; None when they cannot be read
    around: tuple[LakeColumn, ...] = ()  # the layout's columns
    slice: SourceSlice | None = None  # of a table that several sources feed: what of it is this source's
    # Its contents, as last read or committed.
    state: TableState | None = None  # None when it must be read again
    look_again: bool = False  # `state` is not of the last commit that this driver made
    committed: tuple[str, TableState] | None = None  # the plan whose commit was the last of a batch, and what it made
    has_others: bool = False  # somebody else has been seen to write to it
    strayed: str = ""  # why it no longer descends from what we committed; "" while it does
    # A copy that has been planned.
    copy_base: CopyBase | None = None  # as it was then
    copy_move: Move | None = None  # what the copy will make of its structure

    @property
    @abstractmethod
    def folder(self) -> str:
        """Where this source's data files go."""

    @property
    def stored(self) -> tuple[LakeColumn, ...]:
        """The columns that follow the source, as they are written."""
        return self.columns if self.slice is None else self.slice.stored

    @property
    def leading(self) -> LakeColumn | None:
        """The first column of the key."""
        return leading_column(self.columns, self.following.kept.key)

    def is_base(self, plan: UpsertPlan) -> bool:
        """Return whether the table, as we know it, is what the plan was made for."""
        if plan.follows is None:
            return self.state is not None and self.state.metadata == plan.metadata
        if self.committed is None or self.state is None:
            return False
        name, made = self.committed
        return name == plan.follows and self.state is made and made.sequence == plan.sequence

    def base_of(self, plan: UpsertPlan) -> str:
        """Return the name of the state that a plan's commit is made on.

        StaleBase if the plan follows a commit that made none, or if something came after that.
        """
        if plan.follows is None:
            return plan.metadata
        if self.state is None or not self.is_base(plan):
            raise StaleBase(
                f"table {self.target}: its commit: the commit before it is not what it was planned for",
                "The work is redone",
            )
        return self.state.metadata
