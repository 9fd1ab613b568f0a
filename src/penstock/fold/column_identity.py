"""Which column is which, from one version of a table to the next: known for certain, or in doubt.

A version names its columns in the order of their numbers, as the table was at its place in the stream. The catalogue
that was read with it is of that place or later. The structure that the destination follows is of an earlier place.
Nothing else is known, and names prove nothing: columns swap names, and a dropped one's name is given to a new one. But
numbers are given in order and never again, so between two readings columns are only added behind the others or dropped.
The number of columns in a message therefore often leaves one set of columns that they can be, and then each column's
place says which one it is, whatever its name. Where it leaves several, the table must be copied again. A source that
gives columns no numbers says what its statements do instead (`named_columns.py`).

Pure. `evolution.py` asks for every version that it follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from penstock.decode.dialect import dialect_of
from penstock.fold.named_columns import altered, renumbered
from penstock.model.table import TableSchema

GONE = "it was altered, and its catalogue entry could not be read: which column is which is not certain"
ALTERED = "it was altered, and which column is which is not certain: columns may have been dropped and added"


@dataclass(frozen=True)
class Identified:
    """`schema` is the version with every column numbered; `doubt` says why a column may be another one ("": none)."""

    schema: TableSchema
    doubt: str = ""


def identify(before: TableSchema, given: TableSchema) -> Identified:
    """Give the columns of `given`, which comes after `before` in the stream, their numbers."""
    if given.altered:
        return Identified(*altered(before, given))
    if not dialect_of(given).numbers_columns:
        return Identified(renumbered(before, given))
    by_name = resolve(before, given)
    read = given.stamp and given.numbered
    if before.relation_id != given.relation_id or given.exact or not (read or given.guessed):
        return Identified(by_name)
    if not read:
        return Identified(by_name, GONE)
    if given.stamp == before.stamp:
        return Identified(by_name, ALTERED if given.guessed else "")
    possible = _possible(before, given)
    if len(possible) != 1:
        return Identified(by_name, ALTERED)
    (numbers,) = possible
    if not given.guessed and tuple(column.number for column in given.columns) != numbers:
        return Identified(by_name, ALTERED)
    numbered = max(before.numbered, *numbers, 0)
    if not given.guessed and set(numbers) == _published(before, given) and numbered == given.numbered:
        return Identified(by_name)  # the same columns at that place and when the catalogue was read: none came or went
    columns = tuple(replace(column, number=number) for column, number in zip(given.columns, numbers, strict=True))
    live = numbers if _is_whole(before) else before.live
    return Identified(
        replace(
            given,
            columns=columns,
            storage=before.storage,
            stamp=before.stamp,
            numbered=numbered,
            live=live,
        )
    )


def resolve(before: TableSchema, after: TableSchema) -> TableSchema:
    """Return `after` with every column numbered: by name where a number is not known.

    A name that is new gets a number below zero. What else is not known of a column is as before.
    """
    known = {column.name: column.number for column in before.columns}
    fresh = min([0, *known.values()])
    columns = []
    for column in after.columns:
        number = column.number or known.get(column.name, 0)
        if number == 0:
            fresh -= 1
            number = fresh
        columns.append(column if number == column.number else replace(column, number=number))
    return replace(
        after,
        columns=tuple(columns),
        storage=after.storage or before.storage,
        stamp=after.stamp or before.stamp,
        numbered=after.numbered or max([before.numbered, *(column.number for column in columns)]),
        live=after.live if after.numbered else before.live,
    )


def _possible(before: TableSchema, given: TableSchema) -> set[tuple[int, ...]]:
    """Return the sets of columns that the version can name; two of them when there are more."""
    found: set[tuple[int, ...]] = set()
    for numbers in _candidates(before, given):
        found.add(numbers)
        if len(found) > 1:
            break
    return found


def _candidates(before: TableSchema, given: TableSchema) -> Iterator[tuple[int, ...]]:
    """Yield every set of as many columns as the version has that may have been published between the two readings.

    A state in between has the columns up to some number `born`: of these, the ones that are there in both readings,
    and any of those that are dropped in the later one only."""
    earlier, later = _live(before), _live(given)
    if not before.numbered or not earlier or not later or given.numbered < before.numbered:
        return
    if later - earlier and min(later - earlier) <= before.numbered:
        return  # a column that was not among the others came back: one that is no longer generated
    published = earlier if _is_whole(before) else {column.number for column in before.columns}
    last = given.numbered if _is_whole(before) else before.numbered
    for born in range(before.numbered, last + 1):
        there = published | set(range(before.numbered + 1, born + 1))
        sure, perhaps = there & later, there - later
        missing = len(given.columns) - len(sure)
        if missing >= 0:
            for others in combinations(sorted(perhaps), missing):
                yield tuple(sorted({*sure, *others}))


def _published(before: TableSchema, given: TableSchema) -> set[int]:
    """Return the columns that are published by the later reading."""
    live = _live(given)
    return live if _is_whole(before) else live & {column.number for column in before.columns}


def _is_whole(before: TableSchema) -> bool:
    """Whether all columns are published, also those that come."""
    return {column.number for column in before.columns} == _live(before)


def _live(schema: TableSchema) -> set[int]:
    """Return the columns that the table had. A structure from before this was recorded has them if none was dropped."""
    numbers = {column.number for column in schema.columns if column.number > 0}
    return set(schema.live) or (numbers if len(numbers) == schema.numbered else set())
