"""A table's columns as Arrow has them and as Delta's log has them, and how the two are compared.

A column has a name in files, its physical name, for life, and in a table without column mapping that is the column's
name. Files are read by it. The numbers by which `lake` knows columns are ours: `structure` keeps one for each physical
name. What is inside a column (a struct's fields, a list's elements) gets its numbers from the column's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any

import pyarrow as pa

from penstock.decode.rescue import RESCUED, RESCUED_TYPE
from penstock.destinations.lake.columns import FIELD_ID, LakeColumn
from penstock.destinations.structure import Held
from penstock.errors import SchemaChanged
from penstock.model.table import TableId

INSIDE = 10_000  # numbers that a column has for what is inside it
MAPPED_ID, PHYSICAL = "delta.columnMapping.id", "delta.columnMapping.physicalName"
_NAMES = {
    pa.bool_(): "boolean",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp_ntz",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.string(): "string",
    pa.binary(): "binary",
}


@dataclass(frozen=True, eq=False)
class DeltaField:
    """A column of the table, as the log's schema has it, with our number."""

    number: int
    raw: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.raw["name"])

    @property
    def physical(self) -> str:
        return str((self.raw.get("metadata") or {}).get(PHYSICAL) or self.raw["name"])

    @property
    def mapped_id(self) -> int | None:
        """Its number in a table with column mapping."""
        found = (self.raw.get("metadata") or {}).get(MAPPED_ID)
        return None if found is None else int(found)

    @property
    def required(self) -> bool:
        return not self.raw["nullable"]

    @cached_property
    def type(self) -> pa.DataType | None:
        return arrow_type(self.raw["type"])

    def column(self, type: pa.DataType) -> LakeColumn:
        """Return it as a column of a type that is the same or narrower."""
        return LakeColumn(self.number, self.name, numbered(type, count(self.number * INSIDE + 1)), self.required)


def delta_type(type: pa.DataType) -> str | dict[str, Any]:
    """Return the type as the log's JSON has it."""
    if pa.types.is_decimal128(type):
        return f"decimal({type.precision},{type.scale})"
    if pa.types.is_list(type):
        return {"type": "array", "elementType": delta_type(type.value_type), "containsNull": True}
    if pa.types.is_map(type):
        key, value = delta_type(type.key_type), delta_type(type.item_type)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if pa.types.is_struct(type):
        return {"type": "struct", "fields": [raw_field(field.with_nullable(True)) for field in type]}
    return _NAMES[type]


def raw_field(field: pa.Field) -> dict[str, Any]:
    """Return a column as the log's JSON has it."""
    return {"name": field.name, "type": delta_type(field.type), "nullable": field.nullable, "metadata": {}}


def arrow_type(raw: Any) -> pa.DataType | None:
    """Return the Arrow type of a type in the log's JSON; None for one that we do not make."""
    if isinstance(raw, Mapping):
        return _nested_type(raw)
    text = str(raw)
    if text.startswith("decimal"):
        precision, _, scale = text.removeprefix("decimal").strip("()").partition(",")
        return pa.decimal128(int(precision or 10), int(scale or 0))
    return next((type for type, name in _NAMES.items() if name == text), None)


def _nested_type(raw: Mapping[str, Any]) -> pa.DataType | None:
    if raw["type"] == "struct":
        fields = [(field["name"], arrow_type(field["type"])) for field in raw["fields"]]
        return None if any(type is None for _, type in fields) else pa.struct(fields)
    inside = [
        arrow_type(raw[part]) for part in (("elementType",) if raw["type"] == "array" else ("keyType", "valueType"))
    ]
    if any(type is None for type in inside):
        return None
    return pa.list_(pa.field("element", inside[0])) if raw["type"] == "array" else pa.map_(*inside)


def type_text(type: pa.DataType | None, raw: Any) -> str:
    """Return a type for people."""
    return str(raw) if type is None else str(type)


def numbered(type: pa.DataType, numbers: Iterator[int]) -> pa.DataType:
    """Return the type with a number for all that is inside it, as `LakeColumn` wants it."""
    if pa.types.is_list(type):
        return pa.list_(_inner("element", type.value_type, numbers))
    if pa.types.is_map(type):
        key = _inner("key", type.key_type, numbers).with_nullable(False)
        return pa.map_(key, _inner("value", type.item_type, numbers))
    if pa.types.is_struct(type):
        return pa.struct([_inner(field.name, field.type, numbers) for field in type])
    return type


def _inner(name: str, type: pa.DataType, numbers: Iterator[int]) -> pa.Field:
    number = next(numbers)
    return pa.field(name, numbered(type, numbers), True, {FIELD_ID: str(number).encode()})


def has_local_moments(type: pa.DataType | None) -> bool:
    """Return whether there is a timestamp without time zone in a type: that is a feature of its own."""
    if type is None:
        return False
    if pa.types.is_timestamp(type):
        return type.tz is None
    return any(has_local_moments(type.field(number).type) for number in range(type.num_fields))


def located(
    target: TableId, fields: Sequence[DeltaField], schema: pa.Schema, numbers: Sequence[int]
) -> tuple[LakeColumn, ...]:
    """Return the columns with these numbers, one for each field of `schema`.

    SchemaChanged if one is gone, has another name or is of another type.
    """
    there = {field.number: field for field in fields}
    columns, differences = [], []
    for wanted, number in zip(schema, numbers, strict=True):
        known = there.get(number)
        if known is None:
            differences.append(f"column {wanted.name} is gone")
        elif known.name != wanted.name:
            differences.append(f"column {wanted.name} is called {known.name}")
        elif known.type != wanted.type:
            differences.append(
                f"column {wanted.name} is {type_text(known.type, known.raw['type'])}, should be {wanted.type}"
            )
        elif known.required and wanted.nullable:
            differences.append(f"column {wanted.name} is required, but may be null")
        else:
            columns.append(LakeColumn(number, wanted.name, known.column(wanted.type).type, known.required))
    if differences:
        raise SchemaChanged(
            f"table {target}: somebody changed it at the destination: {'; '.join(differences)}",
            f"Bring the columns back, or drop {target} there and `penstock retry`: it is copied again",
        )
    return tuple(columns)


def held_columns(fields: Sequence[DeltaField], followed: Mapping[int, tuple[int, pa.DataType]]) -> list[Held]:
    """Return all columns of a table. `followed`: by number, the source's column that it follows, and its type."""
    columns = []
    for field in fields:
        number, type = followed.get(field.number, (None, field.type))
        columns.append(Held(field.name, type, field.required, number))
    return columns


def named_columns(target: TableId, fields: Sequence[DeltaField], schema: pa.Schema) -> tuple[LakeColumn, ...]:
    """Return the columns of these names; SchemaChanged if one is missing or of another type."""
    numbers = {field.name: field.number for field in fields}
    return located(target, fields, schema, [numbers.get(name, 0) for name in schema.names])


def unfollowed(fields: Sequence[DeltaField], followed: Collection[int]) -> tuple[LakeColumn, ...] | None:
    """Return the columns that follow no column of the source, but for RESCUED.

    None when one is of a type that is none of ours.
    """
    others = [field for field in fields if field.number not in followed and field.name != RESCUED]
    columns = [field.column(field.type) for field in others if field.type is not None]
    return tuple(columns) if len(columns) == len(others) else None


def rescued_column(fields: Sequence[DeltaField]) -> LakeColumn | None:
    """Return the table's column RESCUED, if it has come already."""
    return next((field.column(RESCUED_TYPE) for field in fields if field.name == RESCUED), None)
