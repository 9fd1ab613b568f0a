"""The events of a batch: what happens to which key, in stream order. Made from a source's changes, read by `clone.py`.

A row change is one event; a change of a row's key is two: its old key is left, then its new key has an image. Keys are
numbered, so that the rest of the fold works on numbers whatever the key's type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.reader import Mask, Places, RowReader
from penstock.fold.keys import bucket_of, encode_keys
from penstock.model.change import DELETE, UPDATE

NOT_MOVED = -1


@dataclass(frozen=True)
class Events:
    """In parallel, in stream order. `keys[key[i]]` is the key of event i; keys are numbered without gaps."""

    keys: pa.Array
    key: Places
    source: Places  # which of the batch's readers
    row: Places  # its row there
    is_image: Mask  # the key has the row's new image afterwards; otherwise it has no row
    moved_from: Places  # for an image whose row had another key before: that key; otherwise NOT_MOVED
    moved_away: Mask  # the key is left because its row takes another
    changes: int  # row changes whose key, the new one if it changed, is in the bucket


@dataclass(frozen=True)
class _Touches:
    """Events of one source that share a meaning: the key of each, and where it stands."""

    keys: pa.Array
    source: int
    row: Places
    order: Places
    is_image: Mask
    moved_away: bool


def events_of(
    sources: Sequence[RowReader], rows: Sequence[Places], ranks: Sequence[Places], bucket: int, buckets: int
) -> Events:
    """Return the events of the given rows whose key is in the bucket. `ranks` are the rows' places in the stream."""
    touches: list[_Touches] = []
    changes = 0
    for number, (reader, chosen, rank) in enumerate(zip(sources, rows, ranks, strict=True)):
        keys = encode_keys(reader.keys(chosen))
        own = _own(keys, bucket, buckets)
        changes += int(own.sum())
        is_image = reader.op[chosen] != DELETE
        touches.append(_touch(keys, number, chosen, 2 * rank + 1, is_image, False, own))

        with_old = np.flatnonzero((reader.op[chosen] == UPDATE) & reader.has_old[chosen])
        old = encode_keys(reader.old_keys(chosen[with_old]))
        differs = _differs(old, keys.take(pa.array(with_old)))
        if not differs.any():
            continue
        moved = with_old[differs]
        left = old.filter(pa.array(differs))
        leaves = _own(left, bucket, buckets)
        if reader.lacking(chosen[moved[leaves != own[moved]]]).any():
            raise ValueError(
                f"{reader.schema.table}: a key changes in this batch, and the row's new image is not complete: one "
                "bucket must take all of it"
            )
        gone = np.zeros(len(moved), np.bool_)
        touches.append(_touch(left, number, chosen[moved], 2 * rank[moved], gone, True, leaves))
    return _in_order(touches, changes)


def _own(keys: pa.Array, bucket: int, buckets: int) -> Mask:
    return np.ones(len(keys), np.bool_) if buckets == 1 else bucket_of(keys, buckets) == bucket


def _differs(left: pa.Array, right: pa.Array) -> Mask:
    if pa.types.is_integer(left.type):
        different: Mask = np.asarray(left) != np.asarray(right)
        return different
    return ~np.asarray(pc.equal(left, right))


def _touch(
    keys: pa.Array, source: int, row: Places, order: Places, is_image: Mask, moved_away: bool, own: Mask
) -> _Touches:
    if own.all():
        return _Touches(keys, source, row, order, is_image, moved_away)
    return _Touches(keys.filter(pa.array(own)), source, row[own], order[own], is_image[own], moved_away)


def _in_order(touches: Sequence[_Touches], changes: int) -> Events:
    keys, key = _numbered([touch.keys for touch in touches])
    source = np.concatenate([np.full(len(touch.row), touch.source) for touch in touches])
    row = np.concatenate([touch.row for touch in touches])
    order = np.concatenate([touch.order for touch in touches])
    is_image = np.concatenate([touch.is_image for touch in touches])
    moved_away = np.concatenate([np.full(len(touch.row), touch.moved_away) for touch in touches])
    if np.any(order[1:] < order[:-1]):
        sort = np.argsort(order, kind="stable")
        key, source, row, order = key[sort], source[sort], row[sort], order[sort]
        is_image, moved_away = is_image[sort], moved_away[sort]
    return Events(
        keys=keys,
        key=key,
        source=source,
        row=row,
        is_image=is_image,
        moved_from=_moved_from(key, order, moved_away),
        moved_away=moved_away,
        changes=changes,
    )


def _numbered(keys: Sequence[pa.Array]) -> tuple[pa.Array, Places]:
    """Return the keys without repetition, and for each given key its number among them."""
    encoded = pa.chunked_array(keys).dictionary_encode()  # drops empty chunks; those left share one dictionary
    if encoded.num_chunks == 0:
        return keys[0], np.empty(0, np.int64)
    return encoded.chunk(0).dictionary, np.concatenate([np.asarray(one.indices) for one in encoded.chunks]).astype(
        np.int64
    )


def _moved_from(key: Places, order: Places, moved_away: Mask) -> Places:
    """Return the keys that rows left.

    A key is left right before the same row's image: they are neighbours, if both are in the bucket.
    """
    origin = np.full(len(key), NOT_MOVED, np.int64)
    left = np.flatnonzero(moved_away[:-1])
    left = left[order[left + 1] == order[left] + 1]
    origin[left + 1] = key[left]
    return origin
