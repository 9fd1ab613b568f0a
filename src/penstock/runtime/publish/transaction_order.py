"""How many changes of a table come before one of them in its transaction: Debezium's events say so.

A file of the log may begin in the middle of a transaction, and a table's changes may be in several slices of a file.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.changelog.log import ChangeLog
from penstock.model.table import TableId


def changes_before(log: ChangeLog, segment: str, file: range, table: TableId, batch: pa.RecordBatch) -> int:
    """Return how many changes of the table come before the batch's first one in the same transaction.

    `file` has the numbers of the slices of the file that the batch is of: a transaction that goes over several files
    has its segment for itself."""
    commit, ordinal = (int(batch.column(name)[0].as_py()) for name in ("commit_position", "ordinal"))
    if not ordinal:
        return 0
    found = 0
    for number, part in enumerate(log.slices(segment)):
        if part.table_schema.table != table or number >= file.stop:
            continue
        if number < file.start:
            found += part.slice.rows
        elif part.slice.first_commit <= commit <= part.slice.last_commit:
            for changes in log.read(segment, None, [number]):
                commits, ordinals = (np.asarray(changes.batch.column(name)) for name in ("commit_position", "ordinal"))
                found += int(np.count_nonzero((commits == commit) & (ordinals < ordinal)))
    return found
