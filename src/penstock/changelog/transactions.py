"""Find transactions in the change log: how many changes each has, when it committed, and where that is.

For what ends or begins at a number of changes or at a moment (`runtime/run_end.py`, `penstock replay`). Headers tell
which segment it is in; only that segment is read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.changelog.chain import SegmentName
from penstock.changelog.log import ChangeLog
from penstock.model.position import Position
from penstock.model.source_events import is_source_event


@dataclass(frozen=True)
class Transactions:
    """The transactions of one segment, in stream order: commit positions, commit times (µs) and numbers of changes."""

    commits: npt.NDArray[np.uint64]
    times: npt.NDArray[np.int64]
    changes: npt.NDArray[np.int64]

    def since(self, position: Position) -> Transactions:
        """Return those that commit at the position or later."""
        kept = self.commits >= np.uint64(position)
        return Transactions(self.commits[kept], self.times[kept], self.changes[kept])


def transactions_of(log: ChangeLog, name: SegmentName) -> Transactions:
    """Read the transactions of a segment that changed tables."""
    commits, times = [], []
    wanted = {item.slice.schema for item in log.slices(name) if not is_source_event(item.table_schema.table)}
    for read in log.read(name, wanted):
        commits.append(np.asarray(read.batch.column("commit_position")).astype(np.uint64))
        times.append(np.asarray(read.batch.column("commit_time").cast(pa.int64())).astype(np.int64))
    if not commits:
        return Transactions(np.array([], np.uint64), np.array([], np.int64), np.array([], np.int64))
    found, first, counts = np.unique(np.concatenate(commits), return_index=True, return_counts=True)
    return Transactions(found, np.concatenate(times)[first], counts.astype(np.int64))


def changes_in(log: ChangeLog, name: SegmentName) -> int:
    """Count the changes to tables in a segment, by its header alone."""
    return sum(item.slice.rows for item in log.slices(name) if not is_source_event(item.table_schema.table))


def first_after(log: ChangeLog, moment: int, since: Position = 0) -> Position | None:
    """Return the commit position of the first transaction after a moment (µs) that commits at a position or later.

    None when the log has none yet. Commit times need not rise with positions: the first one in stream order counts.
    """
    for name in log.segments(after=since):
        if may_be_after(log, name, moment):
            found = transactions_of(log, name).since(since)
            later = np.flatnonzero(found.times > moment)
            if later.size:
                return int(found.commits[later[0]])
    return None


def may_be_after(log: ChangeLog, name: SegmentName, moment: int) -> bool:
    """Return whether a segment may have a transaction that committed after a moment (µs)."""
    return any(item.slice.last_commit_time > moment for item in log.slices(name))
