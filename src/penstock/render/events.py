"""The events of one table's changes as JSON records, each with its key and its place. Columnar: Arrow in, Arrow out.

| key             | holds                                                                                   |
|-----------------|-----------------------------------------------------------------------------------------|
| op              | insert, update, delete, truncate                                                        |
| source          | the source's name in the pipeline                                                       |
| schema, table   | the table's name at its source                                                          |
| place           | commit position and ordinal: with the table unique, and text order is stream order      |
| change_position | where the change itself stands in the source's log, 16 hexadecimal digits               |
| transaction     | the number of its transaction                                                           |
| commit_time     | when that was committed                                                                 |
| schema_version  | the fingerprint, in the schema registry, of the structure that the event is under       |
| key             | the key columns of the row; null in a table without a key, and for a truncate           |
| before          | the old image: all columns where the source sends them, else the key; null without one  |
| after           | the new image, without columns that the source did not send; null without one           |
| unchanged       | only where there are any: columns that an update left alone and the source did not send |
| moved_to        | only of a delete that stands for a change of the key: the key that the row has now      |
| moved_from      | only of the insert that follows it: the key that the row had                            |
| _rescued        | only where there are any: texts of values that fit no column, by image and column       |

Values are written as `decode/json_values.py` says. An update that changes a row's key is two events, so that every
event of a key is under that key: a delete, and an insert whose place ends in `.1`. Every event is rendered under the
structure that it was made under: an image has the columns that the table had then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.fold.envelope import fold_events
from penstock.model.change import RawChanges
from penstock.model.dead_letter import DeadLetter
from penstock.model.feed import Feed
from penstock.model.rescue import RescueCount
from penstock.model.table import TableSchema
from penstock.render.json_text import Template, json_texts, objects

Numbers = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
Selection = tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]  # indexes of records, and the partition of each
Select = Callable[[pa.DictionaryArray, pa.Array, Mask], Selection]  # by topic, key, and whether it concerns every key
_HEXADECIMAL = np.frombuffer(b"0123456789abcdef", np.uint8)
_MOVED = ".1"  # behind the place of the insert that follows a change of a key


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


def render_changes(changes: RawChanges, feed: Feed, source: str, *, select: Select = every_record) -> Rendered:
    """Return the events of one table's changes under one structure. TableError where an event cannot be made.

    Only records that `select` names are rendered: those of a shard. What it raises is raised."""
    schema = changes.schema
    net = fold_events([changes], position=0, schema=schema, projection=feed.projection, strict=feed.strict)
    made = net.upserts
    columns = {name: _whole(made[name]) for name in made.column_names}
    rows = made.num_rows
    now = _key_texts(_image(columns["after"], columns["before"]), schema.key, rows)
    old = _key_texts(columns["before"], schema.key, rows)
    moved = _moved(columns, now, old)
    index = np.repeat(np.arange(rows), 1 + moved)
    part = np.zeros(len(index), np.int8)
    part[1:] = index[1:] == index[:-1]
    leaves, arrives = moved[index] & (part == 0), part == 1
    taken = pa.array(index)
    keys = pc.if_else(pa.array(leaves), old.take(taken), now.take(taken)).cast(pa.binary())
    everywhere = np.asarray(pc.equal(columns["op"].take(taken), "truncate"))
    topics = _constant(str(schema.table), len(index))
    own, partitions = select(topics, keys, everywhere)
    if len(own) != len(index) or everywhere.any():
        index, part, leaves, arrives = index[own], part[own], leaves[own], arrives[own]
        taken, keys, topics = pa.array(index), keys.take(pa.array(own)), topics.take(pa.array(own))
    if len(index) != rows or moved.any() or everywhere.any():
        columns = {name: column.take(taken) for name, column in columns.items()}
    moves = _moves(leaves, arrives, now.take(taken), old.take(taken))
    columns |= _parted(columns, leaves, arrives)
    rescued = None if net.rescued is None else _whole(net.rescued).take(taken)
    places = _places(columns, part)
    values = _lines(columns, keys, places, schema, source, moves, rescued)
    return Rendered(
        np.asarray(columns["commit_lsn"]).astype(np.uint64),
        np.asarray(columns["tx_ordinal"]).astype(np.uint64),
        part,
        places,
        keys,
        values.cast(pa.binary()),
        topics,
        pa.array(partitions),
        net.last_commit_time,
        net.rescues,
    )


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


def _whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _image(first: pa.StructArray, second: pa.StructArray) -> pa.StructArray:
    """The one image, or the other where that is null."""
    if not first.null_count:
        return first
    rows = np.arange(len(first))
    taken = np.where(np.asarray(first.is_valid()), rows, len(first) + rows)
    return pa.concat_arrays([first, second]).take(pa.array(taken))


def _key_texts(images: pa.StructArray, key: Sequence[str], rows: int) -> pa.Array:
    """The key of each image as JSON; null where there is no image, or no key."""
    if not key or not rows:
        return pa.nulls(rows, pa.string())
    texts = objects({name: pc.struct_field(images, name) for name in key}, rows)
    return pc.if_else(images.is_valid(), texts, pa.scalar(None, pa.string())) if images.null_count else texts


def _moved(columns: Mapping[str, pa.Array], now: pa.Array, old: pa.Array) -> Mask:
    """Which updates change their row's key."""
    is_update = pc.equal(columns["op"], "update")
    changed: Mask = np.asarray(pc.fill_null(pc.and_(is_update, pc.not_equal(now, old)), False))
    return changed


