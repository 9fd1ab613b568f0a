"""Which type a source's column has at the destination, and how values are written so that COPY reads them into it.

The source's own type is kept where the server has it: built-in types have the same numbers everywhere, others are
looked up by name. Enums are text unless the file wants them as they are, and the server has such a type. What the
server does not know is text; so are rows and maps, which are JSON. Pure, but for the look at the server's types.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from penstock.decode.dialect import dialect_of
from penstock.destinations.postgres.connection import Connection
from penstock.model.table import Column, TableSchema
from penstock.model.type_map import TEXT

BUILT_IN = 16384  # below it, a type has the same number in every server
_PSEUDO = frozenset({"record", "_record", "unknown", "regclass", "regtype", "regproc", "xid", "cid", "tid"})


def column_types(connection: Connection, schema: TableSchema, *, enums: bool) -> list[str]:
    """Return the type of each column at the destination, as SQL writes it."""
    own = [_own_name(schema, column, enums=enums) for column in schema.columns]
    asked = [(oid, modifier, name) for oid, modifier, name in own if oid or name]
    found: dict[tuple[int, int, str], str | None] = {}
    if asked:
        rows = connection.execute(
            "SELECT CASE WHEN oid > 0 THEN (SELECT format_type(t.oid, modifier) FROM pg_type t WHERE t.oid = one.oid"
            " AND typtype <> 'p') ELSE to_regtype(name)::text END"
            " FROM unnest(%s::oid[], %s::int[], %s::text[]) WITH ORDINALITY AS one (oid, modifier, name, place)"
            " ORDER BY place",
            [list(part) for part in zip(*asked, strict=True)],
        ).fetchall()
        found = {one: row[0] for one, row in zip(asked, rows, strict=True)}
    types = []
    for column, one in zip(schema.columns, own, strict=True):
        types.append(found.get(one) or _of_arrow(dialect_of(schema).arrow_type(column.type)))
    return types


def _own_name(schema: TableSchema, column: Column, *, enums: bool) -> tuple[int, int, str]:
    """Return number and modifier of a built-in type, or the name of another one; nothing where Arrow's type decides."""
    type = column.type
    if schema.dialect != "postgres" or type.carried_as or type.name in _PSEUDO:
        return 0, -1, ""
    if type.held_as != TEXT and (type.held_as or type.kind == "composite"):
        return 0, -1, ""
    plain = type.element if type.element is not None else type
    if plain.kind == "enum" and not enums:
        return 0, -1, "text[]" if type.element is not None else "text"
    if 0 < type.oid < BUILT_IN:
        return type.oid, type.modifier, ""
    if type.element is not None and 0 < plain.oid < BUILT_IN:
        return 0, -1, ""
    name = '"' + plain.name.replace('"', '""') + '"'
    return 0, -1, name + "[]" if type.element is not None else name


def _of_arrow(type: pa.DataType) -> str:
    if pa.types.is_decimal(type):
        return f"numeric({type.precision},{type.scale})"
    if pa.types.is_timestamp(type):
        return "timestamp with time zone" if type.tz is not None else "timestamp without time zone"
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return f"{_of_arrow(type.value_type)}[]"
    if pa.types.is_struct(type) or pa.types.is_map(type):
        return "jsonb"
    known = {
        pa.bool_(): "boolean",
        pa.int8(): "smallint",
        pa.int16(): "smallint",
        pa.int32(): "integer",
        pa.int64(): "bigint",
        pa.uint8(): "smallint",
        pa.uint16(): "integer",
        pa.uint32(): "bigint",
        pa.uint64(): "numeric(20,0)",
        pa.float32(): "real",
        pa.float64(): "double precision",
        pa.date32(): "date",
        pa.time64("us"): "time without time zone",
        pa.binary(): "bytea",
    }
    return known.get(type, "text")


def as_csv(rows: pa.Table) -> pa.Buffer:
    """Write rows as COPY takes them: texts in quotes, so that an empty one is not null; null is nothing at all."""
    written = pa.table(
        [written_values(column) for column in rows.columns], names=list(map(str, range(rows.num_columns)))
    )
    sink = pa.BufferOutputStream()
    pacsv.write_csv(written, sink, pacsv.WriteOptions(include_header=False))
    return sink.getvalue()


def written_values(values: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Return the values as the CSV writer and Postgres both understand them."""
    type = values.type
    if pa.types.is_integer(type) or pa.types.is_boolean(type) or pa.types.is_string(type):
        return values
    if pa.types.is_binary(type) or pa.types.is_large_binary(type):
        texts = [None if one is None else "\\x" + one.hex() for one in values.to_pylist()]
        return pa.array(texts, pa.string())
    if pa.types.is_nested(type):
        return pa.array([None if one is None else _nested(one, type) for one in values.to_pylist()], pa.string())
    if pa.types.is_floating(type):
        return values
    return pc.cast(values, pa.string())


def _nested(value: object, type: pa.DataType) -> str:
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        assert isinstance(value, list)
        return "{" + ",".join(_element(one, type.value_type) for one in value) + "}"
    if pa.types.is_map(type):
        assert isinstance(value, list)
        return json.dumps({str(key): one for key, one in value}, default=str, ensure_ascii=False)
    return json.dumps(value, default=str, ensure_ascii=False)


def _element(value: object, type: pa.DataType) -> str:
    if value is None:
        return "NULL"
    if pa.types.is_nested(type):
        text = _nested(value, type)
        if pa.types.is_list(type):
            return text
    else:
        text = "\\x" + value.hex() if isinstance(value, bytes) else str(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def selected(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the named columns, null where the rows have none."""
    there, nothing = set(rows.column_names), pa.nulls(rows.num_rows, pa.string())
    places = list(map(str, range(len(names))))
    return pa.table([rows[name] if name in there else nothing for name in names], names=places)
