"""Columns that have no numbers of their own: which is which after a statement, and when nobody can say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.decode.mysql.types import DOUBLE, ENUM, FLOAT, LONG, LONGLONG, NEWDECIMAL, STRING, VARCHAR, column_type
from penstock.fold.evolution import follow
from penstock.fold.named_columns import renumbered
from penstock.model.column_change import ColumnChange
from penstock.model.table import Column, ColumnType, TableId, TableSchema
from penstock.model.type_map import WIDEST
from penstock.source.mysql.catalogue import FoundColumn, schema_of

INT, BIG = column_type(LONG, -1), column_type(LONGLONG, -1)
TEXT, WIDE = (column_type(VARCHAR, size, charset="utf8mb4") for size in (40, 400))
TABLE = TableId("shop", "t")


def table(*columns: tuple[str, ColumnType] | tuple[str, ColumnType, bool], name: TableId = TABLE) -> TableSchema:
    found = [FoundColumn(one[0], one[1], one[2] if len(one) > 2 else one[0] != "id") for one in columns]
    return schema_of(name, found, ["id"])


def after(schema: TableSchema, *changes: ColumnChange) -> TableSchema:
    return replace(schema, altered=changes)


BASE = table(("id", INT), ("a", INT), ("b", TEXT))
NUMBERS = {column.name: column.number for column in BASE.columns}


@pytest.mark.parametrize(
    ("changes", "made", "kept"),
    [
        ([ColumnChange("", "c")], [("id", INT), ("a", INT), ("b", TEXT), ("c", INT)], {"a": "a", "b": "b"}),
        ([ColumnChange("A", "")], [("id", INT), ("b", TEXT)], {"b": "b"}),
        ([ColumnChange("a", "x", "")], [("x", INT), ("id", INT), ("b", TEXT)], {"x": "a", "b": "b"}),
        (
            [ColumnChange("a", "b"), ColumnChange("b", "a")],
            [("id", INT), ("b", INT), ("a", TEXT)],
            {"a": "b", "b": "a"},
        ),
        ([ColumnChange("b", "b")], [("id", INT), ("a", INT), ("b", WIDE)], {"a": "a", "b": "b"}),
        ([ColumnChange("z", "", None, optional=True)], [("id", INT), ("a", INT), ("b", TEXT)], {"a": "a", "b": "b"}),
        ([ColumnChange("a", ""), ColumnChange("", "a")], [("id", INT), ("b", TEXT), ("a", INT)], {"b": "b"}),
    ],
)
def test_a_statement_that_is_followed_keeps_columns_and_copies_nothing(
    changes: list[ColumnChange], made: list[tuple[str, ColumnType]], kept: dict[str, str]
) -> None:
    now = table(*made)
    followed = follow(BASE, [after(now, *changes), now], WIDEST)
    assert followed.resync == ""
    assert not followed.schema.altered
    assert followed.schema.relation_id == now.relation_id
    numbers = {column.name: column.number for column in followed.schema.columns}
    assert {name: numbers[name] for name in kept} == {name: NUMBERS[old] for name, old in kept.items()}
    fresh = {number for name, number in numbers.items() if name not in kept and name != "id"}
    assert not fresh & set(NUMBERS.values())
    again = renumbered(followed.schema, now)  # as a copy of it would be
    assert [column.number for column in again.columns] == list(numbers.values())


@pytest.mark.parametrize(
    ("changes", "made"),
    [
        ([], [("id", INT), ("a", INT), ("b", TEXT), ("c", INT)]),  # no statement says how
        ([ColumnChange("", "c")], [("id", INT), ("a", INT), ("b", TEXT)]),  # the catalogue has moved on
        ([ColumnChange("", "c")], [("id", INT), ("a", INT), ("b", TEXT), ("c", INT, False)]),
        ([ColumnChange("z", "c")], [("id", INT), ("c", INT), ("b", TEXT)]),
        ([ColumnChange("a", "")], [("id", INT), ("b", WIDE), ("c", INT)]),
        ([ColumnChange("a", "a")], [("id", INT), ("a", column_type(LONG, -1, unsigned=True)), ("b", TEXT)]),
        ([ColumnChange("b", "b")], [("id", INT), ("a", INT), ("b", TEXT, False)]),
        ([ColumnChange("b", "a")], [("id", INT), ("a", INT), ("a", TEXT)]),
        ([ColumnChange("", "c", "z")], [("id", INT), ("a", INT), ("b", TEXT), ("c", INT)]),
    ],
)
def test_what_is_not_certain_is_copied(
    changes: list[ColumnChange], made: list[tuple[str, ColumnType] | tuple[str, ColumnType, bool]]
) -> None:
    now = table(*made)
    assert follow(BASE, [after(now, *changes)] if changes else [now], WIDEST).resync


def test_tables_of_one_structure_are_not_one_table() -> None:
    twin = table(("id", INT), ("a", INT), ("b", TEXT), name=TableId("shop", "twin"))
    assert twin.relation_id != BASE.relation_id
    assert [column.number for column in twin.columns] == list(NUMBERS.values())


@pytest.mark.parametrize(
    ("old", "new", "keeps"),
    [
        (INT, BIG, True),
        (BIG, INT, False),
        (INT, column_type(LONGLONG, -1, unsigned=True), False),
        (TEXT, WIDE, True),
        (WIDE, TEXT, False),
        (TEXT, column_type(VARCHAR, 400, charset="latin1"), False),
        (column_type(STRING, 4, charset="binary"), column_type(STRING, 8, charset="binary"), False),
        (column_type(STRING, 4, charset="utf8mb4"), column_type(STRING, 8, charset="utf8mb4"), True),
        (column_type(NEWDECIMAL, 8 << 8 | 2), column_type(NEWDECIMAL, 12 << 8 | 2), True),
        (column_type(NEWDECIMAL, 8 << 8 | 2), column_type(NEWDECIMAL, 12 << 8 | 7), False),
        (column_type(FLOAT, -1), column_type(DOUBLE, -1), False),
        (
            column_type(ENUM, 1, charset="utf8mb4", labels=("a", "b")),
            column_type(ENUM, 1, charset="utf8mb4", labels=("a", "b", "c")),
            True,
        ),
        (
            column_type(ENUM, 1, charset="utf8mb4", labels=("a", "b")),
            column_type(ENUM, 1, charset="utf8mb4", labels=("b", "a")),
            False,
        ),
    ],
)
def test_types_that_leave_values_as_they_are(old: ColumnType, new: ColumnType, keeps: bool) -> None:
    before, now = (table(("id", INT), ("v", one)) for one in (old, new))
    followed = follow(before, [after(now, ColumnChange("v", "v"))], WIDEST)
    assert (followed.resync == "") is keeps or "changed from" in followed.resync
    assert isinstance(followed.schema.column("v"), Column)
