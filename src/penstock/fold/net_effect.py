"""What a batch does to one table (or to one bucket of its keys): the hand-over from fold to the destinations.

A destination applies it as: delete everything if `truncated`; delete the live row of every touched key; fill the cells
that `fetches` names from its rows as they were before, with what was rescued of them; append `upserts` and `rescued`.
The rows have no order: keys are unique. A table that is followed by its whole row has no keys: instead of touched keys
there are `removals`, and equal rows may be among the upserts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.model.rescue import RescueCount


@dataclass(frozen=True)
class Fetch:
    """Cells of one column that the source did not send because they did not change, nor did any change of the batch.

    Row `rows[i]` of the upserts takes the value that the destination's row with key `keys[i]` has before the batch.
    That key is not the row's own if the batch changed its key. There are none when the batch truncated the table.
    """

    column: str
    rows: npt.NDArray[np.int64]
    keys: pa.Array


@dataclass(frozen=True)
class Steps:
    """What became of each key, moment by moment, in parallel and sorted by key and moment: for tables of versions.

    After step i the key `touched_keys[key[i]]` has row `row[i]` of the upserts, or none at all (NO_ROW). Moments are
    microseconds since 1970; a key has one step a moment. A truncate is a step of every touched key; keys of the
    destination that are not touched end at `truncated_at`, those of them that are in the bucket. `first_copy`: the rows
    are those of a source's first copy, so nobody knows since when they are there.
    """

    key: npt.NDArray[np.int64]
    moment: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]
    truncated_at: int | None = None
    bucket: int = 0
    buckets: int = 1
    first_copy: bool = False


@dataclass(frozen=True)
class Removals:
    """For a table that is followed by its whole row: what the destination loses, in parallel, each row once.

    `keys[i]` is a row as `encode_rows` makes it. Of its instances `times[i]` go, any of them, for they are equal.
    Before the batch there must be `needed[i]` of them at least, or the destination is not what the source was:
    RowsMissing. `rows` are the rows themselves, with RESCUED behind their columns if something was rescued of them, for
    destinations that find rows by their values.
    """

    keys: pa.Array
    times: npt.NDArray[np.int64]
    needed: npt.NDArray[np.int64]
    rows: pa.Table | None = None


NO_ROW = -1


def narrowed(net: NetEffect, kept: npt.NDArray[np.bool_]) -> NetEffect:
    """Return the net effect with these of its upserts only: the keys of the others have no row any more."""
    place = np.where(kept, np.cumsum(kept) - 1, NO_ROW)
    mask = pa.array(kept)
    fetches = [
        replace(one, rows=place[one.rows[kept[one.rows]]], keys=one.keys.filter(pa.array(kept[one.rows])))
        for one in net.fetches
    ]
    steps = net.steps
    if steps is not None:
        steps = replace(steps, row=np.where(steps.row == NO_ROW, NO_ROW, place[steps.row]))
    return replace(
        net,
        upserts=net.upserts.filter(mask),
        upsert_keys=None if net.upsert_keys is None else net.upsert_keys.filter(mask),
        fetches=tuple(one for one in fetches if len(one.rows)),
        steps=steps,
        rescued=None if net.rescued is None else net.rescued.filter(mask),
    )


@dataclass(frozen=True)
class NetEffect:
    truncated: bool
    upserts: pa.Table  # columns and order of decode's arrow_schema; cells to be fetched are null
    # Aligned with `upserts`: as encode_keys makes them, or encode_rows with `removals`; None for a table without a key
    upsert_keys: pa.Array | None
    touched_keys: pa.Array | None  # every key changed since the last truncate, once: upserted and deleted ones
    fetches: tuple[Fetch, ...]
    changes: int  # raw changes that went into it
    last_commit_time: int  # of the newest of them, in microseconds since 1970; 0 when there are none
    steps: Steps | None = None  # for a table of versions: then a key may have several upserts
    rescued: pa.Array | None = None  # RESCUED_TYPE, aligned with `upserts`: texts of cells that fit no column, by name
    rescues: tuple[RescueCount, ...] = ()  # what `rescued` holds, counted
    removals: Removals | None = None  # of a table that is followed by its whole row; `touched_keys` is None then
