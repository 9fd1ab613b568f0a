"""A bucket's share of a large batch, slice by slice: what a task holds of a huge transaction is its own part of it, and
one slice besides, never all of it.

The fold takes from any changes what is its bucket's; given the share instead of everything it comes to the same, but
for one figure: of changes before a truncate, the first bucket counts its own alone. A history is told by its moments,
so there it holds for changes of one moment. Called by the runtime's tasks, before they fold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from penstock.decode.columns import key_columns
from penstock.decode.messages import Mask, Messages
from penstock.fold.clone import within
from penstock.fold.keys import bucket_of, encode_keys
from penstock.model.change import TRUNCATE, UPDATE, RawChanges
from penstock.model.position import Position


def own_share(
    changes: Iterable[RawChanges], *, position: Position, until: Position | None, bucket: int, buckets: int
) -> Iterator[RawChanges]:
    """Every slice with those of its rows alone, of position <= commit_lsn < until, that touch a key of the bucket. Of a
    table without a key each bucket has some, so the fold must not share them out again."""
    for one in changes:
        batch = within(one.batch, position, until)
        if batch.num_rows:
            batch = batch.filter(pa.array(_own(RawChanges(one.schema, batch), bucket, buckets)))
        yield RawChanges(one.schema, batch)


def own_events(changes: RawChanges, *, bucket: int, buckets: int) -> RawChanges:
    """Of a slice whose rows become events, those of the bucket; the fold must not share them out again."""
    count = changes.batch.num_rows
    low, high = count * bucket // buckets, count * (bucket + 1) // buckets
    return RawChanges(changes.schema, changes.batch.take(pa.array(np.arange(low, high))))


def _own(changes: RawChanges, bucket: int, buckets: int) -> Mask:
    """A truncate is every bucket's."""
    own: Mask = np.arange(changes.batch.num_rows) * buckets // changes.batch.num_rows == bucket
    messages = Messages(changes)
    own |= messages.op == TRUNCATE
    if not changes.schema.key:
        return own
    rows = np.flatnonzero(messages.op != TRUNCATE)
    own[rows] = bucket_of(encode_keys(key_columns(messages, messages.keys(rows))), buckets) == bucket
    with_old = np.flatnonzero((messages.op == UPDATE) & (messages.old >= 0))
    own[with_old] |= bucket_of(encode_keys(key_columns(messages, messages.old_keys(with_old))), buckets) == bucket
    return own
