"""Tell a file that a table has lost from a store that is away, by trying.

A file that the store does not have is lost. One that is there and cannot be read has to fail several times before it
counts as lost: the trouble may pass.
"""

from __future__ import annotations

from collections import Counter

from penstock.destinations.lake.storage import reaching, sizes
from penstock.errors import DestinationUnreachable, FilesLost, FileUnreadable, PenstockError
from penstock.model.table import TableId

MOST_READS = 3  # of a file that is there, before it counts as lost


class FailedReads:
    """Remember how often which file of a destination could not be read."""

    def __init__(self) -> None:
        self._failed: Counter[str] = Counter()

    def lost_or_away(self, target: TableId, error: FileUnreadable, way_out: str) -> PenstockError:
        """Return what it means that a file could not be read.

        FilesLost, DestinationUnreachable if the store does not answer, or the error itself, so that the file is read
        again. `way_out` completes the advice.
        """
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
