"""The structure of a table that several sources feed: the union of theirs, the same for every destination.

A source adds the columns that the table lacks and widens those that are too narrow for it; it never drops, renames or
narrows what another source has. Columns go by name, and so do fields of structs, which the images of events are. What a
source does not have is null in its rows. What cannot be united (text here, a number there; another key) is
SchemaChanged for that source's table alone.

Pure. Neighbour: `structure`, for tables of one source."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field

import pyarrow as pa

from penstock.destinations.structure import Held, Steps
from penstock.errors import SchemaChanged
from penstock.model.feed import Sid
from penstock.model.table import TableId, TableSchema
from penstock.model.type_map import TypeMap


def united(
    target: TableId,
    held: Sequence[Held],
    marked: Collection[str],
    columns: pa.Schema,
    key: Collection[str],
    *,
    sid: Sid,
    types: TypeMap,
) -> Steps:
    """Return the steps that make the table fit for a source's columns, whose key is `key` without the sid.

    `held` are the table's columns, `marked` is its key with the sid. `types`: the destination's map, which says what
    can be widened.
    """
    there = {one.name: one for one in held}
    found = _Found(types)
    if set(marked) - {sid.column} != set(key):
        theirs, ours = (", ".join(sorted(set(names) - {sid.column})) or "none" for names in (marked, key))
        found.conflicts.append(f"the key is {theirs} for other sources, and {ours} here")
    for field in columns:
        known = there.get(field.name)
        if known is None:
            found.added.append(field.with_nullable(True))
        else:
            found.compare(field.name, known.type, field.type)
    if found.conflicts:
        raise SchemaChanged(
            f"table {target}: source {sid.value} cannot be united with the others: {'; '.join(found.conflicts)}",
            "Bring the sources' tables in line, or give this source's a `target` of its own, such as "
            '"{source}.{table}"; then `penstock retry`',
        )
    grown = tuple((outer, tuple(fields)) for outer, fields in found.grown.items())
    return Steps(added=tuple(found.added), widened=tuple(found.widened), grown=grown)


@dataclass
class _Found:
    """What there is to do. A field of a struct is named `struct.field`."""

    types: TypeMap
    conflicts: list[str] = dataclass_field(default_factory=list)
    added: list[pa.Field] = dataclass_field(default_factory=list)
    widened: list[pa.Field] = dataclass_field(default_factory=list)
    grown: dict[str, list[pa.Field]] = dataclass_field(default_factory=dict)

    def compare(self, name: str, held: pa.DataType | None, own: pa.DataType) -> None:
        if held is not None and (held == own or self.types.widens(own, held)):
            return
        if held is not None and self.types.widens(held, own):
            self.widened.append(pa.field(name, own))
        elif held is not None and pa.types.is_struct(held) and pa.types.is_struct(own):
            there = {field.name: field.type for field in held}
            for field in own:
                if field.name in there:
                    self.compare(f"{name}.{field.name}", there[field.name], field.type)
                else:
                    self.grown.setdefault(name, []).append(field.with_nullable(True))
        else:
            self.conflicts.append(f"column {name} is {held} for other sources, and {own} here")


def union_type(held: pa.DataType, own: pa.DataType, types: TypeMap) -> pa.DataType:
    """Return the type that both fit into, of two that can be united."""
    if not (pa.types.is_struct(held) and pa.types.is_struct(own)):
        return own if types.widens(held, own) else held
    theirs, ours = ({field.name: field.type for field in type} for type in (held, own))
    kept = [(name, union_type(type, ours.get(name, type), types)) for name, type in theirs.items()]
    return pa.struct([*kept, *((name, type) for name, type in ours.items() if name not in theirs)])


def holds(held: pa.DataType, own: pa.DataType, types: TypeMap) -> bool:
    """Whether a column of the one type takes all values of the other as it is."""
    if pa.types.is_struct(held) and pa.types.is_struct(own):
        there = {field.name: field.type for field in held}
        return all(field.name in there and holds(there[field.name], field.type, types) for field in own)
    return bool(held == own) or types.widens(own, held)


def renamed(before: TableSchema, after: TableSchema) -> list[str]:
    """Return columns that are called otherwise now, by their earlier names.

    In a table that is others' too, the rows that are there cannot follow: the column keeps its name.
    """
    names = {column.number: column.name for column in after.columns}
    return [one.name for one in before.columns if names.get(one.number, one.name) != one.name]


def require_same_names(target: TableId, before: TableSchema, after: TableSchema | None) -> None:
    """SchemaChanged when columns were renamed since: such a table is copied again."""
    others = [] if after is None else renamed(before, after)
    if others:
        raise SchemaChanged(
            f"table {target}: column {', '.join(others)} was renamed, and the table is other sources' too",
            "Copy this source's table again: penstock resync",
        )
