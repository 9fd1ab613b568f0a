"""Which column is which at a source that gives columns no numbers: by their names, and by what statements say.

Such a source (`Dialect.numbers_columns` is false) numbers a column by its name alone. A destination's column keeps the
number that it was made with, also when a statement gives it another name, and a new column that takes the old name gets
another number.

Pure. `column_identity.py` asks for every version that is followed; copies ask how their table calls its columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.decode.dialect import dialect_of
from penstock.model.column_change import ColumnChange
from penstock.model.table import Column, TableSchema

UNCLEAR = "it was altered, and what the statement did to its columns is not certain"


def renumbered(before: TableSchema, given: TableSchema) -> TableSchema:
    """Return `given` with the numbers that `before` has for columns of the same names.

    Columns of a source that numbers them are left as they are.
    """
    if dialect_of(given).numbers_columns:
        return given
    return _numbered(given, {column.name: column.number for column in before.columns})


def altered(before: TableSchema, given: TableSchema) -> tuple[TableSchema, str]:
    """Return `given`, which marks a statement, with every column numbered, and why that is not certain ("": it is).

    `before` is exactly what the statement was run on. It is certain if the statement makes the columns of `given` of
    it, in their order, and leaves the values of those that stay as they were.
    """
    left = _left_by(before.columns, given.altered)
    if left is None or [name for name, _ in left] != [column.name for column in given.columns]:
        return renumbered(before, given), UNCLEAR
    dialect, known = dialect_of(given), dict[str, int]()
    for column, (name, old) in zip(given.columns, left, strict=True):
        if old is None:
            if not column.nullable:
                return renumbered(before, given), f"older rows have a value in the new column {name}"
            continue
        tightened = old.nullable and not column.nullable
        if tightened or not dialect.keeps_values(old.type, column.type):
            return renumbered(before, given), f"column {name} was altered, and its values may be others"
        known[name] = old.number
    taken = {column.number for column in before.columns}
    return replace(_numbered(given, known, taken), altered=()), ""


def _numbered(given: TableSchema, known: dict[str, int], taken: set[int] | None = None) -> TableSchema:
    used = (taken or set()) | set(known.values())
    columns: list[Column] = []
    for column in given.columns:
        number = known.get(column.name)
        if number is None:
            number = column.number if column.number not in used else max(used) + 1
            used.add(number)
        columns.append(replace(column, number=number))
    return replace(given, columns=tuple(columns))


def _left_by(columns: Sequence[Column], changes: Sequence[ColumnChange]) -> list[tuple[str, Column | None]] | None:
    """Return names and earlier columns after the statement, in their order; None when it cannot have been run on these.

    Names in a statement are of before it, all at once, and case does not tell them apart.
    """
    named = {column.name.lower(): column for column in columns}
    by_name: dict[str, ColumnChange] = {}
    added: list[ColumnChange] = []
    for change in changes:
        name = change.before.lower()
        if not change.before:
            if not (change.optional and change.after.lower() in named):
                added.append(change)
        elif name in named and name not in by_name:
            by_name[name] = change
        elif not change.optional:
            return None
    made: list[tuple[str, Column | None]] = []
    moving: list[tuple[ColumnChange, Column | None]] = []
    for column in columns:
        stays = by_name.get(column.name.lower(), ColumnChange(column.name, column.name))
        if stays.after and stays.place is None:
            made.append((stays.after, column))
    for change in changes:
        if change in added:
            moving.append((change, None))
        elif change.after and change.place is not None and by_name.get(change.before.lower()) is change:
            moving.append((change, named[change.before.lower()]))
    for change, moved in moving:
        at = len(made)
        if change.place is not None:
            names = [name.lower() for name, _ in made]
            if change.place and change.place.lower() not in names:
                return None
            at = names.index(change.place.lower()) + 1 if change.place else 0
        made.insert(at, (change.after, moved))
    return made if len({name.lower() for name, _ in made}) == len(made) else None
