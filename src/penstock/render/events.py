"""The events of one table's changes as records, each with its key, its topic and its place. Columnar: Arrow in and out.

`event.py` says what an event is, `format.py` how it is to be written, `records.py` which records it becomes. An event
is rendered under the structure that it was made under: an image has the columns that the table had then.

An event that cannot be rendered is a dead letter (`Rendered.failed`), and the others go on. What concerns the structure
itself is raised as TableError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.choices import unchosen
from penstock.decode.verbatim import verbatim
from penstock.fold.envelope import BEFORE_IS_FULL, TRUNCATE_OPTIONS, fold_events
from penstock.fold.projection import kept_schema
from penstock.model.change import RawChanges
from penstock.model.dead_letter import DeadLetter
from penstock.model.feed import Feed, Projection
from penstock.model.place import place_at
from penstock.model.processor import ProcessorSpec
from penstock.model.quarantine import raw_message
from penstock.model.rescue import RescueCount
from penstock.model.source_events import WantedEvents, is_source_event
from penstock.model.table import ColumnType, TableSchema
from penstock.processors.batch import Route
from penstock.processors.chain import Failure
from penstock.render.debezium import json_keys
from penstock.render.envelopes import native
from penstock.render.event import Events, Mask, Numbers, Origin, TableOrders
from penstock.render.format import NATIVE, EventFormat
from penstock.render.images import WRITTEN, ImageWriter
from penstock.render.own_changes import FEWEST, Own, can_tell, own_changes
from penstock.render.processed import processed
from penstock.render.records import (
    TOMBSTONE,
    Divided,
    NamedValues,
    constant_topic,
    divided,
    has_one_topic,
    image_of,
    key_texts,
    moves,
    parted,
)
from penstock.render.source_events import has_shape, topic_word
from penstock.render.values import avro_keys, debezium_keys, has_debezium_keys, rendered_values

Selection = tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]  # indexes of records, and the partition of each
Select = Callable[[pa.DictionaryArray, pa.Array, Mask], Selection]  # by topic, key, and whether it concerns every key
NOT_RENDERED, NO_TOPIC = "not-rendered", "no-topic"  # codes of dead letters


@dataclass(frozen=True)
class Rendered:
    """Records in stream order and in parallel. `failed` are events that cannot be rendered: they are not among them."""

    commit: Numbers
    ordinal: Numbers
    part: npt.NDArray[np.int8]  # 1: the second record of its event
    places: pa.Array
    keys: pa.Array  # binary
    values: pa.Array  # binary; null: a tombstone
    topics: pa.DictionaryArray
    partitions: pa.Array  # int32
    last_commit_time: int  # µs
    rescues: tuple[RescueCount, ...]
    headers: tuple[tuple[str, pa.Array], ...] = ()  # name, and binary values; null: the record has no such header
    failed: tuple[DeadLetter, ...] = ()
    schemas: Mapping[str, TableSchema] = field(default_factory=dict)  # structures of these events, by fingerprint
    counts_own: bool = False  # `rescues` are of the shard's rows; otherwise they are of all, as in every other shard

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: npt.NDArray[np.int64]) -> Rendered:
        """Return the records at these indexes."""
        index = pa.array(rows)
        return replace(
            self,
            commit=self.commit[rows],
            ordinal=self.ordinal[rows],
            part=self.part[rows],
            places=self.places.take(index),
            keys=self.keys.take(index),
            values=self.values.take(index),
            topics=self.topics.take(index),
            partitions=self.partitions.take(index),
            headers=tuple((name, values.take(index)) for name, values in self.headers),
        )


def every_record(_: pa.DictionaryArray, keys: pa.Array, __: Mask) -> Selection:
    """Select all records, each once, for partition 0."""
    return np.arange(len(keys)), np.zeros(len(keys), np.int32)


def render_changes(
    changes: RawChanges,
    feed: Feed,
    origin: Origin | str,
    format: EventFormat = NATIVE,
    *,
    select: Select = every_record,
    before: int = 0,
    shared: bool = False,
) -> Rendered:
    """Return the events of one table's changes under one structure. TableError where the structure cannot be written.

    `before`: so many changes of the table come before the first of these in its transaction. Only records that
    `select` names are rendered: those of a shard. What it raises is raised. Events without a topic
    are in `failed` whatever the shard. With `shared`, `select` is for one of several shards, and what certainly belongs
    to the others is not decoded."""
    if feed.strict:  # a value that does not fit its column's type is an error, though a text has room for it
        fold_events([changes], position=0, schema=changes.schema, projection=feed.projection, strict=True)
    schema = verbatim(changes.schema)
    carried = RawChanges(schema, changes.batch)
    origin = Origin(origin) if isinstance(origin, str) else origin
    own = _own(carried, feed, origin, format, select) if shared and changes.batch.num_rows >= FEWEST else None
    if own is not None:
        carried = own.changes
    net = fold_events([carried], position=0, schema=schema, projection=feed.projection, strict=feed.strict, facts=True)
    made = render_events(
        _published(net.upserts, feed, format),
        schema,
        feed.projection,
        origin,
        format,
        select=select,
        rescued=None if net.rescued is None else _whole(net.rescued),
        processors=feed.processors,
        orders=TableOrders.of(changes.batch, before) if format.transactions else None,
    )
    letters = _with_messages(made.failed, changes, feed) if made.failed else ()
    rescues = net.rescues
    if own is not None and rescues and not own.counted.all():
        counted = RawChanges(schema, carried.batch.filter(pa.array(own.counted)))
        rescues = fold_events([counted], position=0, schema=schema, projection=feed.projection).rescues
    return replace(
        made,
        last_commit_time=net.last_commit_time,
        rescues=rescues,
        failed=letters,
        counts_own=own is not None,
    )


def _own(changes: RawChanges, feed: Feed, origin: Origin, format: EventFormat, select: Select) -> Own | None:
    """Return the changes that concern the shard of `select`; None where that cannot be told before they are decoded."""
    topic = constant_topic(format, changes.schema, origin) if can_tell(feed, format) else ""
    if not topic:
        return None

    def of_shard(keys: pa.Array) -> npt.NDArray[np.int64]:
        return select(_constant(topic, len(keys)), keys, np.zeros(len(keys), np.bool_))[0]

    if not has_debezium_keys(format, changes.schema.table):
        return own_changes(changes, of_shard)
    types = {column.name: column.type for column in changes.schema.columns}
    write = partial(json_keys, schema=changes.schema, types=types, origin=origin, schemas=format.envelope.schemas)
    return own_changes(changes, of_shard, write)


def _published(made: pa.Table, feed: Feed, format: EventFormat) -> pa.Table:
    """Return the events that are published; of the source's own only those that have a shape and are asked for."""
    if not is_source_event(feed.table):
        return made
    if not has_shape(format.envelope.type, feed.table):
        return made.slice(0, 0)
    if not feed.messages:
        return made
    wanted = WantedEvents(messages=feed.messages)
    prefixes = pc.struct_field(_whole(made["after"]), "prefix").to_pylist()
    return made.filter(pa.array([wanted.has_message(one or "") for one in prefixes], pa.bool_()))


