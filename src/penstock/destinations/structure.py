"""How a destination's table gets from one structure to the next: steps, the same for every one that has columns.

A table's columns are known by the source's column numbers, so that renames keep them. A column that is gone at the
source stays (`keep`), goes (`drop`), or stays under another name (`rename`). What stays is null in rows written from
then on, and makes room when the source uses its name again. Columns that nobody knows are a user's own: they stay.

Pure. `iceberg.evolution` and `memory` apply the steps, `fold.evolution` has said before that rows can follow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

import pyarrow as pa

from penstock.decode.schema import arrow_schema
from penstock.fold.column_identity import resolve
from penstock.fold.projection import FIRST_CONSTANT
from penstock.model.table import TableSchema
from penstock.model.type_map import TypeMap

OnDrop = Literal["keep", "drop", "rename"]


@dataclass(frozen=True)
class Held:
    """A column that the table has. `number` is None when it follows no column of the source, or none any more."""

    name: str
    type: pa.DataType | None  # None: of a type that is none of ours
    required: bool
    number: int | None


@dataclass(frozen=True)
class Steps:
    """In the order of the fields; names in the first two are those from before, in the others those from after."""

    deleted: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    added: tuple[pa.Field, ...] = ()
    widened: tuple[pa.Field, ...] = ()
    loosened: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    grown: tuple[tuple[str, tuple[pa.Field, ...]], ...] = ()  # structs, and the fields that come behind theirs

    def __bool__(self) -> bool:
        changed = self.deleted or self.renamed or self.added or self.widened or self.loosened or self.required
        return bool(changed or self.grown)


def steps(
    held: Sequence[Held],
    after: TableSchema,
    on_drop: OnDrop,
    *,
    types: TypeMap,
    past: bool = False,
    unkept: Collection[int] = (),
) -> Steps:
    """Return the steps that bring the table's columns to `after`, whose columns are all numbered.

    A column whose type is another one and no wider is replaced by a new one of its name: right only where all rows are
    replaced too. Where rows stay (`past`), it stays as well, under another name. Columns whose numbers are `unkept` go,
    whatever `on_drop` says. `types`: the destination's map, which says what can be widened.
    """
    wanted = arrow_schema(after)
    numbers = {column.number: wanted.field(place) for place, column in enumerate(after.columns)}
    followed = {one.number: one for one in held if one.number is not None}
    stays = {
        number: one
        for number, one in followed.items()
        if number in numbers and one.type is not None and _follows(one.type, numbers[number].type, types, past)
    }
    gone = [one for number, one in followed.items() if number not in stays]
    replaced = {one.name for one in gone if one.number in numbers}
    leaves = replaced | {one.name for one in gone if one.number in unkept}
    deleted = [one.name for one in gone if not past and (on_drop == "drop" or one.name in leaves)]
    renamed = {one.name: numbers[number].name for number, one in stays.items() if one.name != numbers[number].name}
    left = [one for one in held if one.name not in deleted and one not in stays.values()]
    coming = {name.lower() for name in wanted.names}  # case does not tell names apart: Spark ignores it
    taken = {*coming, *(one.name.lower() for one in left)}
    for one in left:
        if one.name.lower() in coming or (on_drop == "rename" and one in gone):
            renamed[one.name] = _free(one.name, taken)
            taken.add(renamed[one.name].lower())
    now = {number: numbers[number] for number in stays}
    return Steps(
        tuple(deleted),
        tuple(renamed.items()),
        tuple(field for number, field in numbers.items() if number not in stays),
        tuple(
            field
            for number, field in now.items()
            if stays[number].type != field.type and not _grows(stays[number].type, field.type)
        ),
        tuple(
            [field.name for number, field in now.items() if stays[number].required and field.nullable]
            + [renamed.get(one.name, one.name) for one in left if one.required]
        ),
        tuple(field.name for number, field in now.items() if not stays[number].required and not field.nullable),
        tuple(
            (field.name, tuple(field.type)[held_type.num_fields :])
            for number, field in now.items()
            for held_type in [stays[number].type]
            if past and held_type is not None and _grows(held_type, field.type)
        ),
    )


def unkept(held: Iterable[int], schema: TableSchema, kept: TableSchema) -> set[int]:
    """Return, by number, a table's columns that its rule leaves out of `schema`, or no longer sets."""
    left = set(held) - {column.number for column in kept.columns}
    source = {column.number for column in schema.columns}
    return {number for number in left if number in source or number <= FIRST_CONSTANT}


def numbered(schema: TableSchema) -> TableSchema:
    """Give a number to every column, where the source gave none."""
    if all(column.number for column in schema.columns):
        return schema
    return resolve(schema, schema)


def _follows(held: pa.DataType, wanted: pa.DataType, types: TypeMap, past: bool) -> bool:
    return bool(held == wanted) or types.widens(held, wanted) or (past and _grows(held, wanted))


def _grows(held: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a struct gets more fields behind those that it has."""
    if not (pa.types.is_struct(held) and pa.types.is_struct(wanted)) or held.num_fields >= wanted.num_fields:
        return False
    return all(known.name == now.name and known.type == now.type for known, now in zip(held, wanted, strict=False))


def _free(name: str, taken: set[str]) -> str:
    return next(free for number in count(1) if (free := f"{name}_dropped_{number}").lower() not in taken)
