"""Comparison by buckets, rows and cells, with sides that are plain rows: all that differs is named, no more is read."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.verify import compare as comparing
from penstock.control.verify.compare import Comparison, Difference, bucket_count, compare
from penstock.model.row_digest import Cell, Figures, Row

Rows = Sequence[tuple[int, str]]


def md5(text: str) -> str:
    return hashlib.md5(text.encode()).hexdigest()


class PlainSide:
    """Rows of (id, name), of a table whose key is id, or that has none."""

    def __init__(self, rows: Rows, *, keyed: bool = True) -> None:
        self._rows = [
            Row(md5(str(one)) if keyed else md5(f"{one} {name}"), md5(f"{one} {name}"), (str(one),))
            for one, name in rows
        ]
        self._names = {md5(str(one)): name for one, name in rows}
        self.looked_at: list[int] = []
        self.told: list[str] = []

    def figures(self, buckets: int) -> dict[int, Figures]:
        found: dict[int, Figures] = {}
        for row in self._rows:
            count, total = found.get(_bucket(row, buckets), (0, 0))
            found[_bucket(row, buckets)] = (count + 1, total + int(row.digest[:15], 16))
        return found

    def rows(self, buckets: int, chosen: Sequence[int]) -> list[Row]:
        self.looked_at += chosen
        return [row for row in self._rows if _bucket(row, buckets) in chosen]

    def cells(self, keys: Sequence[str]) -> dict[str, dict[str, Cell]]:
        self.told += keys
        return {key: {"name": Cell(md5(self._names[key]), self._names[key])} for key in keys if key in self._names}


def _bucket(row: Row, buckets: int) -> int:
    return int(row.key[-4:], 16) % buckets


def compared(source: Rows, lake: Rows, *, keyed: bool = True, shown: int = 10) -> Comparison:
    sides = (PlainSide(source, keyed=keyed), PlainSide(lake, keyed=keyed))
    return compare(*sides, buckets=16, keyed=keyed, shown=shown)


def told(comparison: Comparison) -> list[tuple[str, str, int]]:
    return [(one.kind, one.key_text[0], one.times) for one in comparison.differences]


MANY = [(number, f"name {number}") for number in range(1000)]


def test_equal_sides_are_not_looked_at_row_by_row() -> None:
    source, lake = PlainSide(MANY), PlainSide(MANY[::-1])
    found = compare(source, lake, buckets=64, keyed=True, shown=10)
    assert (found.equal, found.source_rows, found.lake_rows) == (True, 1000, 1000)
    assert source.looked_at == lake.looked_at == []


def test_each_kind_of_difference_is_named_and_only_its_buckets_are_read() -> None:
    lake = [(one, "forged" if one == 17 else name) for one, name in MANY if one != 99] + [(5000, "x"), (7, "name 7")]
    source, side = PlainSide(MANY), PlainSide(lake)
    found = compare(source, side, buckets=256, keyed=True, shown=10)
    assert sorted(told(found)) == [
        ("differs", "17", 1),
        ("doubled", "7", 1),
        ("extra", "5000", 1),
        ("missing", "99", 1),
    ]
    (cells,) = [one.cells for one in found.differences if one.kind == "differs"]
    assert [(cell.column, cell.source, cell.lake) for cell in cells] == [("name", "name 17", "forged")]
    assert len(source.looked_at) <= 4


def test_cells_are_read_only_of_rows_that_are_shown() -> None:
    source, lake = PlainSide(MANY), PlainSide([(one, "forged") for one, _ in MANY])
    found = compare(source, lake, buckets=4, keyed=True, shown=3)
    assert len(found.differences) == 1000
    assert len(source.told) == 3
    assert sum(bool(one.cells) for one in found.differences) == 3


def test_without_a_key_rows_count_as_often_as_they_are_there() -> None:
    found = compared([(1, "a"), (1, "a"), (2, "b")], [(1, "a"), (2, "b"), (2, "b"), (2, "b"), (3, "c")], keyed=False)
    assert sorted(told(found)) == [("extra", "2", 2), ("extra", "3", 1), ("missing", "1", 1)]


def test_it_stops_when_there_are_too_many_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "MOST_DIFFERENCES", 50)
    monkeypatch.setattr(comparing, "ROWS_AT_ONCE", 100)
    found = compared(MANY, [])
    assert not found.complete
    assert 50 <= len(found.differences) < 1000
    assert compared(MANY[:10], []).complete


@given(
    st.dictionaries(st.integers(0, 30), st.sampled_from("ab"), max_size=20),
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from("ab")), max_size=20),
)
def test_differences_are_what_a_plain_look_finds(source: dict[int, str], lake: list[tuple[int, str]]) -> None:
    found = compared(list(source.items()), lake)
    held = {one: [name for other, name in lake if other == one] for one, _ in lake}
    expected = {
        one for one in source.keys() | held.keys() if held.get(one, []) != ([source[one]] if one in source else [])
    }
    assert {int(one.key_text[0]) for one in found.differences} == expected
    assert found.equal == (not expected)


def test_buckets_grow_with_the_table_up_to_what_the_hash_gives() -> None:
    assert bucket_count(0) == bucket_count(1500) == 1
    assert bucket_count(200_000) == 256
    assert bucket_count(10**10) == 65536


def test_a_difference_is_counted_as_often_as_its_rows() -> None:
    comparison = Comparison(0, 3, 1, 1, [Difference("extra", "k", ("1",), 3)])
    assert comparison.count("extra") == 3
