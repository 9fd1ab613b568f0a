"""Divide the changes of a huge transaction by buckets of keys, so that a task holds its own part and never all of it.

The fold takes from any changes what is its bucket's; given the share instead of everything it comes to the same, but
for one figure: of changes before a truncate, the first bucket counts its own alone. A history goes by its moments, so
there it holds for changes of one moment. Called by the runtime's tasks (`runtime/apply/key_split.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.decode.dialect import read
from penstock.decode.reader import Places, RowReader
from penstock.decode.rescue import Rescued
from penstock.fold.batch import within
from penstock.fold.keys import bucket_of, encode_keys
from penstock.fold.whole_rows import images_of, require_whole_rows
from penstock.model.change import DELETE, TRUNCATE, UPDATE, RawChanges
from penstock.model.feed import Projection
from penstock.model.position import Position
from penstock.model.table import TableSchema


class Entangled(Exception):
    """A row goes from one bucket's key to another's, and cells of it are in an earlier image: there are no shares."""


@dataclass(frozen=True)
class ByRow:
    """How rows are told apart that have no key: as the destination stores them, under the outcome's structure."""

    schema: TableSchema
    projection: Projection


def joined(changes: Iterable[RawChanges], most_bytes: int) -> Iterator[RawChanges]:
    """Return the same changes in fewer pieces: neighbours under one version become one, up to so many bytes."""
    held: list[RawChanges] = []
    size = 0
    for one in changes:
        other = held and held[0].schema.fingerprint != one.schema.fingerprint
        if held and (other or size + one.batch.nbytes > most_bytes):
            whole, held, size = _as_one(held), [], 0
            yield whole
            del whole
        held.append(one)
        size += one.batch.nbytes
    if held:
        yield _as_one(held)


def shares(
    changes: RawChanges, *, position: Position, until: Position | None, buckets: int, by_row: ByRow | None = None
) -> Iterator[pa.RecordBatch]:
    """For each bucket those rows, of position <= commit_position < until, that touch a key of it, in stream order.

    A truncate is every bucket's; a row that changes its key is of both, and must bring a complete image along, or it is
    Entangled. Of a table without a key each bucket has some, so the fold must not share them out again; unless it is
    followed by its whole row (`by_row`), which then is the key."""
    batch = within(changes.batch, position, until)
    for rows in _rows_of(RawChanges(changes.schema, batch), buckets, by_row):
        yield batch.take(pa.array(rows))


def _as_one(held: list[RawChanges]) -> RawChanges:
    return held[0] if len(held) == 1 else RawChanges(held[0].schema, pa.concat_batches([one.batch for one in held]))


def _rows_of(changes: RawChanges, buckets: int, by_row: ByRow | None) -> list[Places]:
    """Return the rows of each bucket."""
    reader = read(changes)
    count = len(reader)
    is_truncate = reader.op == TRUNCATE
    row = np.flatnonzero(~is_truncate)
    if by_row is not None:
        bucket, also_row, also_bucket = _buckets_by_row(reader, row, buckets, by_row)
    elif not changes.schema.key:
        bucket = row * buckets // max(count, 1)
        also_row = also_bucket = np.empty(0, np.int64)
    else:
        bucket = bucket_of(encode_keys(reader.keys(row)), buckets)
        with_old = np.flatnonzero((reader.op[row] == UPDATE) & reader.has_old[row])
        left = bucket_of(encode_keys(reader.old_keys(row[with_old])), buckets)
        moves = left != bucket[with_old]
        also_row, also_bucket = row[with_old[moves]], left[moves]
        if reader.lacking(also_row).any():
            raise Entangled
    truncates = np.flatnonzero(is_truncate)
    if len(also_row) or len(truncates):
        row = np.concatenate([row, also_row, np.repeat(truncates, buckets)])
        bucket = np.concatenate([bucket, also_bucket, np.tile(np.arange(buckets), len(truncates))])
        in_order = np.argsort(row, kind="stable")
        row, bucket = row[in_order], bucket[in_order]
    narrow = bucket.astype(np.uint16) if buckets <= 1 << 16 else bucket  # which numpy sorts in linear time
    by_bucket = np.argsort(narrow, kind="stable")
    ends = np.cumsum(np.bincount(bucket, minlength=buckets))[:-1]
    return np.split(row[by_bucket], ends)


def _buckets_by_row(reader: RowReader, row: Places, buckets: int, by_row: ByRow) -> tuple[Places, Places, Places]:
    """Return the bucket of each row after its change, or before it where it was deleted.

    Also the rows of updates that were in another bucket before, with that bucket.
    """
    require_whole_rows([reader])
    op = reader.op[row]

    def found(at: Places, *, old: bool) -> Places:
        images = images_of(by_row.schema, by_row.projection, [reader], [row[at]], old=old, rescued=Rescued())
        return images.buckets(buckets)

    new, gone, updated = np.flatnonzero(op != DELETE), np.flatnonzero(op == DELETE), np.flatnonzero(op == UPDATE)
    bucket = np.empty(len(row), np.int64)
    bucket[new], bucket[gone], left = found(new, old=False), found(gone, old=True), found(updated, old=True)
    moves = left != bucket[updated]
    return bucket, row[updated[moves]], left[moves]
