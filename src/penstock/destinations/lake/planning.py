"""Plans of writes and copies, made from what the driver knows of a lake table."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa

from penstock.destinations.contract import WrittenPart
from penstock.destinations.lake.columns import LakeColumn
from penstock.destinations.lake.copy_plan import LakeCopyPlan
from penstock.destinations.lake.data_files import COPY_PREFIX
from penstock.destinations.lake.file_list import LiveFile, TableState
from penstock.destinations.lake.history_files import Kind, kind_of
from penstock.destinations.lake.history_plan import HistoryPlan
from penstock.destinations.lake.key_index import IndexedFile, KeyIndex
from penstock.destinations.lake.known_table import KnownTable, leading_column
from penstock.destinations.lake.recorded_structure import Move
from penstock.destinations.lake.table_format import TableFormat
from penstock.destinations.lake.upsert_plan import LakePart, UpsertPlan, as_one_age
from penstock.destinations.union import require_same_names
from penstock.errors import PositionLost, RangeVoid
from penstock.model.position import Position
from penstock.model.table import TableSchema


def lake_parts(parts: Sequence[WrittenPart]) -> list[LakePart]:
    """Return the parts as those of a lake table."""
    for part in parts:
        if not isinstance(part, LakePart):
            raise TypeError(f"{type(part).__name__} is not a part of a lake table")
    return [part for part in parts if isinstance(part, LakePart)]


def batch_plan(
    opened: KnownTable,
    state: TableState,
    *,
    table_format: TableFormat,
    position: Position | None,
    moment: int,
    rescued: LakeColumn,
    index: KeyIndex,
    move: Move | None,
) -> UpsertPlan:
    """Return the plan of a write on the table's state, after a move of its structure if there is one."""
    versions = opened.layout.period is not None
    columns = move.columns if move else opened.columns
    return (HistoryPlan if versions else UpsertPlan)(
        table_format=table_format,
        target=opened.target,
        source=opened.source,
        position=position or 0,
        metadata=state.metadata,
        folder=opened.folder,
        columns=columns,
        rescued=rescued,
        index=index,
        move=move,
        files=_indexed(state, "open" if versions else None, columns, index),
        delete_files=tuple(file.path for file in state.deletes),
        layout=opened.layout,
        around=opened.around,
        beside=_beside(opened, move) if versions else (),
        moment=moment,
        ended_files=_indexed(state, "ended", columns, index) if versions else (),
        slice=move.slice if move else opened.slice,
        sequence=state.sequence,
    )


def require_joinable(
    opened: KnownTable, plan: UpsertPlan, position: Position | None, schema: TableSchema | None
) -> None:
    """Raise where no batch can go on from the table.

    PositionLost if it carries no position; SchemaChanged if it is shared and the names of its columns have changed.
    """
    if position is None:
        raise PositionLost(
            f"table {opened.target} has no position of {opened.source}",
            f"Drop {opened.target}, then `penstock retry`: it is copied again",
        )
    if plan.slice is not None:
        require_same_names(opened.target, opened.following.schema, schema)


def plan_after(
    opened: KnownTable,
    plan: UpsertPlan,
    *,
    position: Position,
    moment: int | None,
    gets_rescued: bool,
    files: Callable[[int], Sequence[LiveFile]],
) -> UpsertPlan | None:
    """Return the plan of a write on what a commit of `plan` will make of the table; None where that cannot be foreseen.

    `files` are those that the commit adds, by its sequence number. `gets_rescued`: it brings the column RESCUED.
    """
    state = opened.state
    if state is None or not opened.is_base(plan) or plan.move is not None or plan.slice is not None or gets_rescued:
        return None
    sequence, versions = state.sequence + 1, opened.layout.period is not None
    after = state.after("", None, sequence, files(sequence))
    return replace(
        plan,
        name=uuid.uuid4().hex,
        follows=plan.name,
        position=position,
        moment=plan.moment if moment is None else moment,
        metadata="",
        sequence=sequence,
        files=_indexed(after, "open" if versions else None, plan.columns, plan.index),
        delete_files=tuple(file.path for file in after.deletes),
        ended_files=_indexed(after, "ended", plan.columns, plan.index) if versions else (),
    )


