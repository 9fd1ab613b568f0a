"""Whose trouble is a file that cannot be read: the table's, which has lost it, or the store's, which is away for all?

Decided by trying. If the store gives us the table's metadata, or when that is what is lost another file, it answers,
and what it does not have is lost. A file that is there and cannot be read has to fail several times before it counts as
lost: one read may fail for any reason. On the driver; `destination` calls it for what executors and Java have met.
"""

from __future__ import annotations

from pathlib import Path

from penstock.destinations.iceberg.catalog import IcebergSettings
from penstock.destinations.iceberg.java import COPIED_AGAIN, Java, JavaObject, translated
from penstock.destinations.iceberg.open_table import read_state
from penstock.destinations.iceberg.tables import Tables
from penstock.destinations.lake.lost_files import FailedReads
from penstock.destinations.lake.storage import is_readable
from penstock.destinations.lake.warehouse import require_warehouse
from penstock.errors import (
    DestinationUnreachable,
    FileUnreadable,
    PenstockError,
    StaleBase,
    TableDropped,
)
from penstock.model.location import local_path
from penstock.model.table import TableId

MOST_WITNESSES = 8


class Diagnosis:
    """Decide for the tables of one destination, and remember how often which file could not be read."""

    def __init__(self, tables: Tables, settings: IcebergSettings, java: Java) -> None:
        self._tables, self._settings, self._java = tables, settings, java
        self._failed = FailedReads()

    def of(self, target: TableId, error: FileUnreadable) -> PenstockError:
        """Diagnose a file that could not be read, as the contract's `diagnose` says.

        FilesLost, TableDropped, StaleBase when the table no longer consists of the file, or DestinationUnreachable.
        """
        try:
            require_warehouse(self._settings)
            table = self._tables.load(target)
        except FileUnreadable as own:
            return self._of_metadata(target, own)
        except DestinationUnreachable as away:
            return away
        if table is None:
            return TableDropped(f"table {target} was dropped at the destination", COPIED_AGAIN)
        if not is_readable(table.operations().current().metadataFileLocation()):
            return error
        try:
            live = self._live(target, table)
        except FileUnreadable as own:
            return self._of_metadata(target, own)
        except DestinationUnreachable as away:
            return away
        if error.location not in live:
            return StaleBase(f"table {target}: {error.what}; the table no longer consists of it", "The work is redone")
        return self._failed.lost_or_away(target, error, f"copy the table again: penstock resync FILE {target}")

    def _of_metadata(self, target: TableId, error: FileUnreadable) -> PenstockError:
        """Return the error of a lost metadata file or manifest, without which the table cannot be read at all."""
        if not self._answers():
            return error
        return self._failed.lost_or_away(
            target, error, f"drop {target} at the destination and run `penstock retry`, which copies it again"
        )

    def _live(self, target: TableId, table: JavaObject) -> set[str]:
        """Return the files of which the table consists now, whichever source wrote them."""
        with translated(f"table {target}: its state cannot be read"):
            state = read_state(self._java, table, table.operations().current())
        return {file.path for file in (*state.data, *state.deletes)}

    def _answers(self) -> bool:
        """Return whether the store gives us anything: metadata of other tables, or its own catalog."""
        if any(is_readable(location) for location in self._tables.metadata_files()[:MOST_WITNESSES]):
            return True
        root = local_path(self._settings.warehouse)
        return root is not None and Path(root / "catalog.db").is_file()
