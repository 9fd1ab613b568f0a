"""Leave out changes of other shards before they are decoded: of their images only the keys are looked at.

Every shard reads all of a batch. Without this, each of them would decode and render what belongs to the others as well.
What is kept is a superset of the shard's changes: `events.py` selects among the records that are made of it. Where the
key or the topic of a record depends on more than the key columns, nothing can be left out (`can_tell`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.decode.dialect import read
from penstock.decode.reader import Places, RowReader
from penstock.errors import TableError
from penstock.model.change import DELETE, TRUNCATE, RawChanges
from penstock.model.feed import Feed
from penstock.model.source_events import is_source_event
from penstock.render.event import Mask
from penstock.render.format import EventFormat
from penstock.render.images import ImageWriter
from penstock.render.records import has_one_topic

FEWEST = 500  # changes for which it is worth the trouble

WriteKeys = Callable[[pa.StructArray], pa.Array]
OfShard = Callable[[pa.Array], npt.NDArray[np.int64]]  # by keys of records, which of them are the shard's


@dataclass(frozen=True)
class Own:
    """The changes that concern a shard.

    `counted` says which of them count there: a row that moves from one shard to another concerns both, and counts where
    it is now.
    """

    changes: RawChanges
    counted: Mask


def can_tell(feed: Feed, format: EventFormat) -> bool:
    """Return whether the key columns alone say which shard a change concerns."""
    if is_source_event(feed.table):
        return False
    is_as_sent = not feed.projection and not feed.processors and not feed.strict
    return is_as_sent and has_one_topic(format) and format.key is None and format.registry is None


def own_changes(changes: RawChanges, of_shard: OfShard, write: WriteKeys | None = None) -> Own | None:
    """Return the changes that concern a shard.

    `changes` are under a verbatim schema (`decode/verbatim.py`). `write` makes keys of images of the key columns;
    without it they are JSON objects.

    None where a key cannot be read: decoding all of them finds out what is wrong.
    """
    try:
        reader = read(changes)
        everywhere = reader.op == TRUNCATE
        counted = _own(reader, np.flatnonzero(~everywhere), of_shard, write, old=False)
        replaced = np.flatnonzero(reader.has_old & (reader.op != DELETE) & ~everywhere)
        left = _own(reader, replaced, of_shard, write, old=True)
    except TableError:
        return None
    concerned = counted | left | everywhere
    if concerned.all():
        return Own(changes, counted)
    return Own(RawChanges(changes.schema, changes.batch.filter(pa.array(concerned))), counted[concerned])


def _own(reader: RowReader, rows: Places, of_shard: OfShard, write: WriteKeys | None, *, old: bool) -> Mask:
    """Return which changes have a key of the shard, among these rows: the one that they have, or the one they had."""
    own = np.zeros(len(reader), np.bool_)
    if len(rows):
        own[rows[of_shard(_keys(reader, rows, write, old=old))]] = True
    return own


def _keys(reader: RowReader, rows: Places, write: WriteKeys | None, *, old: bool) -> pa.Array:
    """Return keys as records have them."""
    schema = reader.schema
    if not schema.key:
        return pa.nulls(len(rows), pa.binary())
    columns = reader.old_keys(rows) if old else reader.keys(rows)
    images = pa.StructArray.from_arrays(columns, names=list(schema.key))
    if write is not None:
        return write(images)
    types = {column.name: column.type for column in schema.columns}
    return ImageWriter(types, schema.dialect).objects(images).cast(pa.binary())
