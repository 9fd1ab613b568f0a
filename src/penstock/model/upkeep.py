"""Describe maintenance in figures: a table's shape, and what was done to it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class TableShape:
    """A table's files.

    `read_cost` is what a full read costs beside one of the same rows, compact: 1 is as quick as can be. `doing` says
    what goes on beside batches; empty: nothing.
    """

    files: int
    delete_files: int
    bytes: int
    snapshots: int
    read_cost: float
    doing: str = ""


@dataclass(frozen=True)
class Upkeep:
    """A table's shape when it was last looked at, and what maintenance has done since the table was first kept."""

    at: datetime
    shape: TableShape
    merged_files: int = 0
    merged_deletes: int = 0
    expired_snapshots: int = 0
    swept_files: int = 0
