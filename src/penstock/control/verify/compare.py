"""Find where two sides of a table differ: figures by bucket, then rows of differing buckets, then cells.

A side is the source under a snapshot or the lake at a snapshot (model/row_digest.py); each computes where it lies. Two
sides with the same count and checksum in every bucket are equal. Otherwise only the other buckets are compared row by
row, as many rows at a time as fit into memory, and of the rows that differ only those that are shown are read cell by
cell.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

from penstock.model.row_digest import Cell, Figures, Row, Side

MOST_DIFFERENCES = 100_000
ROWS_AT_ONCE = 200_000
ROWS_A_BUCKET = 1_000
MOST_BUCKETS = 1 << 16  # the bucket comes from four hexadecimal digits

Kind = Literal["missing", "extra", "differs", "doubled"]


@dataclass(frozen=True)
class CellDifference:
    column: str
    source: str | None
    lake: str | None


@dataclass(frozen=True)
class Difference:
    """One key, or one row of a table without a key, which may be there `times` more or less often."""

    kind: Kind
    key: str
    key_text: tuple[str, ...]
    times: int = 1
    cells: tuple[CellDifference, ...] = ()


@dataclass
class Comparison:
    """`differences` are all of them unless `complete` is False: then there are more than MOST_DIFFERENCES."""

    source_rows: int
    lake_rows: int
    buckets: int
    differing_buckets: int = 0
    differences: list[Difference] = field(default_factory=list)
    complete: bool = True

    @property
    def equal(self) -> bool:
        return self.differing_buckets == 0

    def count(self, kind: Kind) -> int:
        return sum(difference.times for difference in self.differences if difference.kind == kind)


def bucket_count(rows: int) -> int:
    """Return a power of two that gives buckets of about ROWS_A_BUCKET rows."""
    wanted = max(1, rows // ROWS_A_BUCKET)
    return min(MOST_BUCKETS, 1 << math.ceil(math.log2(wanted))) if wanted > 1 else 1


def compare(source: Side, lake: Side, *, buckets: int, keyed: bool, shown: int) -> Comparison:
    """Compare two sides. `shown` is the number of differing rows whose cells are reported."""
    with ThreadPoolExecutor(2, thread_name_prefix="compare") as both:
        there, here = both.map(lambda side: side.figures(buckets), (source, lake))
        found = Comparison(_total(there), _total(here), buckets)
        differing = sorted(number for number in there.keys() | here.keys() if there.get(number) != here.get(number))
        found.differing_buckets = len(differing)
        for group in _groups(differing, there, here):
            if len(found.differences) >= MOST_DIFFERENCES:
                found.complete = False
                break
            theirs, ours = both.map(lambda side, group=group: side.rows(buckets, group), (source, lake))
            found.differences += by_key(theirs, ours) if keyed else by_row(theirs, ours)
        told = [one for one in found.differences if one.kind != "doubled"][:shown]
        if told and keyed:
            keys = [one.key for one in told]
            cells = list(both.map(lambda side: side.cells(keys), (source, lake)))
            detailed = {one.key: _with_cells(one, *cells) for one in told}
            found.differences = [detailed.get(one.key, one) for one in found.differences]
    return found


def by_key(source: Sequence[Row], lake: Sequence[Row]) -> list[Difference]:
    """Return the differences key by key. The source has a key once; in the lake somebody may have doubled it."""
    theirs = {row.key: row for row in source}
    times = Counter(row.key for row in lake)
    ours = {row.key: row for row in lake}
    found = [Difference("missing", key, row.key_text) for key, row in theirs.items() if key not in ours]
    for key, row in ours.items():
        if key not in theirs:
            found.append(Difference("extra", key, row.key_text, times[key]))
        elif times[key] > 1:
            found.append(Difference("doubled", key, row.key_text, times[key] - 1))
        elif row.digest != theirs[key].digest:
            found.append(Difference("differs", key, row.key_text))
    return sorted(found, key=lambda one: one.key_text)


def by_row(source: Sequence[Row], lake: Sequence[Row]) -> list[Difference]:
    """Return the rows that one side has more often than the other."""
    texts = {row.digest: row.key_text for row in (*source, *lake)}
    more = Counter(row.digest for row in lake)
    more.subtract(Counter(row.digest for row in source))
    return [
        Difference("extra" if times > 0 else "missing", digest, texts[digest], abs(times))
        for digest, times in sorted(more.items(), key=lambda item: texts[item[0]])
        if times
    ]


def _total(figures: Mapping[int, Figures]) -> int:
    return sum(rows for rows, _ in figures.values())


def _groups(differing: Sequence[int], there: Mapping[int, Figures], here: Mapping[int, Figures]) -> Iterator[list[int]]:
    """Yield buckets that together have no more than ROWS_AT_ONCE rows, but for a bucket that alone has more."""
    group: list[int] = []
    rows = 0
    for number in differing:
        own = max(there.get(number, (0, 0))[0], here.get(number, (0, 0))[0])
        if group and rows + own > ROWS_AT_ONCE:
            yield group
            group, rows = [], 0
        group.append(number)
        rows += own
    if group:
        yield group


def _with_cells(
    one: Difference, source: Mapping[str, Mapping[str, Cell]], lake: Mapping[str, Mapping[str, Cell]]
) -> Difference:
    theirs, ours = source.get(one.key), lake.get(one.key)
    if one.kind != "differs" or theirs is None or ours is None:
        return one
    cells = tuple(
        CellDifference(name, cell.shown, ours[name].shown)
        for name, cell in theirs.items()
        if cell.digest != ours[name].digest
    )
    return Difference(one.kind, one.key, one.key_text, one.times, cells)
