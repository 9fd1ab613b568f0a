"""Clone mode of a table without a key whose changes bring the whole old row along, which says which row it is.

Such a table is a multiset: an UPDATE takes one instance of the old row away and adds the new one, a DELETE takes one
away. Rows are compared as the destination stores them (`row_keys`), so `where`, `columns` and `set` are applied here,
to old images as to new ones. In a batch, equal rows that come and go cancel each other; what is left are rows to add,
and rows of which the destination loses some instances. How many it must have for that follows from the order of the
changes: a row that is deleted and inserted again must have been there, although nothing of it is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from penstock.decode.dialect import dialect_of
from penstock.decode.reader import Mask, Places, RowReader
from penstock.decode.rescue import RESCUED, RESCUED_TYPE, Rescued, whole
from penstock.errors import KeyRequired, RowsMissing, SchemaChanged
from penstock.fold.batch import Batch
from penstock.fold.clone import Upserts, require_one_key
from penstock.fold.keys import bucket_of
from penstock.fold.net_effect import NetEffect, Removals
from penstock.fold.projection import condition_of, kept_counts, project_rows
from penstock.fold.row_keys import encode_rows
from penstock.model.change import DELETE, INSERT, TRUNCATE, RawChanges
from penstock.model.feed import EVERYTHING, Projection
from penstock.model.position import Position
from penstock.model.table import TableId, TableSchema

NOT_KEPT = 0  # the bucket that counts images which `where` leaves out


@dataclass(frozen=True)
class Images:
    """Images of some changes as the destination stores them. `kept`: of which of the images given."""

    rows: pa.Table
    rescued: pa.Array | None
    keys: pa.Array
    kept: Mask

    def buckets(self, buckets: int) -> Places:
        """Return the bucket of each of the images given."""
        found = np.full(len(self.kept), NOT_KEPT, np.int64)
        found[self.kept] = bucket_of(self.keys, buckets)
        return found


def images_of(
    schema: TableSchema,
    projection: Projection,
    sources: Sequence[RowReader],
    rows: Sequence[Places],
    *,
    old: bool,
    rescued: Rescued | None,
) -> Images:
    """Decode the new images of some rows of each source, or the old ones, under `schema`."""
    decoded = Upserts(schema, sources, rows, rescued, old)
    if decoded.unsent:
        number = next(iter(decoded.unsent.values()))[0]
        ends = np.cumsum([len(chosen) for chosen in rows])
        source = int(np.searchsorted(ends, number, side="right"))
        row = int(rows[source][number - (ends[source] - len(rows[source]))])
        raise sources[source].broken(row, "its old row lacks a column")
    table, (cells, _) = decoded.table(), decoded.rescued_cells()
    if cells is not None:
        table = table.append_column(pa.field(RESCUED, RESCUED_TYPE), cells)
    condition = condition_of(projection)
    kept = np.ones(table.num_rows, np.bool_)
    if condition is not None:
        kept = np.asarray(condition.holds(table, schema).combine_chunks(), np.bool_)
        table = table.filter(pa.array(kept))
    table = project_rows(projection, schema, table)
    cells = whole(table[RESCUED]) if RESCUED in table.column_names else None
    if RESCUED in table.column_names:
        table = table.drop_columns([RESCUED])
    return Images(table, cells, encode_rows(table, cells), kept)


def fold_rows(
    changes: Iterable[RawChanges],
    *,
    position: Position,
    until: Position | None = None,
    bucket: int = 0,
    buckets: int = 1,
    schema: TableSchema | None = None,
    strict: bool = False,
    projection: Projection = EVERYTHING,
) -> NetEffect:
    """Fold as `fold_clone` does, for a table that is followed by its whole row; `projection` is applied already.

    Rows are shared out over buckets by their keys. RowsMissing when a row goes that was truncated before.
    """
    batch = Batch.of(changes, position=position, until=until, schema=schema)
    schema = batch.schema
    require_by_row(schema, batch.changes)
    sources, ranks, cleared = batch.readers, batch.ranks, batch.cleared
    require_whole_rows(sources)
    rows = [np.flatnonzero(rank > cleared) for rank in ranks]
    old = [chosen[m.op[chosen] != INSERT] for m, chosen in zip(sources, rows, strict=True)]
    new = [chosen[m.op[chosen] != DELETE] for m, chosen in zip(sources, rows, strict=True)]
    texts = None if strict else Rescued()
    removed = images_of(schema, projection, sources, old, old=True, rescued=Rescued())
    added = images_of(schema, projection, sources, new, old=False, rescued=texts)

    gone_order = 2 * _ranks(ranks, old)
    come_order = 2 * _ranks(ranks, new) + 1
    gone_bucket, come_bucket = removed.buckets(buckets), added.buckets(buckets)
    deleted = np.concatenate([m.op[chosen] == DELETE for m, chosen in zip(sources, old, strict=True)])
    own = int((come_bucket == bucket).sum() + (deleted & (gone_bucket == bucket)).sum())
    gone_own, come_own = (gone_bucket == bucket)[removed.kept], (come_bucket == bucket)[added.kept]
    balance = _balance(
        removed.keys.filter(pa.array(gone_own)),
        gone_order[removed.kept][gone_own],
        added.keys.filter(pa.array(come_own)),
        come_order[added.kept][come_own],
    )
    gone_rows = removed.rows
    if removed.rescued is not None:
        gone_rows = gone_rows.append_column(pa.field(RESCUED, RESCUED_TYPE), removed.rescued)
    images = gone_rows.take(pa.array(np.flatnonzero(gone_own)[balance.images]))
    removals = replace(balance.removals, rows=images)
    if cleared >= 0 and len(removals.keys):
        raise rows_missing(schema.table, int(removals.needed.sum()))
    chosen = pa.array(np.flatnonzero(come_own)[balance.stays])
    cells = None if added.rescued is None else whole(added.rescued.take(chosen))
    return NetEffect(
        truncated=cleared >= 0,
        upserts=added.rows.take(chosen),
        upsert_keys=added.keys.take(chosen),
        touched_keys=None,
        fetches=(),
        changes=own + (int(cleared + 1) if bucket == 0 else 0),
        last_commit_time=batch.last_commit_time,
        rescued=cells,
        rescues=kept_counts(projection, schema, texts.counts, cells) if texts is not None else (),
        removals=removals,
    )


def require_by_row(schema: TableSchema, changes: Sequence[RawChanges]) -> None:
    """All versions of the batch must be followed by the whole row: the runtime copies the table again before that."""
    require_one_key(schema, changes)
    if any(not one.schema.by_row for one in changes if one.batch.num_rows):
        raise SchemaChanged(
            f"table {schema.table}: its replica identity changed, and it has no key", "Copy it again: `penstock resync`"
        )


def require_whole_rows(sources: Sequence[RowReader]) -> None:
    """KeyRequired for a change without its whole old row."""
    for reader in sources:
        lacking = ~reader.old_is_full & (reader.op != INSERT) & (reader.op != TRUNCATE)
        if lacking.any():
            advice = dialect_of(reader.schema).old_row_missing()
            raise KeyRequired(
                f"{reader.place(int(np.argmax(lacking)))}: a change without the whole old row, of a table without a "
                f"key: {advice.what}",
                f"{advice.solution}; then `penstock resync`",
            )


def rows_missing(table: TableId, rows: int) -> RowsMissing:
    return RowsMissing(
        f"table {table}: the source removed {rows} row(s) that the destination does not have",
        "Nothing: the table is copied again by itself. If this repeats, run `penstock verify` and report it",
    ).counting(rows)


@dataclass(frozen=True)
class _Balance:
    """`stays`: which of the rows that came are left in the end. `images`: for each removal, one that went."""

    stays: Places
    images: Places
    removals: Removals


def _balance(gone: pa.Array, gone_order: Places, come: pa.Array, come_order: Places) -> _Balance:
    """Return what is left of rows that went and came, in the order of the stream."""
    encoded = pa.chunked_array([gone, come], pa.binary()).combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    number = np.asarray(encoded.indices).astype(np.int64)
    if len(number) == 0:
        nothing = np.empty(0, np.int64)
        return _Balance(nothing, nothing, Removals(gone, nothing, nothing))
    order = np.concatenate([gone_order, come_order])
    by_row = np.lexsort((order, number))
    arrives = by_row >= len(gone)
    there = np.cumsum(np.where(arrives, 1, -1))
    begins = np.flatnonzero(np.diff(number[by_row], prepend=-1))
    before = np.concatenate([[0], there[begins[1:] - 1]])  # what earlier rows have added up to
    ends = np.append(begins[1:], len(by_row)) - 1
    net = there[ends] - before
    needed = np.maximum(0, before - np.minimum.reduceat(there, begins))
    # Of the arrivals of a row the last ones stay: as many as there are more of it in the end.
    arrivals = by_row[arrives] - len(gone)
    of_row = number[by_row[arrives]]
    counts = np.bincount(of_row, minlength=len(net))
    from_end = np.cumsum(counts)[of_row] - np.arange(len(of_row))
    stays = np.sort(arrivals[from_end <= net[of_row]])
    wanted = np.flatnonzero(needed)
    keys = encoded.dictionary.take(pa.array(wanted))
    went, first = np.unique(number[: len(gone)], return_index=True)
    images = first[np.searchsorted(went, wanted)]
    return _Balance(stays, images, Removals(keys, np.maximum(0, -net)[wanted], needed[wanted]))


def _ranks(ranks: Sequence[Places], rows: Sequence[Places]) -> Places:
    return np.concatenate([rank[chosen] for rank, chosen in zip(ranks, rows, strict=True)])