def render_events(
    made: pa.Table,
    schema: TableSchema,
    projection: Projection,
    origin: Origin,
    format: EventFormat,
    *,
    select: Select = every_record,
    rescued: pa.Array | None = None,
    processors: Sequence[ProcessorSpec] = (),
    orders: TableOrders | None = None,
) -> Rendered:
    """Return events that `fold/envelope.py` has made, of changes or of copied rows, as records.

    `schema` is the one that they were decoded under: `verbatim(…)` of the source's, so that a key is written alike in
    changes and in copied rows; or that schema itself, where a processor needs values with their types."""
    given, done = made, processed(made, schema, projection, processors)
    made, rescued = done.made, rescued if rescued is None or not processors else rescued.take(pa.array(done.origin))
    columns = {name: _whole(made[name]) for name in made.column_names}
    types = {column.name: column.type for column in kept_schema(projection, schema).columns}
    types |= {one.name: WRITTEN for one in columns["after"].type if one.name in done.written}
    writer = ImageWriter(types, schema.dialect)
    images = image_of(columns["after"], columns["before"])
    now, old = key_texts(images, schema.key, writer), key_texts(columns["before"], schema.key, writer)
    records = _numbered(divided(columns["op"], now, old, format), done.origin)
    taken = pa.array(records.index)
    now, old = (_at(records.index, one) for one in (now, old))
    texts = pc.if_else(pa.array(records.from_old), old, now) if records.from_old.any() else now
    named = NamedValues(columns, records, texts, origin, schema, writer)
    topics, lost = _topics(named, format, schema, origin, len(taken))
    if format.key is not None and not is_source_event(schema.table):
        keys = named.filled(format.key).cast(pa.binary())
    elif format.registry is not None:
        keys = avro_keys(columns, records, schema, types, origin, format, topics)
    elif has_debezium_keys(format, schema.table):
        keys = debezium_keys(columns, records, schema, types, origin, format)
    else:
        keys = texts.cast(pa.binary())
    if done.route is not None:
        topics, keys, lost = _routed(done.route.take(taken), topics, keys, lost)
    everywhere = np.asarray(pc.equal(columns["op"].take(taken), "truncate"))
    own, partitions = select(topics, keys, everywhere)
    if lost.any():
        own, partitions = own[~lost[own]], partitions[~lost[own]]
    chosen = pa.array(own)
    events = _events(columns, schema, types, origin, records, own, rescued)
    role = records.role[own]
    events = replace(events, keys=_at(own, texts), moves=moves(role, _at(own, now), _at(own, old)))
    if orders is not None:
        events = replace(events, table_order=orders.at(events.commit, events.ordinal))
    topics, keys = _at(own, topics), _at(own, keys)
    values, failed = rendered_values(events, format, topics, role == TOMBSTONE)
    headers = [(name, named.filled(template).take(chosen).cast(pa.binary())) for name, template in format.headers]
    if done.route is not None:
        route = done.route.take(pa.array(records.index[own]))
        values = pc.if_else(pa.array(role == TOMBSTONE), values, pc.coalesce(route.value, values))
        headers = [*((name, one) for name, one in headers if name not in route.headers), *route.headers.items()]
    letters = _letters(events, keys, failed) + _unprocessed(given, schema, projection, done.failed)
    if lost.any():
        without = _events(columns, schema, types, origin, records, np.flatnonzero(lost), rescued)
        letters += _topicless(replace(without, keys=texts.filter(pa.array(lost))), format)
    rendered = Rendered(
        events.commit,
        events.ordinal,
        events.part,
        events.places,
        keys,
        values,
        topics,
        pa.array(partitions),
        0,
        (),
        tuple(headers),
        letters,
        {events.fingerprint: schema},
    )
    return rendered if not failed else rendered.take(np.setdiff1d(np.arange(len(values)), list(failed)))


