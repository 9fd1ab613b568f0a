"""Whose trouble is a file that cannot be read: the table's, which has lost it, or the store's, which is away for all?

Decided by trying, as for Iceberg: if the table's log can be read, the store answers, and what it does not have is lost.
A file that is there and cannot be read has to fail several times before it counts as lost.
"""

from __future__ import annotations

from collections import Counter

from penstock.destinations.delta.log import COPIED_AGAIN
from penstock.destinations.delta.tables import Tables
from penstock.destinations.delta.warehouse import DeltaSettings, require_warehouse
from penstock.destinations.lake.storage import reaching, sizes
from penstock.errors import DestinationUnreachable, FilesLost, FileUnreadable, PenstockError, StaleBase, TableDropped
from penstock.model.table import TableId

MOST_READS = 3  # of a file that is there, before it counts as lost


class Diagnosis:
    """Decide for the tables of one destination, and remember how often which file could not be read."""

    def __init__(self, tables: Tables, settings: DeltaSettings) -> None:
        self._tables, self._settings = tables, settings
        self._failed: Counter[str] = Counter()

    def of(self, target: TableId, error: FileUnreadable) -> PenstockError:
        """FilesLost, TableDropped, StaleBase when the table no longer consists of the file, or DestinationUnreachable:
        the contract's `diagnose`."""
        way_out = f"drop {target} at the destination and run `penstock retry`, which copies it again"
        try:
            require_warehouse(self._settings)
            log = self._tables.log_of(target)
            log.refresh()
        except FileUnreadable as own:
            return self._lost_or_away(target, own, way_out)
        except TableDropped:
            return TableDropped(f"table {target} was dropped at the destination", COPIED_AGAIN)
        except DestinationUnreachable as away:
            return away
        if error.location not in log.state.locations() and not error.location.startswith(f"{log.root}/_delta_log"):
            return StaleBase(f"table {target}: {error.what}; the table no longer consists of it", "The work is redone")
        return self._lost_or_away(target, error, f"copy the table again: penstock resync FILE {target}")

    def _lost_or_away(self, target: TableId, error: FileUnreadable, way_out: str) -> PenstockError:
        try:
            with reaching(f"table {target}: its files cannot be looked at"):
                missing = sizes([error.location]) == [None]
        except DestinationUnreachable as away:
            return away
        self._failed[error.location] += 1
        if not missing and self._failed[error.location] < MOST_READS:
            return error
        del self._failed[error.location]
        return FilesLost(
            f"table {target}: {error.what}; the store answers otherwise",
            f"Bring the file back and run `penstock retry`, or {way_out}",
        )
