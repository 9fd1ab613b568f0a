"""Events as the values of records, and their rows' keys, in the envelope and encoding of a format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.source_events import is_source_event
from penstock.model.table import ColumnType, TableId, TableSchema
from penstock.render import debezium, native_avro
from penstock.render.deltaforge import deltaforge
from penstock.render.envelopes import cloudevents, faucet, native
from penstock.render.event import Events, Mask, Origin
from penstock.render.format import EventFormat
from penstock.render.records import Divided, image_of
from penstock.render.source_events import source_values

Failures = dict[int, str]  # by row, why it cannot be written


def rendered_values(
    events: Events, format: EventFormat, topics: pa.DictionaryArray, tombstones: Mask
) -> tuple[pa.Array, Failures]:
    """Return a binary value per event, null for tombstones, and the events that cannot be written."""
    if not tombstones.any():
        return _written(events, format, topics)
    at = np.flatnonzero(~tombstones)
    values, failed = _written(events.take(at), format, topics.take(pa.array(at)))
    place = np.cumsum(~tombstones) - 1
    return values.take(pa.array(place, mask=tombstones)), {int(at[row]): why for row, why in failed.items()}


def avro_keys(
    columns: Mapping[str, pa.Array],
    records: Divided,
    schema: TableSchema,
    types: Mapping[str, ColumnType],
    origin: Origin,
    format: EventFormat,
    topics: pa.DictionaryArray,
) -> pa.Array:
    """Return the keys of records in Avro, null for records without one."""
    images = _rows(columns, records)
    assert format.registry is not None
    if format.envelope.type == "debezium":
        return debezium.avro_keys(images, schema, types, origin, format.registry, topics)
    return native_avro.avro_keys(images, schema, types, origin, format.registry, topics)


def has_debezium_keys(format: EventFormat, table: TableId) -> bool:
    """Return whether records of a table have keys as Debezium has them in JSON."""
    is_plain = format.key is None and format.registry is None and not is_source_event(table)
    return is_plain and format.envelope.type == "debezium"


def debezium_keys(
    columns: Mapping[str, pa.Array],
    records: Divided,
    schema: TableSchema,
    types: Mapping[str, ColumnType],
    origin: Origin,
    format: EventFormat,
) -> pa.Array:
    """Return the keys of records as Debezium has them in JSON, null for records without one."""
    return debezium.json_keys(_rows(columns, records), schema, types, origin, format.envelope.schemas)


def _rows(columns: Mapping[str, pa.Array], records: Divided) -> pa.StructArray:
    """Return the row whose key each record has."""
    taken = pa.array(records.index)
    images = image_of(columns["after"], columns["before"]).take(taken)
    if records.from_old.any():
        images = pc.if_else(pa.array(records.from_old), columns["before"].take(taken), images)
    return images


def _written(events: Events, format: EventFormat, topics: pa.DictionaryArray) -> tuple[pa.Array, Failures]:
    if not len(events):
        return pa.array([], pa.binary()), {}
    kind = format.envelope.type
    if is_source_event(events.table):
        return source_values(events, format), {}
    if format.envelope.unwrap:
        events = replace(events, after=image_of(events.after, events.before))
    if format.registry is not None and kind == "debezium":
        return debezium.avro_values(events, format.registry, topics, format.envelope)
    if format.registry is not None:
        return native_avro.avro_values(events, format.registry, topics)
    if kind == "debezium":
        return debezium.json_values(events, format.envelope)
    if kind == "cloudevents":
        return cloudevents(events, format.envelope).cast(pa.binary()), {}
    write_json = {"faucet": faucet, "deltaforge": deltaforge}.get(kind, native)
    return write_json(events).cast(pa.binary()), {}