def in_stream_order(pieces: Sequence[Rendered]) -> Rendered:
    """Return all pieces as one, in stream order over tables and structures."""
    if len(pieces) == 1:
        return pieces[0]
    whole = Rendered(
        np.concatenate([one.commit for one in pieces]),
        np.concatenate([one.ordinal for one in pieces]),
        np.concatenate([one.part for one in pieces]),
        pa.concat_arrays([one.places for one in pieces]),
        pa.concat_arrays([one.keys for one in pieces]),
        pa.concat_arrays([one.values for one in pieces]),
        _whole(pa.chunked_array([one.topics for one in pieces]).unify_dictionaries()),
        pa.concat_arrays([one.partitions for one in pieces]),
        max(one.last_commit_time for one in pieces),
        tuple(count for one in pieces for count in one.rescues),
        _joined_headers(pieces),
        tuple(letter for one in pieces for letter in one.failed),
        {name: schema for one in pieces for name, schema in one.schemas.items()},
    )
    return whole.take(np.lexsort((whole.part, whole.ordinal, whole.commit)))


def _joined_headers(pieces: Sequence[Rendered]) -> tuple[tuple[str, pa.Array], ...]:
    names = dict.fromkeys(name for one in pieces for name, _ in one.headers)
    return tuple(
        (name, pa.concat_arrays([dict(one.headers).get(name, pa.nulls(len(one), pa.binary())) for one in pieces]))
        for name in names
    )


def _constant(name: str, rows: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([name], pa.string()))


def _at(index: npt.NDArray[np.int64], column: pa.Array) -> pa.Array:
    """Return the values at these places; the column itself where that is all of them, in order."""
    if len(index) == len(column) and (index == np.arange(len(index))).all():
        return column
    return column.take(pa.array(index))


def _whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _events(
    columns: Mapping[str, pa.Array],
    schema: TableSchema,
    types: Mapping[str, ColumnType],
    origin: Origin,
    records: Divided,
    own: npt.NDArray[np.int64],
    rescued: pa.Array | None,
) -> Events:
    """Return the events of the records `own`, without their keys."""
    at = records.index[own]
    columns = {name: _at(at, column) for name, column in columns.items()}
    rescued = None if rescued is None else _at(at, rescued)
    lists = pa.list_(pa.field("element", pa.string()))
    full = np.full(len(at), schema.identity == "full")
    if BEFORE_IS_FULL in columns:
        full = np.asarray(pc.fill_null(columns[BEFORE_IS_FULL], False))
    return Events(
        origin=origin,
        table=schema.table,
        table_id=schema.relation_id,
        dialect=schema.dialect,
        fingerprint=unchosen(schema).structure,
        key=schema.key,
        types=types,
        before_is_full=full,
        truncate_options=columns.get(TRUNCATE_OPTIONS, pa.nulls(len(at), lists)),
        commit=np.asarray(columns["commit_position"]).astype(np.uint64),
        ordinal=np.asarray(columns["ordinal"]).astype(np.uint64),
        part=records.part[own],
        change_position=columns["change_position"],
        transaction=columns["transaction"],
        commit_time=columns["commit_time"],
        keys=pa.nulls(len(at), pa.string()),
        rescued=rescued,
        **parted(columns, records.role[own]),
    )


