"""Debezium's envelope, as its connectors with default settings write it: in JSON and in Avro.

Values, schemas and names are those of Kafka Connect (`decode/connect.py`). docs/events.md lists where events differ
from the connector's, and why; `tests/integration/test_debezium.py` compares them field by field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.connect import ConnectType
from penstock.decode.dialect import dialect_named, dialect_of
from penstock.decode.verbatim import is_verbatim, typed
from penstock.errors import ColumnNotCarried
from penstock.model.table import ColumnType, TableSchema
from penstock.render.connect_avro import connect_schema, connect_values
from penstock.render.debezium_source import LONG, STRING, Values, source_type, source_values
from penstock.render.event import Events, Origin
from penstock.render.format import Envelope, Registry, Schemas
from penstock.render.images import unsent
from penstock.render.json_text import JsonRows, json_texts
from penstock.render.registry import prefixes

UNAVAILABLE = "__debezium_unavailable_value"
DELETED = "__deleted"
OPERATIONS = {"insert": "c", "update": "u", "delete": "d", "read": "r", "truncate": "t"}
Failures = dict[int, str]

_TRANSACTION = ConnectType(
    pa.null(),
    "struct",
    "event.block",
    fields=(("id", STRING, False), ("total_order", LONG, False), ("data_collection_order", LONG, False)),
)


@dataclass(frozen=True)
class Row:
    """Images of one side, column by column, as Connect has them. `failed` has the rows that have no such form."""

    there: npt.NDArray[np.bool_]
    names: tuple[str, ...]
    columns: tuple[pa.Array, ...]
    failed: Failures


class ConnectEvents:
    """Events of one table with Connect's types and values."""

    def __init__(self, events: Events) -> None:
        if not all(is_verbatim(type) or type.kind == "base" for type in events.types.values()):
            raise ColumnNotCarried(
                f"table {events.table}: Debezium's envelope needs values as the source wrote them",
                "Choose another envelope for streams with processors",
            )
        self.events = events
        self._dialect = dialect_named(events.dialect)

    @property
    def name(self) -> str:
        """Return what schemas of the table are named after: the topic that Debezium would publish to."""
        table = self.events.table
        return f"{self.events.origin.source}.{table.schema}.{table.name}"

    @cached_property
    def types(self) -> dict[str, ConnectType]:
        return {name: self._column(name, pa.array([], pa.string()))[0] for name in self._names}

    def row_type(self, names: Sequence[str], name: str) -> ConnectType:
        fields = tuple((one, self.types[one], one not in self.events.key) for one in names)
        return ConnectType(pa.null(), "struct", name, version=0, fields=fields)

    @property
    def value_type(self) -> ConnectType:
        return self.row_type(self._names, f"{self.name}.Value")

    @property
    def envelope_type(self) -> ConnectType:
        fields = (
            ("before", self.value_type, True),
            ("after", self.value_type, True),
            ("source", source_type(self.events.origin.connector), False),
            ("transaction", _TRANSACTION, True),
            ("op", STRING, False),
            ("ts_ms", LONG, True),
            ("ts_us", LONG, True),
            ("ts_ns", LONG, True),
        )
        return ConnectType(pa.null(), "struct", f"{self.name}.Envelope", version=2, fields=fields)

    def row(self, side: str) -> Row:
        """Return the images of one side. A column that was not sent says so."""
        images: pa.StructArray = getattr(self.events, side)
        there = np.asarray(images.is_valid())
        at = np.flatnonzero(there)
        present = images if len(at) == len(images) else images.filter(pa.array(there))
        found, failed = [], Failures()
        for name, texts in zip(self._names, present.flatten(), strict=True):
            kind, values, bad = self._column(name, texts)
            if name in self.events.key and values.null_count:  # of a text that this connector has a null for
                bad = bad | np.asarray(pc.and_(values.is_null(), texts.is_valid()))
            for row in np.flatnonzero(bad).tolist():
                text = texts[row].as_py()
                why = f'column "{name}": {str(text)[:40]!r} has no form as {kind.name or kind.type}'
                failed.setdefault(int(at[row]), why)
            if side == "after":
                values = self._with_unsent(name, values, at)
            found.append(values)
        return Row(there, tuple(self._names), tuple(found), failed)

    @property
    def operations(self) -> pa.Array:
        kinds = self.events.op.dictionary_encode()
        return pa.array([OPERATIONS[one] for one in kinds.dictionary.to_pylist()], pa.string()).take(kinds.indices)

    @property
    def source(self) -> Values:
        return source_values(self.events)

    @property
    def transaction(self) -> dict[str, pa.Array] | None:
        """Return the block that says where in its transaction an event stands; None where that is not asked for."""
        events = self.events
        if events.table_order is None:
            return None
        commit = pa.array(events.commit).cast(pa.string())
        return {
            "id": pc.binary_join_element_wise(events.transaction.cast(pa.string()), commit, ":"),
            "total_order": pa.array(events.ordinal.astype(np.int64) + 1),
            "data_collection_order": pa.array(events.table_order.astype(np.int64)),
        }

    @property
    def moments(self) -> dict[str, pa.Array]:
        source = self.source
        return {name: source[name] for name in ("ts_ms", "ts_us", "ts_ns")}

    @property
    def _names(self) -> list[str]:
        return [field.name for field in self.events.after.type]

    def _column(self, name: str, texts: pa.Array) -> tuple[ConnectType, pa.Array, npt.NDArray[np.bool_]]:
        type = self.events.types.get(name)
        if type is not None and is_verbatim(type):
            made = self._dialect.connect_column(typed(type), texts)
            return made.type, made.values, made.failed
        return _plain(texts.type if type is None else self._dialect.arrow_type(type), texts)

    def _with_unsent(self, name: str, values: pa.Array, at: npt.NDArray[np.int64]) -> pa.Array:
        """Return the column with Debezium's placeholder where the source did not send a value that an update kept."""
        unchanged = self.events.unchanged
        if unchanged.null_count == len(unchanged) or not len(values):
            return values
        lacks = unsent(unchanged.take(pa.array(at)), name)
        if not lacks.any():
            return values
        kind = values.type
        if pa.types.is_string(kind):
            placeholder = pa.scalar(UNAVAILABLE, kind)
        elif pa.types.is_binary(kind):
            placeholder = pa.scalar(UNAVAILABLE.encode(), kind)
        elif pa.types.is_list(kind) and pa.types.is_string(kind.value_type):
            placeholder = pa.scalar([UNAVAILABLE], kind)
        else:
            return values
        return pc.if_else(pa.array(lacks), placeholder, values)


