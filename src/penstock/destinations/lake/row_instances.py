"""Live instances of whole rows, for tables without a key: where as many of them are as a batch removes.

A row may be in any file, any number of times, and in some of its places it has ended already. So the files are searched
from the newest on, through the key index, and the delete files say which places are dead; the search for a row ends as
soon as there are enough. Called by `upsert_plan`, on executors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from penstock.destinations.lake.file_list import LiveFile
from penstock.destinations.lake.history_files import are_dead
from penstock.destinations.lake.key_index import IndexedFile, KeyIndex, Rows, sorted_order
from penstock.destinations.lake.table_format import TableFormat
from penstock.errors import RowsMissing
from penstock.fold.net_effect import Removals
from penstock.fold.whole_rows import rows_missing
from penstock.model.table import TableId


def require_positions(target: TableId, deletes: Sequence[LiveFile]) -> None:
    """RowsMissing when somebody else ended rows otherwise than by position: which are alive is not known then."""
    foreign = [file.path for file in deletes if file.content != "position-deletes"]
    if foreign:
        raise RowsMissing(
            f"table {target}: somebody else ended rows of it by value, so which of equal rows are alive is not known "
            f"({foreign[0]})",
            "Nothing: the table is copied again by itself",
        ).counting(len(foreign))


def removed_rows(
    target: TableId,
    *,
    table_format: TableFormat,
    index: KeyIndex,
    removals: Removals,
    files: Sequence[IndexedFile],
    delete_files: Sequence[str],
    read_keys: Callable[[IndexedFile], pa.Array],
) -> dict[str, Rows]:
    """Return the rows that end, by data file. RowsMissing when there are fewer instances than there must be."""
    order = sorted_order(removals.keys)
    keys = removals.keys.take(pa.array(order))
    times, needed = removals.times[order], removals.needed[order]
    found: dict[str, Rows] = {}
    for file in sorted(files, key=lambda file: -file.sequence):
        sought = np.flatnonzero(needed)
        if len(sought) == 0:
            break
        sidecar = index.sidecar(file, partial(read_keys, file))
        at, rows = sidecar.find_all(keys.take(pa.array(sought)))
        alive = ~are_dead(table_format, delete_files, file.path, rows)
        at, rows = sought[at[alive]], rows[alive]
        counts = np.bincount(at, minlength=len(keys))
        place = np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts)
        goes = place < times[at]
        if goes.any():
            found[file.path] = rows[goes]
        times, needed = np.maximum(0, times - counts), np.maximum(0, needed - counts)
    if needed.any():
        raise rows_missing(target, int(needed.sum()))
    return found
