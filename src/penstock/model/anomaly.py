"""Count anomalies: changes that do not match what the destination holds, by kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MOST_PLACES = 5  # that are kept
MOST_EXAMPLES = 10  # of a batch, that are logged

KINDS = {
    "insert": "inserts of a key that was there",
    "update": "updates of a key that was not there",
    "delete": "deletes of a key that was not there",
    "row": "removals of a row that was not there, in a table without a key",
}


@dataclass(frozen=True)
class AnomalyCount:
    """How many changes of a kind (of KINDS), and where the first few of them stand in the stream.

    `examples` are place and key of the first of one batch, for its log; they are not kept.
    """

    kind: str
    changes: int
    places: tuple[str, ...]
    examples: tuple[tuple[str, str], ...] = ()


def merged_anomalies(counts: Iterable[AnomalyCount]) -> tuple[AnomalyCount, ...]:
    """Merge counts to one per kind, by name; the first places are kept."""
    found: dict[str, AnomalyCount] = {}
    for one in counts:
        known = found.get(one.kind, AnomalyCount(one.kind, 0, ()))
        places = (*known.places, *one.places)[:MOST_PLACES]
        examples = (*known.examples, *one.examples)[:MOST_EXAMPLES]
        found[one.kind] = AnomalyCount(one.kind, known.changes + one.changes, places, examples)
    return tuple(found[kind] for kind in sorted(found))