def json_values(events: Events, envelope: Envelope) -> tuple[pa.Array, Failures]:
    """Return events as JsonConverter writes them, and those that have no such form."""
    made = ConnectEvents(events)
    if envelope.unwrap:
        return _unwrapped_json(made, envelope)
    before, after = made.row("before"), made.row("after")
    rows = JsonRows()
    if envelope.schemas == "inline":
        schema = made.envelope_type.schema(optional=False)
        rows.text('{"schema":' + json.dumps(schema, ensure_ascii=False) + ',"payload":')
    elif envelope.schemas == "empty":
        rows.text('{"schema":null,"payload":')
    rows.text('{"before":').texts(_objects(before)).text(',"after":').texts(_objects(after))
    rows.text(',"source":').object(made.source).text(',"transaction":')
    if made.transaction is None:
        rows.text("null")
    else:
        rows.object(made.transaction)
    rows.text(',"op":').plain(made.operations)
    for name, values in made.moments.items():
        rows.name(name).value(values)
    rows.text("}" if envelope.schemas == "none" else "}}")
    return rows.joined(len(events)).cast(pa.binary()), before.failed | after.failed


def avro_values(
    events: Events, registry: Registry, topics: pa.DictionaryArray, envelope: Envelope
) -> tuple[pa.Array, Failures]:
    """Return events as Confluent's converter writes Debezium's records."""
    made = ConnectEvents(events)
    if envelope.unwrap:
        return _unwrapped_avro(made, registry, topics, envelope)
    before, after = made.row("before"), made.row("after")
    kind = made.envelope_type
    prefix = prefixes(registry, topics, connect_schema(kind), f"{made.name}.Envelope", "value")
    content: dict[str, object] = {
        "before": (before.there, dict(zip(before.names, before.columns, strict=True))),
        "after": (after.there, dict(zip(after.names, after.columns, strict=True))),
        "source": made.source,
        "transaction": made.transaction,
        "op": made.operations,
        **made.moments,
    }
    return connect_values(prefix, kind, content, len(events)), before.failed | after.failed


def _unwrapped_json(made: ConnectEvents, envelope: Envelope) -> tuple[pa.Array, Failures]:
    """Return the rows of events alone: of a delete, the row that is gone."""
    row, columns, kind = _unwrapped(made, envelope)
    rows = JsonRows()
    if envelope.schemas == "inline":
        schema = kind.schema(optional=envelope.unwrap == "row")
        rows.text('{"schema":' + json.dumps(schema, ensure_ascii=False) + ',"payload":')
    elif envelope.schemas == "empty":
        rows.text('{"schema":null,"payload":')
    for number, (name, values) in enumerate(columns.items()):
        rows.name(name, first=not number).texts(json_texts(values))
    rows.text("}" if envelope.schemas == "none" else "}}")
    return rows.joined(len(made.events)).cast(pa.binary()), row.failed


