"""A table's columns as Arrow has them and as Iceberg has them, and how the two are compared.

Iceberg gives every column a number for life; files carry it, names may change. So columns are matched to files by
number, taken from the table's own schema. Key columns are required and are the table's identifier fields, but for
floating-point ones, which Iceberg does not allow there.

Elements of lists, fields of structs, keys and values of maps have numbers too: a column's Arrow type carries them as
metadata of its inner fields, where Parquet's writer looks for them.

The column RESCUED is the table's alone: it comes with the first value that fits no other column, and stays.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import pyarrow as pa

from penstock.decode.rescue import RESCUED, RESCUED_TYPE
from penstock.destinations.lake.columns import FIELD_ID, LakeColumn, inner_fields
from penstock.destinations.structure import Held
from penstock.errors import ColumnNotCarried, SchemaChanged
from penstock.model.table import TableId


def to_iceberg(schema: pa.Schema, key: tuple[str, ...]) -> str:
    """Return JSON for Iceberg's SchemaParser; columns numbered in their order, what is inside them behind."""
    numbers = count(len(schema) + 1)
    fields = [
        {"id": number, "name": field.name, "required": not field.nullable, "type": _iceberg_type(field.type, numbers)}
        for number, field in enumerate(schema, start=1)
    ]
    marked = [number for number, field in enumerate(schema, start=1) if field.name in identifiers(schema, key)]
    return json.dumps({"type": "struct", "schema-id": 0, "fields": fields, "identifier-field-ids": marked})


def require_distinct_names(target: TableId, schema: pa.Schema) -> None:
    """Iceberg calls the field `a` of a struct `s` `s.a`: ColumnNotCarried if a column of that name is there too."""
    names = set(schema.names)
    for field in schema:
        clash = next((name for name in _names_inside(field.name, field.type) if name in names), None)
        if clash is not None:
            raise ColumnNotCarried(
                f'table {target}: its column "{clash}" has the name that Iceberg gives to a part of "{field.name}"',
                f'Carry the latter as text: `types: {{"{field.name}": text}}` under its rule in `tables:`',
            )


def _names_inside(outer: str, type: pa.DataType) -> Iterator[str]:
    for field in inner_fields(type):
        name = f"{outer}.{field.name}"
        yield name
        yield from _names_inside(name, field.type)


def matched(target: TableId, found: str, schema: pa.Schema, key: tuple[str, ...]) -> tuple[LakeColumn, ...]:
    """Return the columns of an existing table (`found`: JSON of Iceberg's SchemaParser), in their order.

    SchemaChanged if it differs.
    """
    table: dict[str, Any] = json.loads(found)
    there = {field["name"]: field for field in table["fields"] if field["name"] != RESCUED}
    differences = [f"column {name} is not at the source" for name in there if name not in schema.names]
    for field in schema:
        known = there.get(field.name)
        if known is None:
            differences.append(f"column {field.name} is missing")
        elif (is_now := type_text(known["type"])) != (wanted := type_text(_iceberg_type(field.type, count(1)))):
            differences.append(f"column {field.name} is {is_now}, should be {wanted}")
        elif known["required"] and field.nullable:
            differences.append(f"column {field.name} is required, but may be null")
    numbers = {field["id"]: field["name"] for field in table["fields"]}
    marked = {numbers.get(number) for number in table.get("identifier-field-ids", [])}
    if not differences and marked != identifiers(schema, key):
        there_text, wanted_text = (", ".join(sorted(map(str, names))) or "none" for names in (marked, set(key)))
        differences.append(f"its key is {there_text}, should be {wanted_text}")
    if differences:
        raise SchemaChanged(
            f"table {target}: its structure differs from the source's: {'; '.join(differences)}",
            f"Drop {target} at the destination so that it is copied again, or make the two structures agree",
        )
    return tuple(column_from(there[field.name], field.type) for field in schema)


def rescued_column(found: str) -> LakeColumn | None:
    """Return the table's column RESCUED, if it has come already."""
    fields: list[dict[str, Any]] = json.loads(found)["fields"]
    return next((column_from(field, RESCUED_TYPE) for field in fields if field["name"] == RESCUED), None)


def coming_rescued_column(last_number: int) -> LakeColumn:
    """Return the column RESCUED as Iceberg will number it when it is added to a table whose highest number this is."""
    number = last_number + 1
    raw = {"id": number, "name": RESCUED, "required": False, "type": _iceberg_type(RESCUED_TYPE, count(number + 1))}
    return column_from(raw, RESCUED_TYPE)


def rescued_schema() -> str:
    """Return JSON of a schema with the column RESCUED alone, for its type."""
    return to_iceberg(pa.schema([pa.field(RESCUED, RESCUED_TYPE)]), ())


def type_text(type: str | dict[str, Any]) -> str:
    """Return a type of Iceberg's JSON for people, and for comparison: without the numbers inside."""
    if isinstance(type, str):
        return type
    if type["type"] == "list":
        return f"list<{type_text(type['element'])}>"
    if type["type"] == "map":
        return f"map<{type_text(type['key'])}, {type_text(type['value'])}>"
    fields = (f"{field['name']}: {type_text(field['type'])}" for field in type["fields"])
    return f"struct<{', '.join(fields)}>"


def column_from(raw: dict[str, Any], type: pa.DataType) -> LakeColumn:
    """Return a column of the table (`raw`: of its JSON), of a type that is the same or narrower."""
    return LakeColumn(raw["id"], raw["name"], _numbered(type, raw["type"]), raw["required"])


