"""The tasks of a compaction, whether batches wait for it, and the figures of a table's shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.destinations.lake.columns import LakeColumn
from penstock.destinations.lake.compaction import MergeData
from penstock.destinations.lake.compaction_choice import Choice
from penstock.destinations.lake.data_files import PREFIX
from penstock.destinations.lake.file_list import LiveFile, TableState
from penstock.destinations.lake.history_files import kind_index, kind_prefix
from penstock.destinations.lake.key_index import KeyIndex
from penstock.destinations.lake.known_table import KnownTable
from penstock.destinations.lake.read_cost import dead_rows, read_cost
from penstock.destinations.lake.table_format import TableFormat
from penstock.model.upkeep import TableShape

WORTH_A_JOB = 1 << 20  # bytes; less is merged here and now, before Spark has started a task
MOST_FILES_HERE = 64  # the same: each takes some milliseconds, however small it is
NOTHING = Choice((), ())


def worth_a_job(size: int) -> bool:
    """Return whether so many bytes are merged or read by a Spark job, not by this process."""
    return size >= WORTH_A_JOB


def takes_long(choice: Choice, *, is_local: bool = True) -> bool:
    """Return whether batches are not to wait while it is merged.

    The reason may be its bytes, the number of its files, or that each of them is far away.
    """
    files = len(choice.data) + len(choice.deletes)
    return worth_a_job(choice.size) or files > MOST_FILES_HERE or not is_local


def data_merges(
    opened: KnownTable,
    choice: Choice,
    *,
    table_format: TableFormat,
    columns: Sequence[LakeColumn],
    index: KeyIndex,
    deletes_of: Callable[[Sequence[LiveFile]], Sequence[str]],
    beside: bool,
) -> list[MergeData]:
    """Return a task per group of data files that become one.

    `deletes_of` names the delete files that concern a group.
    """
    versions = opened.layout.period is not None
    return [
        MergeData(
            table_format=table_format,
            target=opened.target,
            folder=opened.folder,
            columns=tuple(columns),
            index=kind_index(index, group[0].path) if versions else index,
            files=tuple(file.path for file in group),
            delete_files=tuple(deletes_of(group)),
            weight=sum(file.size for file in group),
            prefix=kind_prefix(group[0].path) if versions else PREFIX,
            beside=beside,
        )
        for group in choice.groups
    ]


def shape_of(opened: KnownTable, *, snapshots: int, as_read: Callable[[TableState], TableState]) -> TableShape | None:
    """Return what the table is like now; None when that is not known, or is as it was when somebody last asked.

    `as_read` gives the state as it counts for what a read costs.
    """
    state = opened.state
    doing = "sweeping" if opened.upkeep.sweeping is not None else ""
    if opened.upkeep.merging is not None:
        choice = opened.upkeep.merging.choice
        doing = f"merging {len(choice.data)} data files"
        doing += f" and {len(choice.deletes)} delete files" if choice.deletes else ""
    if state is None or opened.upkeep.reported == (state, doing):
        return None
    opened.upkeep.reported = (state, doing)
    read = as_read(state)
    return TableShape(
        files=len(state.data),
        delete_files=len(state.deletes),
        bytes=sum(file.size for file in (*state.data, *state.deletes)),
        snapshots=snapshots,
        read_cost=read_cost(read, dead_rows(read)).ratio,
        doing=doing,
    )
