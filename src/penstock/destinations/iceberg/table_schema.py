"""A table's columns as Arrow has them and as Iceberg has them, and how the two are compared.

Iceberg gives every column a number for life; files carry it, names may change. So columns are matched to files by
number, taken from the table's own schema. Key columns are required and are the table's identifier fields, but for
floating-point ones, which Iceberg does not allow there.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.destinations.structure import Held
from penstock.errors import SchemaChanged
from penstock.model.table import TableId

FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True)
class IcebergColumn:
    id: int
    name: str
    type: pa.DataType
    required: bool

    def field(self) -> pa.Field:
        return pa.field(self.name, self.type, not self.required, {FIELD_ID: str(self.id).encode()})


def to_iceberg(schema: pa.Schema, key: tuple[str, ...]) -> str:
    """JSON for Iceberg's SchemaParser; columns numbered in their order."""
    fields = [
        {"id": number, "name": field.name, "required": not field.nullable, "type": _iceberg_type(field.type)}
        for number, field in enumerate(schema, start=1)
    ]
    marked = [number for number, field in enumerate(schema, start=1) if field.name in identifiers(schema, key)]
    return json.dumps({"type": "struct", "schema-id": 0, "fields": fields, "identifier-field-ids": marked})


def matched(target: TableId, found: str, schema: pa.Schema, key: tuple[str, ...]) -> tuple[IcebergColumn, ...]:
    """The columns of an existing table (`found`: JSON of Iceberg's SchemaParser), in their order; SchemaChanged if it
    differs.
    """
    table: dict[str, Any] = json.loads(found)
    there = {field["name"]: field for field in table["fields"]}
    differences = [f"column {name} is not at the source" for name in there if name not in schema.names]
    for field in schema:
        known = there.get(field.name)
        wanted = _iceberg_type(field.type)
        if known is None:
            differences.append(f"column {field.name} is missing")
        elif known["type"] != wanted:
            differences.append(f"column {field.name} is {known['type']}, should be {wanted}")
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
            f"Drop {target} at the destination and start it anew, or bring the two structures in line",
        )
    return tuple(
        IcebergColumn(there[field.name]["id"], field.name, field.type, there[field.name]["required"])
        for field in schema
    )


def located(target: TableId, found: str, schema: pa.Schema, ids: Sequence[int]) -> tuple[IcebergColumn, ...]:
    """The columns with these numbers of an existing table (`found`: JSON of Iceberg's SchemaParser), one for each field
    of `schema`, whatever they are called there; SchemaChanged if one is gone or of another type."""
    there = {field["id"]: field for field in json.loads(found)["fields"]}
    columns, differences = [], []
    for field, number in zip(schema, ids, strict=True):
        known, wanted = there.get(number), _iceberg_type(field.type)
        if known is None:
            differences.append(f"column {field.name} is gone")
        elif known["type"] != wanted:
            differences.append(f"column {field.name} is {known['type']}, should be {wanted}")
        elif known["required"] and field.nullable:
            differences.append(f"column {field.name} is required, but may be null")
        else:
            columns.append(IcebergColumn(number, field.name, field.type, known["required"]))
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


def named_columns(target: TableId, found: str, schema: pa.Schema) -> tuple[IcebergColumn, ...]:
    """The columns of these names; SchemaChanged if one is missing or of another type."""
    ids = {field["name"]: field["id"] for field in json.loads(found)["fields"]}
    return located(target, found, schema, [ids.get(name, 0) for name in schema.names])


def unfollowed(found: str, followed: Collection[int]) -> tuple[IcebergColumn, ...] | None:
    """The columns that follow no column of the source; None when one is of a type that is none of ours."""
    columns = []
    for field in json.loads(found)["fields"]:
        if field["id"] in followed:
            continue
        type = arrow_type(field["type"])
        if type is None:
            return None
        columns.append(IcebergColumn(field["id"], field["name"], type, field["required"]))
    return tuple(columns)


def identifiers(schema: pa.Schema, key: tuple[str, ...]) -> set[str]:
    return set() if any(pa.types.is_floating(schema.field(name).type) for name in key) else set(key)


def _iceberg_type(type: pa.DataType) -> str:
    if pa.types.is_decimal128(type):
        return f"decimal({type.precision}, {type.scale})"
    return _NAMES[type]


def arrow_type(name: Any) -> pa.DataType | None:
    """The other way round; None for what is not made by us."""
    if isinstance(name, str) and name.startswith("decimal("):
        precision, scale = name.removeprefix("decimal(").removesuffix(")").split(",")
        return pa.decimal128(int(precision), int(scale))
    return next((type for type, known in _NAMES.items() if known == name), None)


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
