"""Whose trouble is a file that cannot be read: the table's, which has lost it, or the store's, which is away for all?

Decided by trying, as for Iceberg: if the table's log can be read, the store answers, and what it does not have is lost.
A file that is there and cannot be read has to fail several times before it counts as lost.
"""

from __future__ import annotations

from penstock.destinations.delta.log import COPIED_AGAIN
from penstock.destinations.delta.tables import Tables
from penstock.destinations.lake.lost_files import FailedReads
from penstock.destinations.lake.settings import LakeSettings
from penstock.destinations.lake.warehouse import require_warehouse
from penstock.errors import DestinationUnreachable, FileUnreadable, PenstockError, StaleBase, TableDropped
from penstock.model.table import TableId


class Diagnosis:
    """Decide for the tables of one destination, and remember how often which file could not be read."""

    def __init__(self, tables: Tables, settings: LakeSettings) -> None:
        self._tables, self._settings = tables, settings
        self._failed = FailedReads()

    def of(self, target: TableId, error: FileUnreadable) -> PenstockError:
        """Diagnose a file that could not be read, as the contract's `diagnose` says.

        FilesLost, TableDropped, StaleBase when the table no longer consists of the file, or DestinationUnreachable.
        """
        way_out = f"drop {target} at the destination and run `penstock retry`, which copies it again"
        try:
            require_warehouse(self._settings)
            log = self._tables.log_of(target)
            log.refresh()
        except FileUnreadable as own:
            return self._failed.lost_or_away(target, own, way_out)
        except TableDropped:
            return TableDropped(f"table {target} was dropped at the destination", COPIED_AGAIN)
        except DestinationUnreachable as away:
            return away
        if error.location not in log.state.locations() and not error.location.startswith(f"{log.root}/_delta_log"):
            return StaleBase(f"table {target}: {error.what}; the table no longer consists of it", "The work is redone")
        return self._failed.lost_or_away(target, error, f"copy the table again: penstock resync FILE {target}")