def _unwrapped_avro(
    made: ConnectEvents, registry: Registry, topics: pa.DictionaryArray, envelope: Envelope
) -> tuple[pa.Array, Failures]:
    row, columns, kind = _unwrapped(made, envelope)
    prefix = prefixes(registry, topics, connect_schema(kind), kind.name, "value")
    return connect_values(prefix, kind, columns, len(made.events)), row.failed


def _unwrapped(made: ConnectEvents, envelope: Envelope) -> tuple[Row, dict[str, pa.Array], ConnectType]:
    """Return the rows, their columns, and the schema of these."""
    row, kind = made.row("after"), made.value_type
    columns = dict(zip(row.names, row.columns, strict=True))
    if envelope.unwrap == "row":
        return row, columns, kind
    columns[DELETED] = pc.if_else(pc.equal(made.events.op, "delete"), "true", "false")
    return row, columns, replace(kind, fields=(*kind.fields, (DELETED, STRING, True)))


def avro_keys(
    images: pa.StructArray,
    schema: TableSchema,
    types: Mapping[str, ColumnType],
    origin: Origin,
    registry: Registry,
    topics: pa.DictionaryArray,
) -> pa.Array:
    """Return the keys of rows as Confluent's converter writes them, null where there is no row."""
    valid = np.asarray(images.is_valid())
    if not schema.key or not valid.any():
        return pa.nulls(len(images), pa.binary())
    kind, made = _keys(images.filter(pa.array(valid)), schema, types, origin)
    prefix = prefixes(registry, topics, connect_schema(kind), kind.name, "key")
    if isinstance(prefix, pa.Array):
        prefix = prefix.filter(pa.array(valid))
    values = connect_values(prefix, kind, made, int(valid.sum()))
    return values if valid.all() else values.take(pa.array(np.cumsum(valid) - 1, mask=~valid))


def json_keys(
    images: pa.StructArray, schema: TableSchema, types: Mapping[str, ColumnType], origin: Origin, schemas: Schemas
) -> pa.Array:
    """Return the keys of rows as JsonConverter writes them, byte for byte, so that they are in Debezium's partitions.

    Null where there is no row.
    """
    valid = np.asarray(images.is_valid())
    if not schema.key or not valid.any():
        return pa.nulls(len(images), pa.binary())
    kind, made = _keys(images.filter(pa.array(valid)), schema, types, origin)
    rows = JsonRows()
    if schemas == "inline":
        described = json.dumps(kind.schema(optional=False), ensure_ascii=False, separators=(",", ":"))
        rows.text(f'{{"schema":{described},"payload":')
    for number, (name, values) in enumerate(made.items()):
        rows.name(name, first=not number).texts(json_texts(values))
    texts = rows.text("}}" if schemas == "inline" else "}").joined(int(valid.sum())).cast(pa.binary())
    return texts if valid.all() else texts.take(pa.array(np.cumsum(valid) - 1, mask=~valid))


def _keys(
    images: pa.StructArray, schema: TableSchema, types: Mapping[str, ColumnType], origin: Origin
) -> tuple[ConnectType, dict[str, pa.Array]]:
    """Return the schema of a table's keys, and their columns."""
    dialect = dialect_of(schema)
    made = {name: dialect.connect_column(typed(types[name]), pc.struct_field(images, name)) for name in schema.key}
    fields = tuple((name, column.type, False) for name, column in made.items())
    name = f"{origin.source}.{schema.table.schema}.{schema.table.name}.Key"
    kind = ConnectType(pa.null(), "struct", name, version=0, fields=fields)
    return kind, {name: column.values for name, column in made.items()}


def _objects(row: Row) -> pa.Array:
    count = int(row.there.sum())
    if not count:
        return pa.nulls(len(row.there), pa.string())
    made = JsonRows()
    for number, (name, column) in enumerate(zip(row.names, row.columns, strict=True)):
        made.name(name, first=not number).texts(json_texts(column))
    texts = made.text("}" if row.names else "{}").joined(count)
    return texts if count == len(row.there) else texts.take(pa.array(np.cumsum(row.there) - 1, mask=~row.there))


def _plain(kind: pa.DataType, values: pa.Array) -> tuple[ConnectType, pa.Array, npt.NDArray[np.bool_]]:
    """Return a column that penstock adds: a mask or a constant."""
    sound = np.zeros(len(values), np.bool_)
    if pa.types.is_boolean(kind):
        return ConnectType(pa.bool_(), "boolean"), values.cast(pa.bool_()), sound
    if pa.types.is_integer(kind):
        return ConnectType(pa.int64(), "int64"), values.cast(pa.int64()), sound
    return STRING, values.cast(pa.string()), sound