def _parted(columns: Mapping[str, pa.Array], leaves: Mask, arrives: Mask) -> dict[str, pa.Array]:
    """A change of a key as the two events that it is made into."""
    if not arrives.any() and not leaves.any():
        return {}
    going, coming = pa.array(leaves), pa.array(arrives)
    before, after, unchanged = columns["before"], columns["after"], columns["unchanged"]
    return {
        "op": pc.if_else(going, "delete", pc.if_else(coming, "insert", columns["op"])),
        "before": pc.if_else(coming, pa.scalar(None, before.type), before),
        "after": pc.if_else(going, pa.scalar(None, after.type), after),
        "unchanged": pc.if_else(going, pa.scalar(None, unchanged.type), unchanged),
    }


def _moves(leaves: Mask, arrives: Mask, now: pa.Array, old: pa.Array) -> pa.Array | None:
    if not arrives.any() and not leaves.any():
        return None
    to, of = _member("moved_to", now), _member("moved_from", old)
    return pc.if_else(pa.array(leaves), to, pc.if_else(pa.array(arrives), of, pa.scalar(None, pa.string())))


def _lines(
    columns: Mapping[str, pa.Array],
    keys: pa.Array,
    places: pa.Array,
    schema: TableSchema,
    source: str,
    moves: pa.Array | None,
    rescued: pa.Array | None,
) -> pa.Array:
    rows = len(keys)
    template = Template().text('{"op":').value(columns["op"]).text(',"source":').value(source)
    template.text(',"schema":').value(schema.table.schema).text(',"table":').value(schema.table.name)
    template.text(',"place":').value(places)
    template.text(',"change_position":').value(_hexadecimal_texts(columns["start_lsn"]))
    template.text(',"transaction":').value(columns["xid"]).text(',"commit_time":').value(columns["commit_time"])
    template.text(',"schema_version":').value(columns["schema_version"])
    template.text(',"key":').texts(keys.cast(pa.string()))
    template.text(',"before":').texts(_before_texts(columns["before"], schema))
    template.text(',"after":').texts(_after_texts(columns["after"], columns["unchanged"]))
    sometimes = [moves]
    if columns["unchanged"].null_count < rows:
        sometimes.insert(0, _member("unchanged", json_texts(columns["unchanged"])))
    if rescued is not None and rescued.null_count < rows:
        sometimes.append(_member("_rescued", json_texts(rescued)))
    for member in sometimes:
        if member is not None:
            template.texts(pc.fill_null(member, ""))
    return template.text("}").joined(rows)


def _member(name: str, texts: pa.Array) -> pa.Array:
    """A further member of an object, null where its value is null."""
    return pc.binary_join_element_wise(f',"{name}":', texts, "")


def _before_texts(before: pa.StructArray, schema: TableSchema) -> pa.Array:
    """Old images with the columns that the source sends of them: all, or those of the key."""
    if schema.identity == "full" or before.null_count == len(before):
        return json_texts(before)
    names = [field.name for field in before.type if field.name in schema.key]
    return json_texts(_with_fields(before, names))


def _after_texts(after: pa.StructArray, unchanged: pa.Array) -> pa.Array:
    """New images without the columns that were not sent: they are not null, they are not known."""
    texts = json_texts(after)
    if unchanged.null_count == len(unchanged):
        return texts
    lacking: dict[tuple[str, ...], list[int]] = {}
    for row, names in enumerate(unchanged.to_pylist()):
        if names:
            lacking.setdefault(tuple(names), []).append(row)
    for names, at in lacking.items():
        sent = [field.name for field in after.type if field.name not in names]
        mask = np.zeros(len(after), np.bool_)
        mask[at] = True
        texts = pc.replace_with_mask(texts, pa.array(mask), json_texts(_with_fields(after.take(pa.array(at)), sent)))
    return texts


def _with_fields(images: pa.StructArray, names: Sequence[str]) -> pa.StructArray:
    fields = [images.type.field(name) for name in names]
    arrays = [pc.struct_field(images, name) for name in names]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=pc.is_null(images))


def _places(columns: Mapping[str, pa.Array], part: npt.NDArray[np.int8]) -> pa.Array:
    commit, ordinal = _hexadecimal_texts(columns["commit_lsn"]), _hexadecimal_texts(columns["tx_ordinal"])
    places = pc.binary_join_element_wise(commit, ordinal, "/")
    if not part.any():
        return places
    return pc.binary_join_element_wise(places, pc.if_else(pa.array(part == 1), _MOVED, ""), "")


def _hexadecimal_texts(numbers: pa.Array) -> pa.Array:
    """16 hexadecimal digits per number."""
    octets = np.asarray(numbers).astype(np.uint64).astype(">u8").view(np.uint8).reshape(-1, 8)
    digits = np.empty((len(octets), 16), np.uint8)
    digits[:, 0::2], digits[:, 1::2] = _HEXADECIMAL[octets >> 4], _HEXADECIMAL[octets & 15]
    offsets = 16 * np.arange(len(octets) + 1, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), len(octets), [None, pa.py_buffer(offsets), pa.py_buffer(digits)])
