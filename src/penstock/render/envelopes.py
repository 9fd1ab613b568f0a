"""Envelopes in JSON: penstock's own, faucet's and CloudEvents. Debezium's is in `debezium.py`.

penstock's own (`native`):

| key               | holds                                                                                     |
|-------------------|-------------------------------------------------------------------------------------------|
| op                | insert, update, delete, truncate; read, for a row that was there before                   |
| id                | `{source}/{table id}/{place}`: unique, and the same whenever the event is made            |
| source            | the source's name in the pipeline                                                         |
| sid               | only where the source has one: the value that its rows carry in shared tables             |
| database          | the source's database                                                                     |
| schema, table     | the table's name at its source                                                            |
| table_id          | the number by which the source knows it                                                   |
| place             | commit position and ordinal: with the table unique, and text order is stream order        |
| change_position   | where the change itself stands in the source's log, 16 hexadecimal digits                 |
| transaction       | the number of its transaction                                                             |
| commit_time       | when that was committed                                                                   |
| schema_version    | the fingerprint, in the schema registry, of the structure that the event is under         |
| schema_sequence   | only once the registry has it: the number of that entry                                   |
| key               | the key columns of the row; null in a table without a key, and for a truncate             |
| before            | the old image: all columns where the source sends them, else the key; null without one    |
| after             | the new image, without columns that the source did not send; null without one             |
| before_kind       | only where there is an old image: `key` or `full`                                         |
| unchanged         | only where there are any: columns that an update left alone and the source did not send   |
| truncate_options  | only of a truncate: `cascade`, `restart_identity`                                         |
| moved_to          | only of a delete that stands for a change of the key: the key that the row has now        |
| moved_from        | only of the insert that follows it: the key that the row had                              |
| _rescued          | only where there are any: values that are no text of the source's encoding                |
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.render.event import Events, hexadecimal_texts, position_texts
from penstock.render.format import Envelope
from penstock.render.images import ImageWriter, after_texts, before_texts
from penstock.render.json_text import JsonRows, json_texts

_CLOUD_TYPES = {
    "insert": "created",
    "update": "updated",
    "delete": "deleted",
    "read": "snapshot",
    "truncate": "truncated",
}


def native(events: Events) -> pa.Array:
    """Return penstock's own envelope."""
    writer = ImageWriter(events.types, events.dialect)
    origin = events.origin
    head = {"source": origin.source} | ({} if origin.sid is None else {"sid": origin.sid})
    head |= {"database": origin.database_of(events.table), "schema": events.table.schema, "table": events.table.name}
    rows = JsonRows().text('{"op":').plain(events.op).text(',"id":').plain(events.ids)
    for name, value in {**head, "table_id": events.table_id}.items():
        rows.name(name).value(value)
    rows.text(',"place":').plain(events.places)
    rows.text(',"change_position":').value(hexadecimal_texts(events.change_position))
    rows.text(',"transaction":').value(events.transaction).text(',"commit_time":').value(events.commit_time)
    rows.text(',"schema_version":').value(events.fingerprint)
    if events.version is not None:
        rows.text(',"schema_sequence":').value(events.version[1])
    rows.text(',"key":').texts(events.keys)
    rows.text(',"before":').texts(before_texts(events, writer))
    rows.text(',"after":').texts(after_texts(events, writer))
    for member in _sometimes(events):
        rows.texts(pc.fill_null(member, ""))
    return rows.text("}").joined(len(events))


def _sometimes(events: Events) -> Sequence[pa.Array]:
    """Return further members, null for events that do not have them."""
    count, found = len(events), []
    if events.before.null_count < count:
        kinds = pc.if_else(pa.array(events.before_is_full), "full", "key")
        there = pc.if_else(events.before.is_valid(), kinds, pa.scalar(None, pa.string()))
        found.append(pc.binary_join_element_wise(',"before_kind":"', there, '"', ""))
    if events.unchanged.null_count < count:
        found.append(member("unchanged", json_texts(events.unchanged)))
    if events.truncate_options.null_count < count:
        found.append(member("truncate_options", json_texts(events.truncate_options)))
    if events.moves is not None:
        found.append(events.moves)
    if events.rescued is not None and events.rescued.null_count < count:
        found.append(member("_rescued", json_texts(events.rescued)))
    return found


def member(name: str, texts: pa.Array) -> pa.Array:
    """Return a further member of an object, null where its value is null."""
    return pc.binary_join_element_wise(f',"{name}":', texts, "")


def faucet(events: Events) -> pa.Array:
    """Return the seven keys that faucet's readers know, in its order. Values are Postgres' texts where JSON allows."""
    writer = ImageWriter(events.types, events.dialect, raw=True)
    rows = JsonRows().text('{"op":').plain(events.op)
    rows.name("schema").value(events.table.schema).name("table").value(events.table.name)
    rows.text(',"lsn":').plain(position_texts(events.commit)).text(',"ts_ms":').value(events.milliseconds)
    rows.text(',"before":').texts(writer.objects(events.before))  # a key and nulls, where the source sends the key
    rows.text(',"after":').texts(after_texts(events, writer, name_unsent=True))
    return rows.text("}").joined(len(events))


def cloudevents(events: Events, envelope: Envelope) -> pa.Array:
    """Return CloudEvents 1.0, structured, with `before`, `after` and `op` as data."""
    writer = ImageWriter(events.types, events.dialect)
    table = f"{events.table.schema}.{events.table.name}"
    kinds = events.op.dictionary_encode()
    names = [f"{envelope.prefix}.{_CLOUD_TYPES.get(one, one)}" for one in kinds.dictionary.to_pylist()]
    rows = JsonRows().text('{"specversion":"1.0","id":').plain(events.ids)
    rows.name("source").value(f"penstock/{events.origin.source}/{table}")
    rows.text(',"type":').value(pa.array(names, pa.string()).take(kinds.indices))
    rows.text(',"time":').plain(_to_milliseconds(events)).name("datacontenttype").value("application/json")
    rows.name("subject").value(table).text(',"data":{')
    before, after = before_texts(events, writer), after_texts(events, writer)
    if envelope.null_images:
        rows.text('"before":').texts(before).text(',"after":').texts(after).text(",")
    else:
        for name, image in (("before", before), ("after", after)):
            rows.texts(pc.fill_null(pc.binary_join_element_wise(f'"{name}":', image, ",", ""), ""))
    return rows.text('"op":').plain(events.op).text("}}").joined(len(events))


def _to_milliseconds(events: Events) -> pa.Array:
    """Return commit times with three digits behind the second, and Z."""
    moments = pa.array(np.asarray(events.milliseconds), pa.int64()).cast(pa.timestamp("ms")).cast(pa.string())
    return pc.binary_join_element_wise(pc.binary_replace_slice(moments, 10, 11, "T"), "Z", "")