def _topics(
    named: NamedValues, format: EventFormat, schema: TableSchema, origin: Origin, rows: int
) -> tuple[pa.DictionaryArray, Mask]:
    """Return the topic of each record, and which records have none."""
    own = is_source_event(schema.table)
    if own and (format.topic is None or format.topic.names_rows):
        return _constant(f"{named.source}.{topic_word(schema.table)}", rows), np.zeros(rows, np.bool_)
    if has_one_topic(format):
        topic = constant_topic(format, schema, origin)
        return _constant(topic, rows), np.full(rows, not topic)
    assert format.topic is not None
    filled = named.filled(format.topic)
    lost = np.asarray(filled.is_null()) | np.asarray(pc.fill_null(pc.equal(filled, ""), True))
    encoded = pc.fill_null(filled, "").dictionary_encode()
    return pa.DictionaryArray.from_arrays(encoded.indices.cast(pa.int32()), encoded.dictionary), lost


def _numbered(records: Divided, origin: npt.NDArray[np.int64]) -> Divided:
    """Give records their numbers among those of their change: processors may have made several events of it."""
    of = origin[records.index]
    begins = np.ones(len(of), np.bool_)
    begins[1:] = of[1:] != of[:-1]
    numbers = np.arange(len(of))
    first = np.maximum.accumulate(np.where(begins, numbers, 0)) if len(of) else numbers
    return replace(records, part=(numbers - first).astype(np.int8))


def _routed(
    route: Route, topics: pa.DictionaryArray, keys: pa.Array, lost: Mask
) -> tuple[pa.DictionaryArray, pa.Array, Mask]:
    """Return topics and keys of records as processors say, where they say something."""
    if route.topic.null_count < len(route.topic):
        encoded = pc.coalesce(route.topic, topics.cast(pa.string())).dictionary_encode()
        topics = pa.DictionaryArray.from_arrays(encoded.indices.cast(pa.int32()), encoded.dictionary)
    return topics, pc.coalesce(route.key, keys), lost & np.asarray(route.topic.is_null())


def _unprocessed(
    made: pa.Table, schema: TableSchema, projection: Projection, failed: Mapping[int, Failure]
) -> tuple[DeadLetter, ...]:
    """Return dead letters for events that a processor failed on: they are kept as they were before it."""
    if not failed:
        return ()
    rows = sorted(failed)
    as_given = render_events(
        made.take(pa.array(rows)), schema, projection, Origin(""), replace(NATIVE, split_moves=False)
    )
    parts = zip(rows, as_given.places.to_pylist(), as_given.keys.to_pylist(), as_given.values.to_pylist(), strict=True)
    return tuple(
        DeadLetter(schema.table, place, key, value, failed[row].code, failed[row].reason)
        for row, place, key, value in parts
    )


def _letters(events: Events, keys: pa.Array, failed: Mapping[int, str]) -> tuple[DeadLetter, ...]:
    """Return dead letters for events that their format cannot write: they are kept in the native one."""
    if not failed:
        return ()
    rows = np.array(sorted(failed), np.int64)
    index = pa.array(rows)
    parts = zip(
        rows.tolist(),
        events.places.take(index).to_pylist(),
        keys.take(index).to_pylist(),
        native(events.take(rows)).to_pylist(),
        strict=True,
    )
    return tuple(
        DeadLetter(events.table, place, key, value.encode(), NOT_RENDERED, failed[row])
        for row, place, key, value in parts
    )


def _topicless(events: Events, format: EventFormat) -> tuple[DeadLetter, ...]:
    topic = "" if format.topic is None else format.topic.text
    reason = f"its topic {topic} cannot be made: a value that it names is null, or the event has no row"
    return tuple(
        DeadLetter(events.table, place, None if key is None else key.encode(), value.encode(), NO_TOPIC, reason)
        for place, key, value in zip(
            events.places.to_pylist(), events.keys.to_pylist(), native(events).to_pylist(), strict=True
        )
    )


def _with_messages(letters: Sequence[DeadLetter], changes: RawChanges, feed: Feed) -> tuple[DeadLetter, ...]:
    """Return letters with the changes that they are of, so that these can be rendered again."""
    batch = changes.batch
    numbers = zip(batch.column("commit_position").to_pylist(), batch.column("ordinal").to_pylist(), strict=True)
    rows = {place_at(*one): row for row, one in enumerate(numbers)}
    return tuple(
        replace(
            letter,
            table=feed.name,
            message=raw_message(changes, rows[letter.place.partition(".")[0]], letter.reason),
        )
        for letter in letters
    )
