"""History mode: what became of each key at each moment of the batch. Raw changes in, NetEffect with Steps out.

The moment of a change is its transaction's commit time, but never before that of an earlier transaction: a source may
take the time before it takes the place in its log, and clocks are set back. So moments do not decrease in stream
order, and several changes of a key at one moment are one step: its last. Whether a step opens a version is for
`versions.py` to say, which knows the version that is open. Rows are decoded and completed as in `clone.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from penstock.decode.reader import Places
from penstock.decode.rescue import Rescued
from penstock.errors import KeyRequired
from penstock.fold.batch import Batch
from penstock.fold.clone import Upserts, check_key, complete, require_one_key
from penstock.fold.events import NOT_MOVED, Events, events_of
from penstock.fold.net_effect import NO_ROW, NetEffect, Steps
from penstock.model.change import TRUNCATE, RawChanges
from penstock.model.position import Position
from penstock.model.table import TableSchema


def require_key(schema: TableSchema) -> None:
    if not schema.key:
        raise KeyRequired(
            f"table {schema.table}: it has no key, and a history needs one",
            "Give it a primary key, and it is copied by itself; or follow it in mode append or events",
        )


def fold_history(
    changes: Iterable[RawChanges],
    *,
    position: Position,
    until: Position | None = None,
    since: int = 0,
    bucket: int = 0,
    buckets: int = 1,
    schema: TableSchema | None = None,
    strict: bool = False,
) -> NetEffect:
    """Fold as `fold_clone` does, under its conditions, but moment by moment. `since` is the last moment before."""
    batch = Batch.of(changes, position=position, until=until, schema=schema)
    schema = batch.schema
    require_key(schema)
    require_one_key(schema, batch.changes)
    sources, ranks = batch.readers, batch.ranks
    check_key(sources)
    moments = _moments(batch.changes, ranks, since)
    rows = [np.flatnonzero(reader.op != TRUNCATE) for reader in sources]
    places = [rank[chosen] for rank, chosen in zip(ranks, rows, strict=True)]
    events = events_of(sources, rows, places, bucket, buckets)
    truncates = [
        (int(ranks[number][row]), number, int(row))
        for number, reader in enumerate(sources)
        for row in np.flatnonzero(reader.op == TRUNCATE)
    ]
    if truncates:
        events = _with_truncates(events, ranks, sorted(truncates))
    steps, made_by = _steps(events, moments, len(sources))
    if truncates:
        _, number, row = min(truncates)
        steps = replace(steps, truncated_at=int(moments[number][row]))
    ends = np.searchsorted(events.source[made_by], np.arange(1, len(sources)))
    upserts = Upserts(schema, sources, np.split(events.row[made_by], ends), None if strict else Rescued())
    fetches = complete(upserts, events, made_by, sources, truncated=False)
    rescued, rescues = upserts.rescued_cells()
    return NetEffect(
        truncated=False,
        upserts=upserts.table(),
        upsert_keys=events.keys.take(pa.array(events.key[made_by])),
        touched_keys=events.keys,
        fetches=fetches,
        changes=events.changes + (len(truncates) if bucket == 0 else 0),
        last_commit_time=batch.last_commit_time,
        steps=replace(steps, bucket=bucket, buckets=buckets),
        rescued=rescued,
        rescues=rescues,
    )


def _moments(counted: Sequence[RawChanges], ranks: Sequence[Places], since: int) -> list[Places]:
    """Return for each row of each source: the latest commit time up to it, in stream order."""
    times = [np.asarray(one.batch.column("commit_time").cast(pa.int64())) for one in counted]
    in_order = np.empty(sum(map(len, times)), np.int64)
    for rank, time in zip(ranks, times, strict=True):
        in_order[rank] = time
    latest = np.maximum.accumulate(np.maximum(in_order, since))
    return [latest[rank] for rank in ranks]


def _with_truncates(events: Events, ranks: Sequence[Places], truncates: Sequence[tuple[int, int, int]]) -> Events:
    """With a deletion of every key of the batch at each truncate (its place, source and row)."""
    width = len(events.keys)
    order = np.array([ranks[source][row] for source, row in zip(events.source, events.row, strict=True)], np.int64)
    order = 2 * order + 1 - events.moved_away
    added = width * len(truncates)
    order = np.concatenate([order, np.repeat([2 * rank + 1 for rank, _, _ in truncates], width)])
    sort = np.argsort(order, kind="stable")
    return replace(
        events,
        key=np.concatenate([events.key, np.tile(np.arange(width), len(truncates))])[sort],
        source=np.concatenate([events.source, np.repeat([number for _, number, _ in truncates], width)])[sort],
        row=np.concatenate([events.row, np.repeat([row for _, _, row in truncates], width)])[sort],
        is_image=np.concatenate([events.is_image, np.zeros(added, np.bool_)])[sort],
        moved_from=np.concatenate([events.moved_from, np.full(added, NOT_MOVED)])[sort],
        moved_away=np.concatenate([events.moved_away, np.zeros(added, np.bool_)])[sort],
    )


def _steps(events: Events, moments: Sequence[Places], sources: int) -> tuple[Steps, Places]:
    """Return the last event of each key and moment; and those of them that are images, in the order of the upserts."""
    moment = np.empty(len(events.key), np.int64)
    for number in range(sources):
        here = events.source == number
        moment[here] = moments[number][events.row[here]]
    by_key = np.argsort(events.key, kind="stable")
    key, moment = events.key[by_key], moment[by_key]
    last = np.ones(len(by_key), np.bool_)
    last[:-1] = (key[1:] != key[:-1]) | (moment[1:] != moment[:-1])
    chosen = by_key[last]
    images = np.flatnonzero(events.is_image[chosen])
    images = images[np.lexsort((events.row[chosen[images]], events.source[chosen[images]]))]
    row = np.full(len(chosen), NO_ROW, np.int64)
    row[images] = np.arange(len(images))
    return Steps(key[last], moment[last], row), chosen[images]
