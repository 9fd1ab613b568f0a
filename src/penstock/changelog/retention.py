"""Decide which segments may be removed. Pure: the chain and the clock come in, a number comes out; log.py removes.

The oldest go first. The newest never goes: it says where the log ends. A segment stays while a healthy table needs
it. For an Errored or copying table it stays while there is room and it is not too old; for replay, while there is room.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.model.position import Position

LEAST_HEADROOM, MOST_HEADROOM = 0.1, 0.5  # of max_bytes, kept free for capture, which stops at max_bytes


class Kept(Protocol):
    """What retention must know of a segment: `size` with its parts in bytes, `written_at` in seconds since 1970."""

    @property
    def end(self) -> Position: ...
    @property
    def size(self) -> int: ...
    @property
    def written_at(self) -> float: ...


def removable(
    chain: Sequence[Kept],
    *,
    needed_from: Position,
    held_from: Position,
    replay: float,
    max_bytes: int,
    max_age: float,
    now: float,
) -> int:
    """Return how many of the oldest segments may be removed.

    `needed_from`: what healthy tables still need, never removed. `held_from`: what other tables need.
    """
    remaining = sum(name.size for name in chain)
    two_more = 2 * max((name.size for name in chain), default=0)
    headroom = min(max_bytes * MOST_HEADROOM, max(max_bytes * LEAST_HEADROOM, two_more))
    count = 0
    for name in chain[:-1]:
        if name.end > needed_from:
            break
        age = now - name.written_at
        pressed = remaining > max_bytes - headroom
        kept_to_replay = age < replay
        kept_for_others = name.end > held_from and age < max_age
        if (kept_to_replay or kept_for_others) and not pressed:
            break
        remaining -= name.size
        count += 1
    return count
