"""Events mode: every change is a row, with what the row was before and after it. Nothing is folded away.

| column                       | holds                                                                          |
|------------------------------|--------------------------------------------------------------------------------|
| op                           | insert, update, delete, truncate; read (of the copy); begin, commit (markers)  |
| schema, table, table_id      | the table's name at its source, and the number by which that knows it          |
| commit_position, ordinal     | its place: sorted by both, events are in the order of the stream               |
| change_position, commit_time | where and when                                                                 |
| transaction                  | by which transaction                                                           |
| schema_version               | the fingerprint, in the schema registry, of the structure that it was under    |
| before, after                | the row's images, as far as the source sends them                              |
| before_kind                  | `full` or `key`: what `before` has of the row; null without one                |
| unchanged                    | columns that are null in `after` because an UPDATE left a large value alone    |
| truncate_options             | of a truncate: `cascade`, `restart_identity`                                   |

The names are those of the native envelope (`render/envelopes.py`); positions are numbers here, and texts there.
What was rescued of the images stands beside them, under `before.` or `after.` and the column's name.
Rows of the copy stand right before what followed its snapshot. A marker stands before or behind all of its
transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.choices import unchosen
from penstock.decode.dialect import dialect_of
from penstock.decode.reader import Images, Mask, Octets, Places, RowReader
from penstock.decode.rescue import RESCUED, RESCUED_TYPE, Into, Rescued, counted, entries, renamed, rescued_cells, whole
from penstock.decode.schema import arrow_schema
from penstock.fold.batch import Batch, aligned, share_rows
from penstock.fold.net_effect import NetEffect
from penstock.fold.projection import (
    FIRST_CONSTANT,
    condition_of,
    kept_counts,
    kept_rescued,
    kept_schema,
    maskable,
    shaped,
    where_incomplete,
    with_values,
)
from penstock.model.change import DELETE, INSERT, TRUNCATE, UPDATE, RawChanges
from penstock.model.feed import EVERYTHING, Projection
from penstock.model.position import Position
from penstock.model.rescue import RescueCount
from penstock.model.table import Column, TableSchema

FIRST_NUMBER = -2_000_000  # its columns are none of the source's
OPERATIONS = {INSERT: "insert", UPDATE: "update", DELETE: "delete", TRUNCATE: "truncate"}
_NAMES = np.array([OPERATIONS.get(code, "") for code in range(256)], object)
_NAME_COLUMN = pa.array(_NAMES.tolist(), pa.string())
BEFORE_ALL, BEHIND_ALL = -1, 2**63 - 1  # ordinal of the markers of a transaction
_PLACES = ("commit_position", "ordinal", "change_position", "transaction")  # as raw changes have them
BEFORE_IS_FULL, TRUNCATE_OPTIONS = "before_is_full", "truncate_options"
_BEFORE_IS_FULL_FIELD = pa.field(BEFORE_IS_FULL, pa.bool_())
RANGE_SHIFT = 40  # a range of the copy has fewer rows than 2 to this


def event_schema(kept: TableSchema) -> TableSchema:
    """Return the table of a table's events.

    `kept` is what is kept of the source's. In the images constants come first, so that a column which comes at the
    source comes behind all others.
    """
    ordered = sorted(kept.columns, key=lambda one: one.number > FIRST_CONSTANT)
    dialect = dialect_of(kept)
    image = dialect.record_type([(one.name, one.type) for one in ordered])
    text, number = dialect.own_type("text"), dialect.own_type("int64")
    types = {
        **dict.fromkeys(("op", "schema", "table"), text),
        **dict.fromkeys(("table_id", "commit_position", "ordinal", "change_position"), number),
        "commit_time": dialect.own_type("timestamptz"),
        "transaction": number,
        "schema_version": text,
        "before": image,
        "before_kind": text,
        "after": image,
        **dict.fromkeys(("unchanged", TRUNCATE_OPTIONS), dialect.own_type("text list")),
    }
    columns = tuple(Column(name, type, number=FIRST_NUMBER - place) for place, (name, type) in enumerate(types.items()))
    return replace(kept, columns=columns, key=())


@dataclass(frozen=True)
class _Images:
    """Images of some changes: which of them, what is kept of each, and whether `where` holds for it."""

    at: Places
    rows: pa.Table
    holds: Mask
    unsent: dict[str, Mask]  # by column of the source, among `at`
    rescued: pa.Array | None  # of what is kept
    rescues: tuple[RescueCount, ...]


def fold_events(
    changes: Iterable[RawChanges],
    *,
    position: Position,
    until: Position | None = None,
    bucket: int = 0,
    buckets: int = 1,
    schema: TableSchema | None = None,
    projection: Projection = EVERYTHING,
    markers: bool = False,
    strict: bool = False,
    facts: bool = False,
) -> NetEffect:
    """Return the events of the changes with position <= commit_position < until, divided among the buckets.

    The events' numbers decide the bucket. Values that do not fit are rescued; with `strict`, and in a key column, they
    are ValueDoesNotFit. With `facts` a further column says whether `before` is the whole row (BEFORE_IS_FULL), in place
    of `before_kind`.
    """
    events = (dialect_of(one.schema).without_marks(one) for one in changes)
    batch = Batch.of(events, position=position, until=until, schema=schema)
    used, schema, sources = batch.changes, batch.schema, batch.readers
    chosen = share_rows([np.arange(len(reader)) for reader in sources], bucket, buckets)
    wanted = arrow_schema(event_schema(kept_schema(projection, schema)))
    if facts:
        wanted = wanted.append(_BEFORE_IS_FULL_FIELD)
    tables, rescued, places = [wanted.empty_table()], [pa.nulls(0, RESCUED_TYPE)], dict[str, str]()
    for one, reader, rows in zip(used, sources, chosen, strict=True):
        if len(rows):
            made, beside = _events(one, reader, rows, schema, projection, wanted, places, strict=strict)
            tables.append(made)
            rescued.append(beside)
    if markers:
        around = _markers(used, batch.ranks, chosen, wanted)
        tables += around
        rescued += [pa.nulls(one.num_rows, RESCUED_TYPE) for one in around]
    cells = whole(pa.concat_arrays(rescued))
    return NetEffect(
        truncated=False,
        upserts=pa.concat_tables(tables),
        upsert_keys=None,
        touched_keys=None,
        fetches=(),
        changes=sum(map(len, chosen)),
        last_commit_time=batch.last_commit_time,
        rescued=cells,
        rescues=counted(cells, places.__getitem__),
    )


def read_events(
    rows: pa.Table, source: TableSchema, kept: TableSchema, position: Position, moment: int, first: int
) -> pa.Table:
    """Return rows of the copy, perhaps with RESCUED, as events.

    They are as of `position` (exclusive), and numbered from `first`. `source` is the table as its source has it, `kept`
    as the rows are.
    """
    wanted, count = arrow_schema(event_schema(kept)), rows.num_rows
    inner = list(wanted.field("after").type)
    after = pa.StructArray.from_arrays([rows[field.name].combine_chunks() for field in inner], fields=inner)
    values = {
        "op": pa.repeat("read", count),
        "commit_position": pa.repeat(pa.scalar(position - 1, pa.int64()), count),
        "ordinal": pa.array(first + np.arange(count), pa.int64()),
        "commit_time": pa.repeat(pa.scalar(moment, pa.int64()), count).cast(pa.timestamp("us", "UTC")),
        "after": after,
    }
    events, rescued = _table(values, source, wanted, count), None
    if RESCUED in rows.column_names and (cells := whole(rows[RESCUED])) is not None:
        rescued = renamed(cells, {field.name: f"after.{field.name}" for field in inner})
    return events if rescued is None else events.append_column(pa.field(RESCUED, RESCUED_TYPE), rescued)


def _events(
    changes: RawChanges,
    reader: RowReader,
    rows: Places,
    schema: TableSchema,
    projection: Projection,
    wanted: pa.Schema,
    places: dict[str, str],
    *,
    strict: bool,
) -> tuple[pa.Table, pa.Array]:
    """Return the events, and what was rescued of them. `places` learns where the cells of each column came from."""
    op = reader.op[rows]
    has_after = np.flatnonzero((op == INSERT) | (op == UPDATE))
    has_before = np.flatnonzero(reader.has_old[rows] & (op != TRUNCATE))
    after = _images(reader, has_after, reader.images(rows[has_after]), schema, projection, strict=strict)
    old = reader.old_images(rows[has_before])
    before = _images(reader, has_before, old, schema, projection, strict=strict)
    names = _NAME_COLUMN.take(pa.array(op))
    shown = np.ones(len(rows), np.bool_)
    with_before = np.ones(len(rows), np.bool_)
    with_after = np.zeros(len(rows), np.bool_)
    with_after[has_after] = True
    if projection.where:
        words, shown, with_after = _within_where(_NAMES[op], op, after, before, reader.old_is_full[rows])
        names, with_before = pa.array(words.tolist(), pa.string()), words != "insert"
    batch = _rows(changes.batch, rows)
    values = {
        "op": names,
        **{name: batch.column(name).cast(pa.int64()) for name in _PLACES},
        "commit_time": batch.column("commit_time"),
        "before": _befores(
            before,
            after,
            with_before,
            (op == UPDATE) & ~with_after,
            schema,
            projection,
            wanted.field("before").type,
        ),
        "after": _structs(after, with_after, wanted.field("after").type),
        "unchanged": _unchanged(after, with_after, projection),
    }
    values[TRUNCATE_OPTIONS] = _options(reader, rows, op)
    full = pa.array(reader.old_is_full[rows])
    if BEFORE_IS_FULL in wanted.names:
        values[BEFORE_IS_FULL] = full
    else:
        kinds = pc.if_else(full, "full", "key")
        values["before_kind"] = pc.if_else(values["before"].is_valid(), kinds, pa.scalar(None, pa.string()))
    for side, images in (("before", before), ("after", after)):
        places |= {f"{side}.{one.column}": one.place for one in images.rescues}
    events = _table(values, changes.schema, wanted, len(rows))
    beside = _beside(before, after, with_before, with_after)
    return (events, beside) if shown.all() else (events.filter(pa.array(shown)), beside.filter(pa.array(shown)))


def _rows(batch: pa.RecordBatch, rows: Places) -> pa.RecordBatch:
    """Return what stands beside the messages of these rows; the messages are decoded already."""
    beside = batch.select([*_PLACES, "commit_time"])
    return beside if len(rows) == batch.num_rows else beside.take(pa.array(rows))


def _options(reader: RowReader, rows: Places, op: Octets) -> pa.Array:
    """Return the options that truncates were given; null for other changes."""
    at = np.flatnonzero(op == TRUNCATE)
    kind = pa.list_(pa.field("element", pa.string()))
    if not len(at):
        return pa.nulls(len(rows), kind)
    given: list[list[str] | None] = [None] * len(rows)
    for row, options in zip(at.tolist(), reader.truncate_options(rows[at]), strict=True):
        given[row] = options
    return pa.array(given, kind)


def _beside(before: _Images, after: _Images, with_before: Mask, with_after: Mask) -> pa.Array:
    """Return what was rescued of the images, for each change."""
    at, names, texts = [], list[str](), list[str]()
    for side, images, there in (("before", before, with_before), ("after", after, with_after)):
        if images.rescued is None:
            continue
        rows, columns, values = entries(images.rescued)
        kept = there[images.at[rows]]
        at.append(images.at[rows][kept])
        names += [f"{side}.{column}" for column, stays in zip(columns, kept, strict=True) if stays]
        texts += [text for text, stays in zip(values, kept, strict=True) if stays]
    if not names:
        return pa.nulls(len(with_after), RESCUED_TYPE)
    return rescued_cells(len(with_after), np.concatenate(at), names, texts)


def _images(
    reader: RowReader, at: Places, images: Images, schema: TableSchema, projection: Projection, *, strict: bool
) -> _Images:
    """`images` are of the changes `at`; what is decoded is aligned with `schema`."""
    lost = Rescued()
    arrow = arrow_schema(schema)
    decoded = list(aligned(reader, images, schema, lambda column: None if strict else Into(lost, column)))
    unsent = {name: missing for name, (_, missing) in zip(arrow.names, decoded, strict=True) if missing is not None}
    nullable = pa.schema([field.with_nullable(True) for field in arrow])
    rows = pa.table([values for values, _ in decoded], schema=nullable)
    condition = condition_of(projection)
    holds = np.ones(len(at), np.bool_)
    if condition is not None:
        needed = [name for name in condition.columns if name in unsent]
        if needed:
            raise where_incomplete(schema, needed[0], "`penstock retry`")
        valued = with_values(rows, schema, condition.columns)
        holds = np.asarray(condition.holds(valued, schema).combine_chunks(), np.bool_)
    rescued = lost.cells(len(at))
    kept = kept_rescued(projection, schema, rescued)
    rescues = kept_counts(projection, schema, lost.counts, kept)
    rows = maskable(rows, schema, projection)
    return _Images(at, shaped(projection, schema, rows, rescued), holds, unsent, kept, rescues)


def _within_where(
    names: np.ndarray[tuple[int], np.dtype[np.object_]],
    op: np.ndarray[tuple[int], np.dtype[np.uint8]],
    after: _Images,
    before: _Images,
    old_is_full: Mask,
) -> tuple[np.ndarray[tuple[int], np.dtype[np.object_]], Mask, Mask]:
    """Return the events where rows outside of `where` do not exist.

    A row that moves out is deleted, one that moves in is inserted. What an old image cannot tell, because it holds the
    key alone, counts as having been in.
    """
    now, was = np.zeros(len(op), np.bool_), np.ones(len(op), np.bool_)
    now[after.at] = after.holds
    was[before.at] = before.holds
    was |= ~old_is_full
    was &= op != INSERT
    names = names.copy()
    names[(op == UPDATE) & ~now] = "delete"
    names[(op == UPDATE) & now & ~was] = "insert"
    return names, now | was | (op == TRUNCATE), now


def _befores(
    before: _Images,
    after: _Images,
    shown: Mask,
    moved_out: Mask,
    schema: TableSchema,
    projection: Projection,
    type: pa.DataType,
) -> pa.Array:
    """Return the old images.

    A row that moves out of `where` and whose old image was not sent, because its key stays, has that key: a deletion
    says of which row.
    """
    sent = _structs(before, shown, type)
    unsent = moved_out.copy()
    unsent[before.at] = False
    if not schema.key or not unsent.any():
        return sent
    stay = {*schema.key, *(name for name, _ in projection.constants)}
    keys = after.rows
    for place, field in enumerate(keys.schema):
        if field.name not in stay:
            keys = keys.set_column(place, field, pa.nulls(keys.num_rows, field.type))
    return pc.if_else(pa.array(unsent), _structs(replace(after, rows=keys), unsent, type), sent)


def _structs(images: _Images, shown: Mask, type: pa.DataType) -> pa.Array:
    """Return one struct for each change, null where there is no image."""
    inner = [type.field(number) for number in range(type.num_fields)]
    arrays = [images.rows[field.name].combine_chunks().cast(field.type) for field in inner]
    packed = pa.StructArray.from_arrays(arrays, fields=inner)
    if len(images.at) == len(shown) and shown.all():
        return packed
    if not len(images.at):
        return pa.nulls(len(shown), type)
    place = np.zeros(len(shown), np.int64)
    there = np.zeros(len(shown), np.bool_)
    place[images.at], there[images.at] = np.arange(len(images.at)), True
    return packed.take(pa.array(place, mask=~(there & shown)))


def _unchanged(after: _Images, shown: Mask, projection: Projection) -> pa.Array:
    """Return names of columns, as the destination has them; null where all were sent."""
    kind = pa.list_(pa.field("element", pa.string()))
    if not after.unsent:
        return pa.nulls(len(shown), kind)
    names: list[list[str] | None] = [None] * len(shown)
    choices = {choice.column: choice for choice in projection.columns}
    for source, missing in after.unsent.items():
        choice = choices.get(source)
        if choice is not None and choice.dropped:
            continue
        name = choice.name if choice is not None and choice.name else source
        for row in after.at[missing].tolist():
            if shown[row]:
                names[row] = [*(names[row] or []), name]
    return pa.array(names, kind)


def _markers(
    used: Sequence[RawChanges], ranks: Sequence[Places], chosen: Sequence[Places], wanted: pa.Schema
) -> list[pa.Table]:
    """Begin and commit of every transaction whose first, or last, change of this table is among the chosen."""
    lsn = np.empty(sum(map(len, ranks)), np.uint64)
    for one, rank in zip(used, ranks, strict=True):
        lsn[rank] = np.asarray(one.batch.column("commit_position"))
    first, last = np.ones(len(lsn), np.bool_), np.ones(len(lsn), np.bool_)
    first[1:] = last[:-1] = lsn[1:] != lsn[:-1]
    tables = []
    for one, rank, rows in zip(used, ranks, chosen, strict=True):
        for op, edge, ordinal in (("begin", first, BEFORE_ALL), ("commit", last, BEHIND_ALL)):
            at = rows[edge[rank[rows]]]
            batch = one.batch.take(pa.array(at))
            values = {
                "op": pa.repeat(op, len(at)),
                **{name: batch.column(name).cast(pa.int64()) for name in ("commit_position", "transaction")},
                "ordinal": pa.repeat(pa.scalar(ordinal, pa.int64()), len(at)),
                "commit_time": batch.column("commit_time"),
            }
            tables.append(_table(values, one.schema, wanted, len(at)))
    return tables


def _table(values: dict[str, pa.Array], schema: TableSchema, wanted: pa.Schema, count: int) -> pa.Table:
    values = {
        "schema": pa.repeat(schema.table.schema, count),
        "table": pa.repeat(schema.table.name, count),
        "table_id": pa.repeat(pa.scalar(schema.relation_id, pa.int64()), count),
        "schema_version": pa.repeat(unchosen(schema).structure, count),
        **values,
    }
    columns = [
        values[field.name].cast(field.type) if field.name in values else pa.nulls(count, field.type) for field in wanted
    ]
    return pa.table(columns, schema=wanted)
