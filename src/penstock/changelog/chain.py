"""Order segments by their names: which of them make the chain, which are leftovers, and where it has a hole.

Pure: names come in, names come out. `log.py` lists the folder. Of segments with the same start the one with the largest
end counts, since an idle position replaces its predecessor by writing a longer empty segment first; those inside
another's range are leftovers.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.changelog.segment import parse_segment_name, segment_name
from penstock.errors import LogDamaged
from penstock.model.position import Position, position_text, stored_text

START_DIGITS, NAME_LENGTH = 16, len(segment_name(0, 0, 0))

WAY_OUT = (
    "Put the missing or damaged files back from a copy of the log; without one, start over with `penstock reset`, "
    "after which every table is copied again"
)


@dataclass(frozen=True, order=True)
class SegmentName:
    """A segment as a listing shows it. `size` and `written_at` (seconds since 1970) are the file's."""

    start: Position
    end: Position
    crc: int
    text: str
    size: int = field(compare=False)
    written_at: float = field(compare=False)


def chain_of(texts: list[str]) -> tuple[list[str], list[str], str | None]:
    """Return the chain, the leftovers inside other segments' ranges, and what is wrong, if anything."""
    chain: list[str] = []
    leftovers: list[str] = []
    reached: Position | None = None
    for text, (start, end, _) in sorted(
        ((text, parsed(text)) for text in texts), key=lambda item: (item[1][0], -item[1][1], item[0])
    ):
        if reached is None or start == reached:
            chain.append(text)
            reached = end
        elif start > reached:
            missing = f"{position_text(reached)} to {position_text(start)} is missing"
            return chain, leftovers, f"{missing}, between {chain[-1]} and {text}"
        elif end > reached:
            return chain, leftovers, f"{text} overlaps {chain[-1]}: two captures have written to it"
        else:
            leftovers.append(text)
    return chain, leftovers, None


def first_that_may_hold(position: Position, texts: list[str]) -> int:
    """Return the index of the first of the sorted names that share the last start at or before the position."""
    following = bisect.bisect_left(texts, stored_text(position + 1))
    if following == 0:
        return 0
    return bisect.bisect_left(texts, texts[following - 1][:START_DIGITS])


def in_order(found: Iterable[str]) -> list[str]:
    """Return likely segment names in stream order. A log of weeks has a great many."""
    return sorted(text for text in found if len(text) == NAME_LENGTH)


def is_segment(text: str) -> bool:
    return parse_segment_name(text) is not None


def parsed(text: str) -> tuple[Position, Position, int]:
    """Return start, end and checksum."""
    found = parse_segment_name(text)
    if found is None:
        raise LogDamaged(f"{text} is not the name of a segment", WAY_OUT)
    return found