def _numbered(type: pa.DataType, raw: Any) -> pa.DataType:
    """Return the Arrow type with the table's numbers in it."""
    if pa.types.is_list(type):
        return pa.list_(_inner("element", type.value_type, raw["element"], raw["element-id"]))
    if pa.types.is_map(type):
        key = _inner("key", type.key_type, raw["key"], raw["key-id"]).with_nullable(False)
        return pa.map_(key, _inner("value", type.item_type, raw["value"], raw["value-id"]))
    if pa.types.is_struct(type):
        there = {one["name"]: one for one in raw["fields"]}
        found = [(field, there[field.name]) for field in type]
        return pa.struct([_inner(field.name, field.type, one["type"], one["id"]) for field, one in found])
    return type


def _inner(name: str, type: pa.DataType, raw: Any, number: int) -> pa.Field:
    return pa.field(name, _numbered(type, raw), True, {FIELD_ID: str(number).encode()})


def located(target: TableId, found: str, schema: pa.Schema, ids: Sequence[int]) -> tuple[LakeColumn, ...]:
    """Return the columns with these numbers of an existing table, one for each field of `schema`.

    `found` is JSON of Iceberg's SchemaParser. SchemaChanged if one is gone, has another name or is of another type.
    """
    there = {field["id"]: field for field in json.loads(found)["fields"]}
    columns, differences = [], []
    for field, number in zip(schema, ids, strict=True):
        known, wanted = there.get(number), type_text(_iceberg_type(field.type, count(1)))
        if known is None:
            differences.append(f"column {field.name} is gone")
        elif known["name"] != field.name:
            differences.append(f"column {field.name} is called {known['name']}")
        elif (is_now := type_text(known["type"])) != wanted:
            differences.append(f"column {field.name} is {is_now}, should be {wanted}")
        elif known["required"] and field.nullable:
            differences.append(f"column {field.name} is required, but may be null")
        else:
            columns.append(LakeColumn(number, field.name, _numbered(field.type, known["type"]), known["required"]))
    if differences:
        raise SchemaChanged(
            f"table {target}: somebody changed it at the destination: {'; '.join(differences)}",
            f"Bring the columns back, or drop {target} there and `penstock retry`: it is copied again",
        )
    return tuple(columns)


def held_columns(found: str, followed: Mapping[int, tuple[int, pa.DataType]]) -> list[Held]:
    """All columns of an existing table. `followed`: by number, the source's column that it follows, and its type."""
    columns = []
    for field in json.loads(found)["fields"]:
        number, type = followed.get(field["id"], (None, arrow_type(field["type"])))
        columns.append(Held(field["name"], type, field["required"], number))
    return columns


def named_columns(target: TableId, found: str, schema: pa.Schema) -> tuple[LakeColumn, ...]:
    """Return the columns of these names; SchemaChanged if one is missing or of another type."""
    ids = {field["name"]: field["id"] for field in json.loads(found)["fields"]}
    return located(target, found, schema, [ids.get(name, 0) for name in schema.names])


def unfollowed(found: str, followed: Collection[int]) -> tuple[LakeColumn, ...] | None:
    """Return the columns that follow no column of the source, but for RESCUED.

    None when one is of a type that is none of ours.
    """
    columns = []
    for field in json.loads(found)["fields"]:
        if field["id"] in followed or field["name"] == RESCUED:
            continue
        type = arrow_type(field["type"])
        if type is None:
            return None
        columns.append(column_from(field, type))
    return tuple(columns)


def identifiers(schema: pa.Schema, key: tuple[str, ...]) -> set[str]:
    return set() if any(pa.types.is_floating(schema.field(name).type) for name in key) else set(key)


def _iceberg_type(type: pa.DataType, numbers: Iterator[int]) -> str | dict[str, Any]:
    """Return Iceberg's JSON of the type; `numbers` are given to what is inside."""
    if pa.types.is_decimal128(type):
        return f"decimal({type.precision}, {type.scale})"
    if pa.types.is_list(type):
        number = next(numbers)
        element = _iceberg_type(type.value_type, numbers)
        return {"type": "list", "element-id": number, "element": element, "element-required": False}
    if pa.types.is_map(type):
        key, value = next(numbers), next(numbers)
        return {
            "type": "map",
            "key-id": key,
            "key": _iceberg_type(type.key_type, numbers),
            "value-id": value,
            "value": _iceberg_type(type.item_type, numbers),
            "value-required": False,
        }
    if pa.types.is_struct(type):
        fields = [
            {"id": next(numbers), "name": one.name, "required": False, "type": _iceberg_type(one.type, numbers)}
            for one in type
        ]
        return {"type": "struct", "fields": fields}
    return _NAMES[type]


def arrow_type(name: Any) -> pa.DataType | None:
    """Return the Arrow type of a type in Iceberg's JSON; None for one that we do not make."""
    if isinstance(name, dict):
        return _nested_type(name)
    if isinstance(name, str) and name.startswith("decimal("):
        precision, scale = name.removeprefix("decimal(").removesuffix(")").split(",")
        return pa.decimal128(int(precision), int(scale))
    return next((type for type, known in _NAMES.items() if known == name), None)


def _nested_type(raw: dict[str, Any]) -> pa.DataType | None:
    if raw["type"] == "struct":
        fields = [(field["name"], arrow_type(field["type"])) for field in raw["fields"]]
        return None if any(type is None for _, type in fields) else pa.struct(fields)
    inside = [arrow_type(raw[part]) for part in (("element",) if raw["type"] == "list" else ("key", "value"))]
    if any(type is None for type in inside):
        return None
    return pa.list_(pa.field("element", inside[0])) if raw["type"] == "list" else pa.map_(*inside)


_NAMES = {
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp",
    pa.timestamp("us", "UTC"): "timestamptz",
    pa.string(): "string",
    pa.binary(): "binary",
}
