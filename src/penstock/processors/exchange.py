"""What a worker and its child send one another: events as Arrow IPC streams, each behind its kind and its length.

| column        | holds                                                                                      |
|---------------|--------------------------------------------------------------------------------------------|
| event         | the number of the event. Rows with the same number are several events made of one          |
| op            | insert, update, delete, truncate or read                                                   |
| before, after | the images, as structs; null where there is none                                           |
| unchanged     | columns that are null in `after` because the source did not send them                      |
| schema, table, place, commit_time, transaction | facts; changing them changes nothing                      |
| topic, key, headers | only in an answer, and only if wanted: where the event goes                          |
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.processors.batch import (
    OPERATIONS,
    UNCHANGED_TYPE,
    EventBatch,
    Facts,
    Route,
    StepFailed,
    columns_of,
    images_of,
)

FRAME = struct.Struct(">cQ")
READY, FAILED = b"R", b"F"
HEADERS_TYPE = pa.map_(pa.string(), pa.binary())


def table_of(batch: EventBatch) -> pa.Table:
    """Return events as a function of the user's sees them."""
    facts, rows = batch.facts, len(batch)
    columns = {
        "event": pa.array(batch.origin),
        "op": batch.op,
        "schema": pa.repeat(facts.schema, rows),
        "table": pa.repeat(facts.table, rows),
        "place": batch.fact(facts.places),
        "commit_time": batch.fact(facts.commit_time),
        "transaction": batch.fact(facts.transaction),
        "before": batch.before,
        "after": batch.after,
        "unchanged": batch.unchanged,
    }
    return pa.table(columns)


def batch_of_table(table: pa.Table, key: Sequence[str]) -> EventBatch:
    """Return what `table_of` was given, without routes. Its events are numbered from 0 here."""
    columns = {name: _whole(table[name]) for name in table.column_names}
    named = {name: columns[name][0].as_py() if table.num_rows else "" for name in ("schema", "table")}
    facts = Facts(
        named["schema"], named["table"], tuple(key), columns["place"], columns["commit_time"], columns["transaction"]
    )
    return EventBatch(
        facts,
        np.arange(table.num_rows),
        columns["op"],
        columns["before"],
        columns["after"],
        columns["unchanged"].cast(UNCHANGED_TYPE),
    )


def to_octets(batch: EventBatch) -> bytes:
    return written(table_of(batch))


def written(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def from_octets(given: EventBatch, octets: bytes, adds: Sequence[str]) -> EventBatch:
    """Return the events of an answer. StepFailed when it is none."""
    try:
        table = pa.ipc.open_stream(octets).read_all()
    except (pa.ArrowException, OSError) as error:
        raise StepFailed("nonsense", f"its answer cannot be read: {error}") from error
    for name, fits in (("event", pa.types.is_integer), ("op", pa.types.is_string)):
        if name not in table.column_names or not fits(table[name].type) or table[name].null_count:
            raise StepFailed(
                "nonsense", f"it returned a table whose column `{name}` is missing, null or of another type"
            )
    origin = np.asarray(_whole(table["event"])).astype(np.int64)
    known = {number: row for row, number in enumerate(given.origin.tolist())}
    unknown = [number for number in origin.tolist() if number not in known]
    if unknown:
        raise StepFailed("nonsense", f"it returned an event numbered {unknown[0]}, which it was not given")
    op = _whole(table["op"])
    wrong = pc.filter(op, pc.invert(pc.is_in(op, value_set=pa.array(OPERATIONS))))
    if len(wrong):
        raise StepFailed("nonsense", f"it returned the operation {wrong[0].as_py()!r}")
    order = np.argsort(np.array([known[number] for number in origin.tolist()], np.int64), kind="stable")
    table, origin, op = table.take(pa.array(order)), origin[order], op.take(pa.array(order))
    rows = pa.array([known[number] for number in origin.tolist()], pa.int64())
    return replace(
        given,
        origin=origin,
        op=op,
        before=_images(given.before, table, "before", adds),
        after=_images(given.after, table, "after", adds),
        unchanged=given.unchanged.take(rows),
        route=_route(given, table, rows),
    )


def _images(given: pa.StructArray, table: pa.Table, side: str, adds: Sequence[str]) -> pa.StructArray:
    """Return images with the table's columns and those that are added, in that order; null where one is missing."""
    if side not in table.column_names:
        raise StepFailed("nonsense", f"it returned a table without column `{side}`")
    images = _whole(table[side])
    if pa.types.is_null(images.type):
        images = pa.nulls(len(images), given.type)
    if not pa.types.is_struct(images.type):
        raise StepFailed("nonsense", f"it returned {images.type} as `{side}`, not an image")
    columns, known = columns_of(images), [field.name for field in given.type]
    names = [*known, *(name for name in adds if name not in known)]
    strange = [name for name in columns if name not in names]
    if strange:
        raise StepFailed(
            "nonsense", f"it returned column {strange[0]}, which is neither the table's nor named in `adds`"
        )
    missing = {
        name: pa.nulls(len(images), given.type.field(name).type if name in known else pa.string()) for name in names
    }
    return images_of({name: columns.get(name, missing[name]) for name in names}, images.is_null())


def _route(given: EventBatch, table: pa.Table, rows: pa.Array) -> Route | None:
    wanted = [name for name in ("topic", "key", "headers") if name in table.column_names]
    if not wanted:
        return None if given.route is None else given.route.take(rows)
    before = Route.none(len(rows)) if given.route is None else given.route.take(rows)
    try:
        topic = _whole(table["topic"]).cast(pa.string()) if "topic" in wanted else before.topic
        key = _whole(table["key"]).cast(pa.binary()) if "key" in wanted else before.key
        headers = _headers(_whole(table["headers"])) if "headers" in wanted else {}
    except (pa.ArrowException, AttributeError, TypeError, ValueError) as error:
        raise StepFailed("nonsense", f"it returned a topic, key or headers of the wrong type: {error}") from error
    return Route(
        pc.coalesce(topic, before.topic), pc.coalesce(key, before.key), before.value, {**before.headers, **headers}
    )


def _headers(values: pa.Array) -> dict[str, pa.Array]:
    found = [dict(one) if one is not None else {} for one in values.cast(HEADERS_TYPE).to_pylist()]
    names = dict.fromkeys(name for one in found for name in one)
    return {name: pa.array([one.get(name) for one in found], pa.binary()) for name in names}


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
