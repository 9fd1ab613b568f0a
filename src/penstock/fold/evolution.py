"""What happened to a table between two versions of its structure, and whether its rows can follow without a new copy.

Columns are told apart by their numbers, so that a rename is no drop and add. A change is **light** when the rows that
the destination holds are right under the new structure as they are, or with a column more (all NULL), renamed or gone.
Everything else needs the table copied again: `Followed.resync` then says why. So does a version of which it is not
certain which column is which (column_identity.py). docs/schema-changes.md has the whole table, and the reasons.

Pure. `clone.py` aligns decoded columns with it, destinations their columns, the runtime decides by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.decode.dialect import dialect_of
from penstock.fold.column_identity import identify, resolve
from penstock.model.table import Column, TableSchema
from penstock.model.type_map import TypeMap

NOT_FOLLOWED = "the table was made again, or altered by a statement after which rows may have other values"


@dataclass(frozen=True)
class Followed:
    """A table's versions, one after the other, with every column numbered.

    `schema` is the newest. `versions` has the given ones by their fingerprints. `changes` says in words what happened.
    `resync`: why the table must be copied again; "" when its rows follow. `misfit`: the type changes among the reasons
    that no widening explains.
    """

    schema: TableSchema
    versions: dict[str, TableSchema]
    changes: tuple[str, ...] = ()
    resync: str = ""
    misfit: str = ""
    guessed: bool = False


def follow(base: TableSchema, versions: Iterable[TableSchema], types: TypeMap) -> Followed:
    """From `base`, which the destination has, through `versions` in the order of the stream.

    `types` is the destination's map: it says which columns can be widened with their rows in place.
    """
    versions = list(versions)
    known = all(column.number for column in base.columns)
    current = base if known or not versions else resolve(versions[0], base)
    numbered: dict[str, TableSchema] = {}
    changes: list[str] = []
    why: list[str] = []
    misfits: list[str] = []
    guessed = False
    for version in versions:
        identified = identify(current, version)
        following = identified.schema
        if version.altered and not identified.doubt:
            current = replace(current, relation_id=following.relation_id)  # what a statement made of it
        numbered[version.fingerprint] = following
        seen = differences(current, following)
        changes += seen
        guessed |= version.guessed and bool(seen)
        heavy = [identified.doubt] if identified.doubt else _heavy(current, following, version, types)
        why += [one for one in heavy if one not in why]
        misfits += _misfits(current, following, types)
        current = following
    return Followed(current, numbered, tuple(changes), "; ".join(why), "; ".join(misfits), guessed)


def places(version: TableSchema, newest: TableSchema) -> list[int | None]:
    """Return for each column of `newest` where `version` has it; None where it has no such column."""
    if version is newest:
        return list(range(len(newest.columns)))
    at = {_label(column): index for index, column in enumerate(version.columns)}
    return [at.get(_label(column)) for column in newest.columns]


def identity_change(base: TableSchema, versions: Iterable[TableSchema]) -> str:
    """Return how the replica identity of a table without a key changed; "" when it did not.

    Before it was FULL, or since it no longer is, changes of rows may have gone unseen.
    """
    for version in versions:
        if not base.key and not version.key and version.by_row != base.by_row:
            return f"it has no key, and its replica identity changed from {base.identity} to {version.identity}"
    return ""


def key_numbers(schema: TableSchema) -> list[int | str]:
    return [_label(schema.column(name)) for name in schema.key]


def differences(before: TableSchema, after: TableSchema) -> list[str]:
    """Say in words what differs in `after`."""
    told: list[str] = []
    if before.table != after.table:
        told.append(f"table renamed from {before.table}")
    if before.relation_id != after.relation_id and dialect_of(after).numbers_columns:
        told.append("table dropped and created again")
    was, now = _by_label(before), _by_label(after)
    for label, column in was.items():
        if label not in now:
            told.append(f"column {column.name} dropped")
    for label, column in now.items():
        old = was.get(label)
        if old is None:
            shown = "" if column.filled is None else f", {column.filled!r} in older rows"
            told.append(f"column {column.name} added ({type_text(after, column)}{shown})")
            continue
        if old.name != column.name:
            told.append(f"column {old.name} renamed to {column.name}")
        if old.type != column.type:
            told.append(f"column {column.name} changed from {type_text(before, old)} to {type_text(after, column)}")
        if old.nullable != column.nullable:
            told.append(f"column {column.name} {'may be null' if column.nullable else 'is not null'}")
        if old.generated != column.generated:
            told.append(f"column {column.name} {'is generated' if column.generated else 'is no longer generated'}")
    if key_numbers(before) != key_numbers(after):
        told.append(f"key ({', '.join(before.key)}) changed to ({', '.join(after.key)})")
    if before.identity != after.identity:
        told.append(f"replica identity {before.identity} changed to {after.identity}")
    return told


def type_text(schema: TableSchema, column: Column) -> str:
    """Return the type as users write it, with their choice for it."""
    return dialect_of(schema).type_text(column.type)


def _heavy(before: TableSchema, after: TableSchema, given: TableSchema, types: TypeMap) -> list[str]:
    """Say why rows cannot follow. `given` is `after` as it was recorded, with what the catalogue said then."""
    if before.relation_id != after.relation_id:
        by_number = dialect_of(after).numbers_columns
        return ["the table was dropped and created again" if by_number else NOT_FOLLOWED]
    was, now = _by_label(before), _by_label(after)
    added = [column for label, column in now.items() if label not in was]
    retyped = [
        (was[label], column) for label, column in now.items() if label in was and _type_differs(was[label], column)
    ]
    why = [one for column in added if (one := _old_rows(column, before, given))]
    if key_numbers(before) != key_numbers(after):
        why.append(f"its key changed from ({', '.join(before.key)}) to ({', '.join(after.key)})")
    elif any(arrow_type(before, was[label]) != arrow_type(after, now[label]) for label in key_numbers(after)):
        why.append("a column of its key has another type")
    if _rewritten(before, given):
        why.append("its rows were written again, and their values may be others (ALTER TYPE, a computed default)")
    why += [
        f"column {new.name} changed from {type_text(before, old)} to {type_text(after, new)}"
        for old, new in retyped
        if _misfit(arrow_type(before, old), arrow_type(after, new), types)
    ]
    return why


def _old_rows(column: Column, before: TableSchema, given: TableSchema) -> str:
    """Say why rows from before an added column may show something else than NULL in it; "" when they do not."""
    if column.filled is not None:
        return f"older rows show {column.filled!r} in the new column {column.name}"
    if column.number < 0 or (given.guessed and column.number > before.numbered):
        return f"column {column.name} is new, and the catalogue had moved on: what older rows show is not known"
    if before.numbered and column.number <= before.numbered:
        return f"column {column.name} is published only now, and older rows have values in it"
    return ""


def _misfits(before: TableSchema, after: TableSchema, types: TypeMap) -> list[str]:
    was = _by_label(before)
    return [
        f"column {column.name} changed from {type_text(before, was[label])} to {type_text(after, column)}"
        for label, column in _by_label(after).items()
        if label in was and _misfit(arrow_type(before, was[label]), arrow_type(after, column), types)
    ]


def _rewritten(before: TableSchema, after: TableSchema) -> bool:
    """Other storage alone is VACUUM FULL, CLUSTER or TRUNCATE; with another definition of a column it may be more."""
    known = before.storage > 0 and after.storage > 0
    return known and before.storage != after.storage and before.stamp != after.stamp


def arrow_type(schema: TableSchema, column: Column) -> pa.DataType:
    return dialect_of(schema).arrow_type(column.type)


def _misfit(old: pa.DataType, new: pa.DataType, types: TypeMap) -> bool:
    return bool(old != new) and not types.widens(old, new)


def _type_differs(old: Column, new: Column) -> bool:
    return old.type != new.type


def _by_label(schema: TableSchema) -> dict[int | str, Column]:
    return {_label(column): column for column in schema.columns}


def _label(column: Column) -> int | str:
    """Return a column's number; its name where nobody knows the number."""
    return column.number or column.name