def copy_plan(opened: KnownTable, *, table_format: TableFormat, rescued: LakeColumn, index: KeyIndex) -> LakeCopyPlan:
    """Return the plan of a copy into the table, after the move that was planned with it."""
    move = opened.copy_move
    return LakeCopyPlan(
        table_format=table_format,
        target=opened.target,
        folder=opened.folder,
        columns=move.columns if move else opened.columns,
        rescued=rescued,
        index=index,
        slice=move.slice if move else opened.slice,
    )


def replay_plan(
    opened: KnownTable,
    base: Sequence[LakePart],
    position: Position,
    *,
    table_format: TableFormat,
    rescued: LakeColumn,
    index: KeyIndex,
) -> UpsertPlan:
    """Return the plan of a write over the files of a copy that is not committed yet.

    RangeVoid if its columns have changed since.
    """
    files, delete_files = as_one_age(base)
    if any(part.rescued_as and part.rescued_as.numbers != rescued.numbers for part in base):
        raise RangeVoid(
            f"table {opened.target}: its columns have changed since rows of its copy were written",
            "What was read of it is void; its copy starts again by itself",
        )
    move = opened.copy_move
    return UpsertPlan(
        table_format=table_format,
        target=opened.target,
        source=opened.source,
        position=position,
        metadata="",
        folder=opened.folder,
        columns=move.columns if move else opened.columns,
        rescued=rescued,
        index=index,
        files=files,
        delete_files=delete_files,
        prefix=COPY_PREFIX,
        slice=move.slice if move else opened.slice,
    )


def require_copied_columns(opened: KnownTable, move: Move | None, parts: Sequence[LakePart]) -> None:
    """RangeVoid if the columns of a copy would get other numbers now than those under which its parts were written."""
    numbers = tuple(column.id for column in (move.columns if move else opened.columns))
    if any(part.data is not None and part.columns != numbers for part in parts):
        raise RangeVoid(
            f"table {opened.target}: its columns have changed at the destination since its copy began",
            "What was read of it is void; its copy starts again by itself",
        )


def _bounds(file: LiveFile, leading: LakeColumn | None, *, alone: bool) -> tuple[int, int] | tuple[bytes, bytes] | None:
    """Return the bounds of a file's keys, if those that it has are of the column that leads the key now.

    A text in a key of several columns stands behind its length, so its order says nothing there.
    """
    found = file.bounds
    if found is None or leading is None or found.column != leading.id:
        return None
    if isinstance(found.low, int) and isinstance(found.high, int):
        return (found.low, found.high) if pa.types.is_integer(leading.type) else None
    if isinstance(found.low, bytes) and isinstance(found.high, bytes) and alone and pa.types.is_string(leading.type):
        return found.low, found.high
    return None


def _beside(opened: KnownTable, move: Move | None) -> tuple[LakeColumn, ...]:
    """Return the columns that follow no column of the source after the move, by their names then; not the layout's."""
    around = [column.id for column in opened.around]
    others = [column for column in opened.others or () if column.id not in around]
    if move is None:
        return tuple(others)
    followed, names = {column.id for column in move.columns}, dict(move.steps.renamed)
    left = [column for column in (*opened.columns, *others) if column.id not in followed]
    return tuple(replace(column, name=names.get(column.name, column.name), required=False) for column in left)


def _indexed(
    state: TableState, kind: Kind | None, columns: Sequence[LakeColumn], index: KeyIndex
) -> tuple[IndexedFile, ...]:
    """Return the data files in which rows of a kind may be; None: all of them."""
    leading = leading_column(columns, index.key)
    return tuple(
        IndexedFile(file.path, file.records, file.sequence, _bounds(file, leading, alone=len(index.key) == 1))
        for file in state.data
        if kind is None or kind_of(file.path) in (kind, "foreign")
    )
