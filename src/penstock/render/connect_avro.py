"""Connect's schemas and values in Avro, named and framed as Confluent's converter does it. Used by `debezium.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.connect import ConnectType
from penstock.render import avro
from penstock.render.avro import NULL, VALUE, Schema, avro_name

_PLAIN = {
    "boolean": "boolean",
    "int32": "int",
    "int64": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "bytes",
}


def connect_schema(kind: ConnectType) -> Schema:
    """Return the Avro schema of a Connect type. A record that occurs twice is defined where it comes first."""
    return _schema(kind, set())


def _schema(kind: ConnectType, seen: set[str]) -> Schema:
    if kind.type == "struct":
        return _record(kind, seen)
    if kind.type == "array" and kind.items is not None:
        return {"type": "array", "items": ["null", _schema(kind.items, seen)]}
    if kind.type == "int16":
        return {"type": "int", "connect.type": "int16"}
    plain = _PLAIN[kind.type]
    if not kind.name:
        return plain
    made: dict[str, Any] = {"type": plain}
    parameters = dict(kind.parameters)
    if kind.name == "org.apache.kafka.connect.data.Decimal":
        made["scale"] = int(parameters["scale"])
        if "connect.decimal.precision" in parameters:
            made["precision"] = int(parameters["connect.decimal.precision"])
        made["logicalType"] = "decimal"
    if kind.doc:
        made["connect.doc"] = kind.doc
    made["connect.version"] = kind.version
    if parameters:
        made["connect.parameters"] = parameters
    if kind.default:
        made["connect.default"] = kind.default
    made["connect.name"] = kind.name
    return made


def _record(kind: ConnectType, seen: set[str]) -> Schema:
    space, _, name = kind.name.rpartition(".")
    space = ".".join(avro_name(part) for part in space.split(".")) if space else ""
    full = f"{space}.{avro_name(name)}" if space else avro_name(name)
    if full in seen:
        return full
    seen.add(full)
    fields = []
    for field, one, optional in kind.fields:
        schema = _schema(one, seen)
        described: dict[str, Any] = {"name": avro_name(field), "type": schema}
        if optional:  # a union's default is of its first type
            described["type"] = [schema, "null"] if one.default else ["null", schema]
            described["default"] = one.default or None
        fields.append(described)
    made = {"type": "record", "name": avro_name(name), **({"namespace": space} if space else {}), "fields": fields}
    described = {"connect.doc": kind.doc} if kind.doc else {}
    version = {"connect.version": kind.version} if kind.version else {}
    return made | described | version | {"connect.name": kind.name}


def connect_values(prefix: pa.Array | bytes, kind: ConnectType, content: dict[str, Any], rows: int) -> pa.Array:
    """Return one framed record per row.

    `content` has a value by field: a column, a constant, None, a block of such values, or rows with a mask that says
    which are there.
    """
    return avro.joined([prefix, *_fields(kind, content, rows)], rows)


def _fields(kind: ConnectType, content: dict[str, Any], rows: int) -> list[bytes | pa.Array]:
    return [part for name, one, optional in kind.fields for part in _parts(one, content[name], rows, optional=optional)]


def _parts(kind: ConnectType, value: Any, rows: int, *, optional: bool) -> list[bytes | pa.Array]:
    null, present = (VALUE, NULL) if kind.default else (NULL, VALUE)  # places in the union
    if value is None:
        return [null]
    lead: list[bytes | pa.Array] = [present] if optional else []
    if isinstance(value, dict):
        return [*lead, *_fields(kind, value, rows)]
    if isinstance(value, tuple):
        there, columns = value
        if not there.any():
            return [null]
        made = avro.joined([*lead, *_fields(kind, columns, int(there.sum()))], int(there.sum()))
        return [made if there.all() else made.take(pa.array(np.cumsum(there) - 1, mask=~there))]
    if not isinstance(value, pa.Array):
        constant = avro.values(pa.array([value], kind.arrow))[0].as_py()
        return [*lead, constant]
    encoded = _column(kind, value)
    if not optional:
        return [encoded]
    if value.null_count == len(value):
        return [null]
    if not value.null_count:
        return [present, encoded]
    return [pc.fill_null(pc.binary_join_element_wise(_scalar(present), encoded, avro.EMPTY), _scalar(null))]


def _column(kind: ConnectType, values: pa.Array) -> pa.Array:
    """Return the encoding of each value, null where it is null. Fields of a struct are nullable where it says so."""
    if kind.type != "struct":
        return avro.values(values)
    valid = np.asarray(values.is_valid())
    if not valid.any():
        return pa.nulls(len(values), pa.binary())
    present = values.filter(pa.array(valid))
    inner = dict(zip((name for name, _, _ in kind.fields), present.flatten(), strict=True))
    made = avro.joined(_fields(kind, inner, len(present)), len(present))
    return made if valid.all() else made.take(pa.array(np.cumsum(valid) - 1, mask=~valid))


def _scalar(octets: bytes) -> pa.Scalar:
    return pa.scalar(octets, pa.binary())
