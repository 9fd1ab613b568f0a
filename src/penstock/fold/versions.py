"""From steps to versions (SCD type 2): which rows of a table of versions end, and which are written. Pure Arrow.

A version is open until something else is known of its key. A step that leaves the key's row as it is opens nothing. A
step that changes it closes the open version at the step's moment and opens the next from it; one that ends the row
closes it as deleted. A key's first version opens at BEGINNING, or, where the period's `first` is `commit` and the row
was not found by a first copy, at its own moment; a key that was deleted before always opens at its own moment.
A version that would have lasted no time is not kept, unless it ended with the row's deletion: that must be recorded.
What was rescued of a row (the column RESCUED, where there is one) is part of its state, and compared like the rest.

Called by destinations, which know the open versions (`Held`) and write what comes out of it (`Written`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.rescue import RESCUED, RESCUED_TYPE
from penstock.fold.layout import BEGINNING, MOMENT, OPEN, Layout
from penstock.fold.net_effect import NO_ROW, Steps

Places = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Held:
    """What a table holds of the touched keys before the batch.

    `rows` are open versions, without their period; key k's is row `row[k]`, NO_ROW if it has none, and it is valid from
    `begins[row[k]]`. Behind the columns that the source has they may have others, which it has no more: closed versions
    keep those, and new ones have null in them; and RESCUED behind all. `known` says of which keys a deleted version is
    there.
    """

    rows: pa.Table
    begins: Places
    row: Places
    known: Mask


@dataclass(frozen=True)
class Written:
    """What the batch makes of it.

    Tables have the period's columns, and RESCUED before them if `held` or the upserts had it; those of `ended` and
    `opened` are in the order of their keys, which are numbers of touched keys.
    """

    replaced: pa.Table  # versions that were followed by another
    ended: pa.Table  # versions that ended with the row's deletion
    ended_keys: Places
    opened: pa.Table
    opened_keys: Places
    closed: Mask  # for each touched key: its open version is no longer one


def versions(steps: Steps, upserts: pa.Table, held: Held, layout: Layout) -> Written:
    """`upserts` are complete: what had to be fetched is in them, with RESCUED if something was rescued."""
    rows = held.rows
    if RESCUED in (*rows.column_names, *upserts.column_names):
        rows, upserts = with_rescued(rows), with_rescued(upserts)
    beside = [name for name in rows.column_names if name not in upserts.column_names]
    states = pa.concat_tables([rows, _conformed(upserts, rows.schema)])
    state = np.where(steps.row == NO_ROW, NO_ROW, steps.row + held.rows.num_rows)
    first = np.ones(len(steps.key), np.bool_)
    first[1:] = steps.key[1:] != steps.key[:-1]
    before = np.where(first, held.row[steps.key], np.concatenate([[NO_ROW], state[:-1]])[: len(state)])
    counts = _differs(states.drop_columns(beside), before, state)
    key, moment, state = steps.key[counts], steps.moment[counts], state[counts]

    first = np.ones(len(key), np.bool_)
    first[1:] = key[1:] != key[:-1]
    base = held.row[key]
    before = np.where(first, base, np.concatenate([[NO_ROW], state[:-1]])[: len(state)])
    fresh = first & (base == NO_ROW) & ~held.known[key]
    if layout.period is not None and layout.period.first == "commit" and not steps.first_copy:
        fresh[:] = False
    begins = np.where(fresh, BEGINNING, moment)
    of_base = held.begins[np.maximum(base, 0)] if held.rows.num_rows else np.full(len(key), BEGINNING)
    since = np.where(first, of_base, np.concatenate([[0], begins[:-1]])[: len(begins)])

    closing = before != NO_ROW
    deleting = closing & (state == NO_ROW)
    replacing = closing & (state != NO_ROW) & (since < moment)
    last = np.ones(len(key), np.bool_)
    last[:-1] = key[1:] != key[:-1]
    opening = last & (state != NO_ROW)

    closed = np.zeros(len(held.row), np.bool_)
    closed[key[first & closing]] = True
    return Written(
        replaced=_dated(states, before, since, moment, replacing, layout, deleted=False),
        ended=_dated(states, before, since, np.maximum(moment, since), deleting, layout, deleted=True),
        ended_keys=key[deleting],
        opened=_dated(states, state, begins, np.full(len(key), OPEN), opening, layout, deleted=False),
        opened_keys=key[opening],
        closed=closed,
    )


def _conformed(upserts: pa.Table, schema: pa.Schema) -> pa.Table:
    """With null in columns that only the schema has."""
    given = set(upserts.column_names)
    columns = [
        upserts[one.name].cast(one.type) if one.name in given else pa.nulls(upserts.num_rows, one.type)
        for one in schema
    ]
    return pa.table(columns, schema=schema)


def with_rescued(rows: pa.Table, rescued: pa.Array | None = None) -> pa.Table:
    """Return the rows with RESCUED behind their columns: as it is there, else as given, else null."""
    if RESCUED in rows.column_names:
        return rows
    cells = pa.nulls(rows.num_rows, RESCUED_TYPE) if rescued is None else rescued
    return rows.append_column(pa.field(RESCUED, RESCUED_TYPE), cells)


def closed_versions(open_versions: pa.Table, moment: int, layout: Layout) -> pa.Table:
    """Open versions, whole, as they are when their rows are deleted at a moment."""
    count = open_versions.num_rows
    period = layout.period
    assert period is not None
    begins = np.asarray(open_versions[period.valid_from].cast(pa.int64()))
    kept = open_versions.drop_columns([period.valid_from, period.valid_to, period.deleted])
    ends = np.maximum(moment, begins)
    return _dated(kept, np.arange(count), begins, ends, np.ones(count, np.bool_), layout, deleted=True)


def _dated(
    states: pa.Table, state: Places, begins: Places, ends: Places, chosen: Mask, layout: Layout, *, deleted: bool
) -> pa.Table:
    rows = states.take(pa.array(state[chosen]))
    columns = [
        *rows.columns,
        pa.array(begins[chosen], pa.int64()).cast(MOMENT),
        pa.array(ends[chosen], pa.int64()).cast(MOMENT),
        pa.array(np.full(int(chosen.sum()), deleted)),
    ]
    return pa.table(columns, schema=layout.columns(rows.schema))


def _differs(states: pa.Table, before: Places, after: Places) -> Mask:
    """Return where one state is not the other; NO_ROW is equal to itself."""
    differs: Mask = (before == NO_ROW) != (after == NO_ROW)
    both = np.flatnonzero((before != NO_ROW) & (after != NO_ROW))
    for column in states.columns:
        if len(both) == 0:
            break
        same = _same(column.take(pa.array(before[both])), column.take(pa.array(after[both])))
        differs[both[~same]] = True
        both = both[same]
    return differs


def _same(left: pa.ChunkedArray, right: pa.ChunkedArray) -> Mask:
    """Equal values, where NULL equals NULL and NaN equals NaN. Entries of a map have no order."""
    if pa.types.is_map(left.type):
        pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
        return np.array([(a and dict(a)) == (b and dict(b)) for a, b in pairs], np.bool_)
    if pa.types.is_nested(left.type):
        return np.array([a == b for a, b in zip(left.to_pylist(), right.to_pylist(), strict=True)], np.bool_)
    equal = pc.fill_null(pc.equal(left, right), False)
    equal = pc.or_(equal, pc.and_(pc.is_null(left), pc.is_null(right)))
    if pa.types.is_floating(left.type):
        equal = pc.or_(equal, pc.fill_null(pc.and_(pc.is_nan(left), pc.is_nan(right)), False))
    return np.asarray(equal.combine_chunks(), np.bool_)
