"""penstock's own envelope in Avro. Schemas come from the tables' structures, never from values.

A column is what its declared type is in a lake: numeric(p, s) a decimal, timestamptz a moment. A numeric without a
declared precision is text, digit for digit. A value that its column's type cannot hold (`infinity`, an array of several
dimensions) cannot be written: its event is a dead letter, unless the rule says `types: {column: text}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.dialect import Dialect, dialect_named, dialect_of
from penstock.decode.verbatim import is_verbatim, typed
from penstock.model.table import ColumnType, TableId, TableSchema
from penstock.render import avro
from penstock.render.avro import Schema, avro_name, avro_type
from penstock.render.event import Events, Origin, hexadecimal_texts
from penstock.render.format import Registry
from penstock.render.registry import prefixes

Failures = dict[int, str]
_MOMENT: Schema = {"type": "long", "logicalType": "timestamp-micros"}
_WORDS: Schema = {"type": "array", "items": "string"}


def avro_values(events: Events, registry: Registry, topics: pa.DictionaryArray) -> tuple[pa.Array, Failures]:
    """Return framed records, and the events that cannot be written."""
    failed: Failures = {}
    before, after = _typed(events, "before", failed), _typed(events, "after", failed)
    schema = event_schema(events, after.type)
    prefix = prefixes(registry, topics, schema, f"{schema['namespace']}.{schema['name']}", "value")
    origin = events.origin
    rows = len(events)
    kinds = pc.if_else(pa.array(events.before_is_full), "full", "key")
    kinds = pc.if_else(events.before.is_valid(), kinds, pa.scalar(None, pa.string()))
    sequence = None if events.version is None else events.version[1]
    parts: list[bytes | pa.Array] = [
        prefix,
        avro.values(events.op),
        avro.values(events.ids),
        *(
            _constant(one)
            for one in (origin.source, origin.database_of(events.table), events.table.schema, events.table.name)
        ),
        _constant(events.table_id),
        avro.values(events.places),
        *avro.union_parts(hexadecimal_texts(events.change_position)),
        *avro.union_parts(events.transaction),
        avro.values(events.commit_time),
        _constant(events.fingerprint),
        *([avro.NULL] if sequence is None else [avro.VALUE, _constant(sequence)]),
        *avro.union_parts(events.keys),
        *avro.union_parts(before),
        *avro.union_parts(after),
        *avro.union_parts(kinds),
        *_words(events.unchanged),
        *_words(events.truncate_options),
    ]
    return avro.joined(parts, rows), failed


def event_schema(events: Events, image: pa.StructType) -> dict[str, object]:
    """Return the schema of a table's events."""
    name = avro_name(events.table.name)
    strings: list[tuple[str, Schema]] = [
        (one, "string") for one in ("op", "id", "source", "database", "schema", "table")
    ]
    required = [*strings, ("table_id", "long"), ("place", "string")]
    return {
        "type": "record",
        "name": f"{name}_event",
        "namespace": namespace(events.origin.source, events.table),
        "fields": [
            *({"name": field, "type": kind} for field, kind in required),
            _optional("change_position", "string"),
            _optional("transaction", "long"),
            {"name": "commit_time", "type": _MOMENT},
            {"name": "schema_version", "type": "string"},
            _optional("schema_sequence", "long"),
            _optional("key", "string"),
            _optional("before", avro_type(image, f"{name}_row")),
            _optional("after", f"{name}_row"),
            _optional("before_kind", "string"),
            _optional("unchanged", _WORDS),
            _optional("truncate_options", _WORDS),
        ],
    }


def namespace(source: str, table: TableId) -> str:
    return ".".join(avro_name(part) for part in ("penstock", source, table.schema))


def avro_keys(
    images: pa.StructArray,
    schema: TableSchema,
    types: Mapping[str, ColumnType],
    origin: Origin,
    registry: Registry,
    topics: pa.DictionaryArray,
) -> pa.Array:
    """Return the keys of rows as framed records, null where there is no row. A key column always fits its type."""
    valid = np.asarray(images.is_valid())
    if not schema.key or not valid.any():
        return pa.nulls(len(images), pa.binary())
    dialect = dialect_of(schema)
    there = images.filter(pa.array(valid))
    columns = [_column(dialect, types.get(name), pc.struct_field(there, name))[0] for name in schema.key]
    kind = pa.struct([pa.field(name, column.type) for name, column in zip(schema.key, columns, strict=True)])
    name, space = f"{avro_name(schema.table.name)}_key", namespace(origin.source, schema.table)
    prefix = prefixes(registry, topics, {**_record_of(kind, name), "namespace": space}, f"{space}.{name}", "key")
    if isinstance(prefix, pa.Array):
        prefix = prefix.filter(pa.array(valid))
    made = avro.joined([prefix, *(avro.values(column) for column in columns)], len(there))
    return made if valid.all() else made.take(pa.array(np.cumsum(valid) - 1, mask=~valid))


def _record_of(kind: pa.StructType, name: str) -> dict[str, object]:
    fields = [
        {"name": avro_name(one.name), "type": avro_type(one.type, f"{name}_{avro_name(one.name)}")} for one in kind
    ]
    return {"type": "record", "name": name, "fields": fields}


def _typed(events: Events, side: str, failed: Failures) -> pa.StructArray:
    """Return the images with their columns' types; rows that do not fit go to `failed`."""
    images: pa.StructArray = getattr(events, side)
    dialect = dialect_named(events.dialect)
    valid = np.asarray(images.is_valid())
    at = np.flatnonzero(valid)
    there = images if valid.all() else images.filter(pa.array(valid))
    columns, fields = [], []
    for field, texts in zip(images.type, there.flatten(), strict=True):
        values, bad = _column(dialect, events.types.get(field.name), texts)
        for row in np.flatnonzero(bad).tolist():
            why = f'column "{field.name}": {str(texts[row].as_py())[:40]!r} does not fit {values.type}'
            failed.setdefault(int(at[row]), why)
        columns.append(values)
        fields.append(pa.field(field.name, values.type))
    made = pa.StructArray.from_arrays(columns, fields=fields) if fields else there
    return made if valid.all() else made.take(pa.array(np.cumsum(valid) - 1, mask=~valid))


def _column(dialect: Dialect, type: ColumnType | None, texts: pa.Array) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    sound = np.zeros(len(texts), np.bool_)
    if type is None or not is_verbatim(type):
        return texts, sound
    plain = typed(type)
    if pa.types.is_decimal(dialect.arrow_type(plain)) and plain.modifier < 0 and not plain.carried_as:
        return texts, sound
    return dialect.fitted(plain, texts.cast(pa.binary()))


def _words(lists: pa.Array) -> list[bytes | pa.Array]:
    """Return lists of words, whose items are never null."""
    if lists.null_count == len(lists):
        return [avro.NULL]
    written = [None if one is None else _encoded(one) for one in lists.to_pylist()]
    return [pc.binary_join_element_wise(pa.scalar(avro.VALUE), pa.array(written, pa.binary()), avro.EMPTY)]


def _encoded(words: Sequence[str]) -> bytes:
    items = b"".join(_constant(word) for word in words)
    return _constant(len(words)) + items + (b"\x00" if words else b"")


def _constant(value: str | int) -> bytes:
    encoded: bytes = avro.values(pa.array([value]))[0].as_py()
    return encoded


def _optional(name: str, kind: Schema) -> dict[str, object]:
    return {"name": name, "type": ["null", kind], "default": None}
