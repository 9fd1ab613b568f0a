"""Change a table's structure: what a plan needs, what a copy needs, and what is true after the commit.

The numbers of columns are ours, and follow from the table's structure and the steps alone. So a plan can know what its
commit will make, because the commit succeeds only on the very same base.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from penstock.decode.schema import arrow_schema
from penstock.destinations.delta.columns import held_columns, located
from penstock.destinations.delta.open_table import OpenTable
from penstock.destinations.delta.structure import Structure
from penstock.destinations.delta.type_map import DELTA_TYPES
from penstock.destinations.lake.columns import LakeColumn
from penstock.destinations.lake.planning import require_copied_columns
from penstock.destinations.lake.recorded_structure import Move, Recorded
from penstock.destinations.lake.source_partition import require_free_name, with_sid
from penstock.destinations.lake.upsert_plan import LakePart
from penstock.destinations.structure import OnDrop, Steps, steps, unkept
from penstock.destinations.union import holds, united
from penstock.errors import SchemaChanged
from penstock.model.feed import Sid
from penstock.model.table import TableId, TableSchema


def move_to(opened: OpenTable, schema: TableSchema | None, on_drop: OnDrop, *, copied: bool = False) -> Move | None:
    """Return the move from the structure that the table follows to another; None when that is the same.

    What is kept of a structure may be something else in a table that is `copied`: then all of its rows are replaced.
    """
    layout, following = opened.layout, opened.following
    if schema is None:
        return None
    if schema.fingerprint == following.schema.fingerprint and not (copied and layout.kept(schema) != following.kept):
        return None
    layout.require_room(layout.kept(schema))
    if opened.sid is not None and opened.slice is not None:
        return _planned_union(opened, schema, opened.sid)
    return _planned(opened, schema, on_drop)


def _planned(opened: OpenTable, schema: TableSchema, on_drop: OnDrop) -> Move:
    layout, following = opened.layout, opened.following
    kept = layout.kept(schema)
    types = {field.name: field.type for field in arrow_schema(following.kept)}
    names = {column.number: column.name for column in following.kept.columns}
    followed = {field: (number, types[names[number]]) for number, field in following.fields.items()}
    held = held_columns(opened.structure.fields, followed)
    left = unkept(following.fields, schema, kept)
    taken = steps(held, kept, on_drop, types=DELTA_TYPES, past=layout.keeps_past, unkept=left)
    fields = opened.structure.evolved(taken).fields
    numbers = {field.name: field.number for field in fields}
    wanted = arrow_schema(kept)
    columns = located(opened.target, fields, wanted, [numbers[name] for name in wanted.names])
    return Move(schema, kept, taken, columns, on_drop, layout.has_identifiers)


def _planned_union(opened: OpenTable, schema: TableSchema, sid: Sid) -> Move:
    assert opened.slice is not None
    kept = opened.layout.kept(schema)
    taken = union_steps(opened.target, opened.structure, kept, sid, key=identifiers(opened))
    columns, stored = united_columns(opened.structure.evolved(taken), arrow_schema(kept), sid)
    share = replace(opened.slice, stored=stored)
    return Move(schema, kept, taken, columns, "keep", opened.layout.has_identifiers, share)


def identifiers(opened: OpenTable) -> tuple[str, ...]:
    """Return the key that the sources of a table share; none where it does not tell rows apart."""
    return opened.following.kept.key if opened.layout.has_identifiers else ()


def union_steps(target: TableId, structure: Structure, schema: TableSchema, sid: Sid, *, key: Sequence[str]) -> Steps:
    """Return how the table gets fit for a source's columns; `key` is what its sources' rows are told apart by."""
    columns = arrow_schema(schema)
    require_free_name(target, columns, sid)
    own = schema.key if key else ()
    return united(target, held_columns(structure.fields, {}), key, columns, own, sid=sid, types=DELTA_TYPES)


def united_columns(
    structure: Structure, columns: pa.Schema, sid: Sid
) -> tuple[tuple[LakeColumn, ...], tuple[LakeColumn, ...]]:
    """Return a source's columns with the table's numbers, by name.

    First as the source has them, then as they are stored, sid first.
    """
    there = {field.name: field for field in structure.fields}
    own = tuple(there[one.name].column(one.type) for one in columns)
    kept = tuple(there[one.name].column(there[one.name].type or one.type) for one in with_sid(columns, sid))
    return own, kept


def columns_in_union(
    target: TableId, structure: Structure, following: Recorded
) -> tuple[tuple[LakeColumn, ...], tuple[LakeColumn, ...]]:
    """Return the columns that follow one of several sources, in its order.

    First as the source has them, then as they are stored, which may be wider. SchemaChanged if somebody removed one.
    """
    there = {field.number: field for field in structure.fields}
    own, kept = [], []
    for column, field in zip(following.kept.columns, arrow_schema(following.kept), strict=True):
        known = there.get(following.fields[column.number])
        if known is None or known.type is None or not holds(known.type, field.type, DELTA_TYPES):
            raise SchemaChanged(
                f"table {target}: somebody changed it at the destination: column {field.name} is "
                f"{'gone' if known is None else known.raw['type']}",
                f"Bring the column back, or drop {target} there and `penstock retry`: it is copied again",
            )
        own.append(known.column(field.type))
        kept.append(known.column(known.type))
    return tuple(own), tuple(kept)


def move_again(opened: OpenTable, parts: Sequence[LakePart]) -> Move | None:
    """Return the structure's move as it was planned for a copy.

    RangeVoid when its columns would get other numbers now.
    """
    planned_for = opened.copy_move
    move = move_to(opened, planned_for.schema, planned_for.on_drop, copied=True) if planned_for else None
    require_copied_columns(opened, move, parts)
    return move


def structure_after(opened: OpenTable, move: Move | None) -> Structure:
    return opened.structure if move is None else opened.structure.evolved(move.steps)
