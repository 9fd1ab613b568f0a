"""Change a table's structure: what a plan needs, what a copy needs, and what is true after the commit."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.destinations.iceberg.columns import coming_rescued_column, unfollowed
from penstock.destinations.iceberg.evolution import planned, planned_union
from penstock.destinations.iceberg.java import Java, present, translated
from penstock.destinations.iceberg.open_table import OpenTable, look_for_rescued
from penstock.destinations.lake.columns import LakeColumn
from penstock.destinations.lake.planning import require_copied_columns
from penstock.destinations.lake.recorded_structure import Move
from penstock.destinations.lake.upsert_plan import LakePart
from penstock.destinations.structure import OnDrop
from penstock.model.table import TableSchema


def move_to(
    java: Java, opened: OpenTable, schema: TableSchema | None, on_drop: OnDrop, *, copied: bool = False
) -> Move | None:
    """Return the move from the structure that the table follows to another; None when that is the same.

    What is kept of a structure may be something else in a table that is `copied`: then all of its rows are replaced.
    """
    layout, following = opened.layout, opened.following
    if schema is None:
        return None
    if schema.fingerprint == following.schema.fingerprint and not (copied and layout.kept(schema) != following.kept):
        return None
    layout.require_room(layout.kept(schema))
    with translated(f"table {opened.target}: its new structure cannot be tried"):
        if opened.sid is not None and opened.slice is not None:
            return planned_union(
                java, opened.table, opened.target, schema=schema, share=opened.slice, sid=opened.sid, layout=layout
            )
        return planned(
            java, opened.table, opened.target, following=following, schema=schema, on_drop=on_drop, layout=layout
        )


def move_again(java: Java, opened: OpenTable, parts: Sequence[LakePart]) -> Move | None:
    """Return the structure's move as it was planned for a copy.

    RangeVoid when its columns would get other numbers now.
    """
    planned_for = opened.copy_move
    move = move_to(java, opened, planned_for.schema, planned_for.on_drop, copied=True) if planned_for else None
    require_copied_columns(opened, move, parts)
    return move


def rescued_for(java: Java, opened: OpenTable, move: Move | None) -> LakeColumn:
    """Return the table's column RESCUED, or what it will be when it comes.

    It comes behind the columns that the move of its structure adds.
    """
    there = look_for_rescued(java, opened)
    if there is not None:
        return there
    added = [number for column in (move.columns if move else ()) for number in column.numbers]
    return coming_rescued_column(max(present(opened.operations.current(), opened.target).lastColumnId(), *added, 0))


def follow(java: Java, opened: OpenTable, move: Move) -> None:
    """After the commit that made the move."""
    opened.following, opened.columns, opened.slice = move.recorded, move.columns, move.slice
    with translated(f"table {opened.target}: its columns cannot be read"):
        found = java.schemas.toJson(opened.table.schema())
    opened.others = unfollowed(found, [column.id for column in opened.stored])
