"""Find changes that do not suit what the destination holds: an insert whose key is there, an update of one that is not.

A delete counts as an update does. They are applied as the mode says; here they are only found, when the file asks for
it (`anomalies: count` or `log`). `has` says which keys have a row before the batch; from there every change says what
must be there before the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa

from penstock.decode.reader import Mask, RowReader
from penstock.fold.batch import Batch
from penstock.fold.events import events_of
from penstock.model.anomaly import MOST_EXAMPLES, MOST_PLACES, AnomalyCount
from penstock.model.change import DELETE, INSERT, TRUNCATE, RawChanges
from penstock.model.position import Position

MOST_KEY = 200  # characters of a key in a log line


def find_anomalies(
    changes: Iterable[RawChanges],
    has: Callable[[pa.Array], Mask],
    *,
    position: Position,
    until: Position | None = None,
    bucket: int = 0,
    buckets: int = 1,
    examples: bool = False,
) -> tuple[AnomalyCount, ...]:
    """Find anomalies among the changes that the fold takes, of a table with a key. `examples` also name keys."""
    batch = Batch.of(changes, position=position, until=until)
    if not batch.schema.key:
        return ()
    sources, ranks = batch.readers, batch.ranks
    rows = [np.flatnonzero(reader.op != TRUNCATE) for reader in sources]
    places = [rank[chosen] for rank, chosen in zip(ranks, rows, strict=True)]
    events = events_of(sources, rows, places, bucket, buckets)
    if len(events.key) == 0:
        return ()
    rank = np.empty(len(events.key), np.int64)
    op = np.empty(len(events.key), np.uint8)
    for number, reader in enumerate(sources):
        here = events.source == number
        rank[here], op[here] = ranks[number][events.row[here]], reader.op[events.row[here]]
    truncates = np.sort(np.concatenate([r[m.op == TRUNCATE] for m, r in zip(sources, ranks, strict=True)]))
    era = np.searchsorted(truncates, rank)  # how many truncates came before
    by_key = np.argsort(events.key, kind="stable")
    key, image = events.key[by_key], events.is_image[by_key]
    first = np.ones(len(key), np.bool_)
    first[1:] = (key[1:] != key[:-1]) | (era[by_key][1:] != era[by_key][:-1])
    there = np.concatenate([[False], image[:-1]])
    there[first] = has(events.keys)[key[first]] & (era[by_key][first] == 0)
    op, moved_in = op[by_key], events.moved_from[by_key] >= 0
    kinds = {
        "insert": (op == INSERT) & there,
        "update": (op != INSERT) & (op != DELETE) & ~there & ~moved_in,
        "delete": (op == DELETE) & ~there,
    }
    found = []
    for kind, mask in kinds.items():
        at = by_key[mask]
        if len(at):
            shown = at[np.argsort(rank[at])][: MOST_EXAMPLES if examples else MOST_PLACES]
            told = [(sources[events.source[event]], int(events.row[event])) for event in shown]
            order = tuple(reader.order(number) for reader, number in told)
            keys = [_key_text(reader, number) for reader, number in told] if examples else []
            found.append(AnomalyCount(kind, len(at), order[:MOST_PLACES], tuple(zip(order, keys, strict=False))))
    return tuple(found)


def _key_text(reader: RowReader, row: int) -> str:
    text = ", ".join(str(column[0].as_py()) for column in reader.keys(np.array([row], np.int64)))
    return text if len(text) <= MOST_KEY else text[:MOST_KEY] + "…"
