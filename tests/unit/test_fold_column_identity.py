"""Which column is which: exhaustively, over every history of a small table, and case by case."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from penstock.fold.column_identity import ALTERED, GONE, identify
from penstock.model.table import Column, TableId, TableSchema
from pgoutput_messages import TEXT

T = TableId("public", "t")


class Table:
    """A table's catalogue: columns by number, each with its name, or None once it is dropped."""

    def __init__(self, *names: str) -> None:
        self.columns: list[str | None] = list(names)
        self.stamp = 1

    def read(self) -> TableSchema:
        """As the catalogue shows it."""
        named = [(number, name) for number, name in enumerate(self.columns, 1) if name is not None]
        columns = tuple(Column(name, TEXT, number=number) for number, name in named)
        live = tuple(number for number, _ in named)
        return TableSchema(T, 7, columns, (), "full", 5, self.stamp, len(self.columns), live=live)

    def alter(self, choose: random.Random) -> None:
        """Rename, swap, drop or add a column, all of one type and of few names."""
        self.stamp += 1
        there = [index for index, name in enumerate(self.columns) if name is not None]
        free = [name for name in "abcd" if name not in self.columns]
        what = choose.choice(("rename", "swap", "drop", "add", "drop and add"))
        if what == "rename" and there and free:
            self.columns[choose.choice(there)] = choose.choice(free)
        elif what == "swap" and len(there) > 1:
            one, other = choose.sample(there, 2)
            self.columns[one], self.columns[other] = self.columns[other], self.columns[one]
        elif what == "drop" and there:
            self.columns[choose.choice(there)] = None
        elif what == "add" and free:
            self.columns.append(choose.choice(free))
        elif what == "drop and add" and there:
            index = choose.choice(there)
            self.columns.append(self.columns[index])
            self.columns[index] = None


def recorded(message: TableSchema, catalogue: TableSchema) -> TableSchema:
    """As capture records a version: the message's columns, with the catalogue as it was read later."""
    numbers = {column.name: column.number for column in catalogue.columns}
    names = [column.name for column in message.columns]
    if [column.name for column in catalogue.columns if column.name in names] == names:
        columns = tuple(replace(column, number=numbers[column.name]) for column in message.columns)
        return replace(catalogue, columns=columns)
    return replace(catalogue, columns=tuple(replace(one, number=0) for one in message.columns), guessed=True)


def numbers(schema: TableSchema) -> list[int]:
    return [column.number for column in schema.columns]


def test_what_is_certain_is_right_in_every_history() -> None:
    """Tables are altered at random, with the catalogue read late; a structure that is followed is the true one."""
    certain = doubtful = 0
    for seed in range(6_000):
        choose = random.Random(seed)
        table = Table(*"abc"[: choose.randint(1, 3)])
        states = [table.read()]
        for _ in range(choose.randint(1, 5)):
            table.alter(choose)
            states.append(table.read())
        followed, read_at = states[0], 0
        for place in range(1, len(states)):
            if choose.random() < 0.4:
                continue  # no row of the table came under this structure
            read_at = max(place, read_at, choose.randrange(place, len(states)))
            found = identify(followed, recorded(states[place], states[read_at]))
            if found.doubt:
                doubtful += 1
                break  # copied again
            certain += 1
            assert numbers(found.schema) == numbers(states[place]), (seed, place, read_at)
            followed = found.schema
    assert certain > 4_000
    assert doubtful > 500


def schema(*columns: tuple[int, str], **facts: Any) -> TableSchema:
    described = tuple(Column(name, TEXT, number=number) for number, name in columns)
    given = tuple(number for number, _ in columns)
    return TableSchema(T, 7, described, (), "full", **{"storage": 5, "stamp": 1, "numbered": 3, "live": given, **facts})


BASE = schema((1, "id"), (2, "a"), (3, "b"))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (schema((1, "id"), (2, "b"), (3, "a"), stamp=2), [1, 2, 3]),
        (schema((0, "id"), (0, "b"), (0, "a"), stamp=3, live=(1, 2, 3), guessed=True), [1, 2, 3]),
        (schema((1, "id"), (2, "a"), (3, "b"), (4, "c"), stamp=2, numbered=4), [1, 2, 3, 4]),
        (schema((1, "id"), (2, "a"), (3, "b"), stamp=2, numbered=4, live=(1, 2, 3, 4)), [1, 2, 3]),
        (schema((1, "id"), (3, "b"), stamp=2), [1, 3]),
        (schema((0, "id"), (0, "a"), (0, "b"), stamp=2, live=(1, 3), guessed=True), [1, 2, 3]),
        (schema((1, "id"), (2, "a"), (4, "b"), stamp=2, numbered=4), ALTERED),
        (schema((1, "id"), (2, "a"), (4, "b"), stamp=2, numbered=4, exact=True), [1, 2, 4]),
        (schema((0, "id"), (0, "a"), (0, "b"), stamp=2, numbered=4, live=(1, 3, 4), guessed=True), ALTERED),
        (schema((1, "id"), (2, "a"), (3, "b"), guessed=True, stamp=0, numbered=0, live=()), GONE),
        (schema((0, "id"), (0, "x"), guessed=True, live=(1, 2, 3)), ALTERED),
        (schema((1, "id"), (2, "a"), (3, "b")), [1, 2, 3]),
    ],
    ids=[
        *("swapped", "swapped, and swapped back since", "added", "added since", "dropped", "dropped since"),
        *("dropped and added", "dropped and added, told", "dropped and added since", "gone", "contradiction", "same"),
    ],
)
def test_columns_are_known_by_their_places_or_not_at_all(given: TableSchema, expected: list[int] | str) -> None:
    found = identify(BASE, given)
    assert (found.doubt or numbers(found.schema)) == expected


def test_a_column_list_stays_with_its_columns() -> None:
    base = schema((1, "id"), (3, "b"), live=(1, 2, 3))
    renamed = schema((0, "id"), (0, "x"), stamp=2, live=(1, 2, 3), guessed=True)
    assert numbers(identify(base, renamed).schema) == [1, 3]
    more = schema((1, "id"), (3, "b"), stamp=2, numbered=4, live=(1, 2, 3, 4))
    assert (identify(base, more).schema.numbered, identify(base, more).doubt) == (3, "")


def test_what_is_known_of_a_state_in_between_is_what_was_known_before_it() -> None:
    """The catalogue that was read is a later one: its stamp must not hide what happened since."""
    between = schema((1, "id"), (2, "a"), (3, "b"), stamp=2, numbered=4, live=(1, 2, 3, 4), storage=6)
    found = identify(BASE, between).schema
    assert (found.stamp, found.storage, found.numbered, found.live) == (1, 5, 3, (1, 2, 3))


def test_a_structure_from_before_live_columns_were_recorded() -> None:
    assert not identify(replace(BASE, live=()), schema((1, "id"), (2, "b"), (3, "a"), stamp=2)).doubt
    narrow = replace(BASE, columns=BASE.columns[:2], live=())
    assert identify(narrow, schema((1, "id"), (2, "x"), stamp=2, live=(1, 2))).doubt == ALTERED
