"""Estimate what a full read of a table costs against the same rows in few large files: the measure for maintenance.

In bytes of a data file, since that is what a read is made of. What else it takes was measured with pyiceberg (CPU time,
a million rows of four columns) against the time that a byte takes: opening a file 1.5 ms, an entry of a delete file
1.6 µs, at 50 MB/s. Rows that are dead cost their bytes, for they are read and dropped. That pyiceberg takes 0.2 µs more
for every row of a file as soon as a single one of them is dead is left out: only a table that is rewritten after each
batch would be spared it. A pure function of the list of files: no table is read for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.destinations.lake.file_list import LiveFile, TableState

FULL_SIZE = 32 << 20  # of a file in a table that is as compact as can be
OPENING = 80 << 10  # bytes that are read in the time that opening a file takes
ENTRY = 80  # the same for an entry of a delete file


@dataclass(frozen=True)
class ReadCost:
    """In bytes: of the table as it is, and of the same rows in full files without deletes."""

    now: float
    compact: float

    @property
    def ratio(self) -> float:
        return self.now / self.compact if self.compact else 1.0


def dead_rows(state: TableState) -> dict[str, int]:
    """Return how many rows of each data file delete files name.

    Their hits must have been counted; a row may count twice.
    """
    dead: dict[str, int] = {}
    for delete in state.deletes:
        for path, count in (delete.hits or {}).items():
            dead[path] = dead.get(path, 0) + count
    return dead


def read_cost(state: TableState, dead: Mapping[str, int]) -> ReadCost:
    alive = sum(file.size * _alive(file, dead) for file in state.data)
    now = sum(file.size + OPENING for file in (*state.data, *state.deletes))
    now += ENTRY * sum(file.records for file in state.deletes)
    return ReadCost(now, alive + OPENING * max(1, -(-alive // FULL_SIZE)))


def saved(file: LiveFile, dead: Mapping[str, int]) -> float:
    """Return what a read saves when the file is rewritten without its dead rows."""
    return file.size * (1 - _alive(file, dead)) + ENTRY * dead.get(file.path, 0)


def _alive(file: LiveFile, dead: Mapping[str, int]) -> float:
    return max(0.0, 1 - dead.get(file.path, 0) / max(1, file.records))
