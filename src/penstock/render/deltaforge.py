"""DeltaForge's envelope, which it calls `native`: Debezium's keys, values as the source writes them, and its own keys.

| key                                 | holds                                                                   |
|-------------------------------------|-------------------------------------------------------------------------|
| before, after                       | the images; before is the key and nulls where no more was sent          |
| source                              | version, connector, name, ts_ms, db, schema, table, lsn, txId; snapshot |
|                                     | only of a row that was there before                                     |
| op                                  | c, u, d, r, t                                                           |
| ts_ms                               | when the transaction was committed                                      |
| transaction                         | its `id`; not of a row that was there before                            |
| event_id                            | a UUID of the event's id, so the same whenever the event is made        |
| tenant_id                           | only where the pipeline has a tenant                                    |
| schema_version, schema_sequence     | the structure's fingerprint; its number, once the registry has it       |

In an image, bytes are `{"_base64":…}`, and a value that the source did not send is `{"_unchanged":true}`.
"""

from __future__ import annotations

import hashlib
import uuid

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.verbatim import is_verbatim, typed
from penstock.model.table import ColumnType
from penstock.render.debezium import OPERATIONS
from penstock.render.debezium_source import source_values
from penstock.render.event import Events, position_texts
from penstock.render.images import ImageWriter, unsent
from penstock.render.json_text import JsonRows
from penstock.version import __version__

_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "penstock:event")
_VARIANTS = np.frombuffer(b"89ab", np.uint8)
_DIGITS = np.array([place for place in range(36) if place not in (8, 13, 18, 23)])  # of a UUID's text, but its dashes
_UNCHANGED = '{"_unchanged":true}'


class _Writer(ImageWriter):
    """Writes values as DeltaForge's readers expect them."""

    def __init__(self, events: Events) -> None:
        super().__init__(events.types, events.dialect, raw=True)
        self._bytes = {name for name, type in events.types.items() if _holds_bytes(type)}

    def column(self, name: str, values: pa.Array) -> pa.Array:
        texts = super().column(name, values)
        return pc.binary_join_element_wise('{"_base64":', texts, "}", "") if name in self._bytes else texts


def deltaforge(events: Events) -> pa.Array:
    """Return the keys that DeltaForge's readers know, in its order."""
    writer = _Writer(events)
    rows = JsonRows().text('{"before":').texts(writer.objects(events.before))
    rows.text(',"after":').texts(_after(events, writer))
    _write_source(rows, events)
    kinds = events.op.dictionary_encode()
    words = pa.array([OPERATIONS[one] for one in kinds.dictionary.to_pylist()], pa.string())
    rows.text(',"op":').plain(words.take(kinds.indices)).text(',"ts_ms":').value(events.milliseconds)
    rows.texts(_sometimes(',"transaction":{"id":"', events.transaction.cast(pa.string()), '"}'))
    rows.text(',"event_id":').plain(_uuids(events.ids))
    if events.origin.tenant:
        rows.name("tenant_id").value(events.origin.tenant)
    rows.name("schema_version").value(events.fingerprint)
    if events.version is not None:
        rows.name("schema_sequence").value(events.version[1])
    return rows.text("}").joined(len(events))


def _write_source(rows: JsonRows, events: Events) -> None:
    """Write the block that says where an event comes from."""
    origin = events.origin
    rows.name("source").text(f'{{"version":"penstock-{__version__}","connector":').value(origin.connector)
    rows.name("name").value(origin.source).text(',"ts_ms":').value(events.milliseconds)
    rows.name("db").value(origin.database_of(events.table))
    is_postgres = origin.connector == "postgresql"
    if is_postgres:
        rows.name("schema").value(events.table.schema)
    rows.name("table").value(events.table.name)
    rows.texts(pc.if_else(pc.equal(events.op, "read"), ',"snapshot":"true"', ""))
    if is_postgres:
        rows.text(',"lsn":').plain(_positions(events))
        rows.texts(_sometimes(',"txId":', events.transaction.cast(pa.string())))
    else:
        found = source_values(events)
        for name in ("file", "pos", "row"):
            rows.name(name).value(found[name])
    rows.text("}")


def _after(events: Events, writer: ImageWriter) -> pa.Array:
    """Return new images with a word in place of each value that was not sent."""
    if events.unchanged.null_count == len(events):
        return writer.objects(events.after)
    there = np.asarray(events.after.is_valid())
    images = events.after.filter(pa.array(there))
    listed = events.unchanged.filter(pa.array(there))
    rows = JsonRows()
    for number, (field, values) in enumerate(zip(images.type, images.flatten(), strict=True)):
        texts = writer.column(field.name, values)
        rows.name(field.name, first=not number)
        rows.texts(pc.if_else(pa.array(unsent(listed, field.name)), _UNCHANGED, texts))
    written = rows.text("}" if images.type.num_fields else "{}").joined(len(images))
    return written.take(pa.array(np.cumsum(there) - 1, mask=~there))


def _positions(events: Events) -> pa.Array:
    """Return where changes are in the source's log; of a row of the copy, the snapshot's position."""
    commit = pa.array(events.commit)
    return position_texts(np.asarray(pc.coalesce(events.change_position.cast(pa.uint64()), commit)).astype(np.uint64))


def _uuids(names: pa.Array) -> pa.Array:
    """Return the UUID of version 5 of each name, as `uuid.uuid5` makes it."""
    space = _NAMESPACE.bytes
    hashes = b"".join(hashlib.sha1(space + name).digest()[:16] for name in names.cast(pa.binary()).to_pylist())
    digits = np.frombuffer(hashes.hex().encode(), np.uint8).reshape(-1, 32).copy()
    digits[:, 12] = ord("5")
    digits[:, 16] = _VARIANTS[np.frombuffer(hashes, np.uint8)[8::16] >> 4 & 3]
    texts = np.full((len(digits), 36), ord("-"), np.uint8)
    texts[:, _DIGITS] = digits
    offsets = pa.py_buffer(36 * np.arange(len(digits) + 1, dtype=np.int32))
    return pa.Array.from_buffers(pa.string(), len(digits), [None, offsets, pa.py_buffer(texts)])


def _sometimes(before: str, texts: pa.Array, after: str = "") -> pa.Array:
    """Return a member, and nothing where its value is null."""
    return pc.fill_null(pc.binary_join_element_wise(before, texts, after, ""), "")


def _holds_bytes(type: ColumnType) -> bool:
    own = typed(type) if is_verbatim(type) else type
    return own.kind == "base" and own.name == "bytea" and own.carried_as != "text"
