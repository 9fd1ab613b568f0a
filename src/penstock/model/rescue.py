"""Count rescued cells, those that did not fit their column, per column."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class RescueCount:
    """How many cells of a column were rescued; one of them as a sample, and where it came from."""

    column: str
    cells: int
    sample: str
    place: str


def merged(counts: Iterable[RescueCount]) -> tuple[RescueCount, ...]:
    """Merge counts to one per column, in the order in which columns first come; the newest samples are kept."""
    found: dict[str, RescueCount] = {}
    for one in counts:
        known = found.get(one.column)
        found[one.column] = one if known is None else replace(one, cells=known.cells + one.cells)
    return tuple(found.values())
