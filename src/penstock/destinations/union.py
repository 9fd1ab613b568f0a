"""The structure of a table that several sources feed: the union of theirs, the same for every destination.

A source adds the columns that the table lacks and widens those that are too narrow for it; it never drops, renames or
narrows what another source has. Columns go by name. A column that a source does not have is null in its rows. What
cannot be united (text here, a number there; another key) is SchemaChanged for that source's table alone.

Pure. Neighbour: `structure`, for tables of one source."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa

from penstock.destinations.structure import Held, Steps
from penstock.errors import SchemaChanged
from penstock.fold.evolution import widens
from penstock.model.feed import Sid
from penstock.model.table import TableId, TableSchema


def united(
    target: TableId, held: Sequence[Held], marked: Collection[str], columns: pa.Schema, key: Collection[str], sid: Sid
) -> Steps:
    """How the table (`held`: its columns, `marked`: its key with the sid) becomes fit for a source's columns, whose key
    is `key` without the sid."""
    there = {one.name: one for one in held}
    conflicts: list[str] = []
    added: list[pa.Field] = []
    widened: list[pa.Field] = []
    if set(marked) - {sid.column} != set(key):
        theirs, ours = (", ".join(sorted(set(names) - {sid.column})) or "none" for names in (marked, key))
        conflicts.append(f"the key is {theirs} for other sources, and {ours} here")
    for field in columns:
        known = there.get(field.name)
        if known is None:
            added.append(field.with_nullable(True))
        elif known.type is not None and (known.type == field.type or widens(field.type, known.type)):
            continue
        elif known.type is not None and widens(known.type, field.type):
            widened.append(field)
        else:
            conflicts.append(f"column {field.name} is {known.type} for other sources, and {field.type} here")
    if conflicts:
        raise SchemaChanged(
            f"table {target}: source {sid.value} cannot be united with the others: {'; '.join(conflicts)}",
            "Bring the sources' tables in line, or give this source's a `target` of its own, such as "
            '"{source}.{table}"; then `penstock retry`',
        )
    return Steps(added=tuple(added), widened=tuple(widened))


def renamed(before: TableSchema, after: TableSchema) -> list[str]:
    """Columns that are called otherwise now, by their earlier names. In a table that is others' too, the rows that are
    there cannot follow: the column keeps its name."""
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
