"""A fold that goes on past messages which cannot be decoded, for tables whose order allows it: those of mode events.

A table that mirrors state must not: what the message would have done to its row is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from penstock.decode.sift import sift
from penstock.decode.undecodable import Undecodable
from penstock.model.change import RawChanges
from penstock.model.quarantine import RawMessage

Net = TypeVar("Net")


def fold_past(
    fold: Callable[[Sequence[RawChanges]], Net], changes: Iterable[RawChanges]
) -> tuple[Net, list[RawMessage]]:
    """What `fold` makes of the changes without those that cannot be decoded, and the latter, to be kept in quarantine.

    Batches in which all is well are looked at once.
    """
    given = list(changes)
    try:
        return fold(given), []
    except Undecodable:
        skipped: list[RawMessage] = []
        fit = []
        for one in given:
            good, bad = sift(one)
            fit.append(good)
            skipped += bad
        return fold(fit), skipped
