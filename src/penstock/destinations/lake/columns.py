"""Columns of a lake table as its Parquet files have them: known by a number for life, whatever they are called.

Files carry each column's number as Parquet's `field_id`, so a column that was renamed is still found in older files.
Elements of lists, fields of structs, keys and values of maps have numbers too: a column's Arrow type carries them as
metadata of its inner fields, where Parquet's writer looks for them.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True)
class LakeColumn:
    """A column with its number, the same in every file of the table."""

    id: int
    name: str
    type: pa.DataType
    required: bool

    def field(self) -> pa.Field:
        return pa.field(self.name, self.type, not self.required, {FIELD_ID: str(self.id).encode()})

    @property
    def numbers(self) -> tuple[int, ...]:
        """Its own number and those of its leaves. Arrow's comparison of types does not see them."""
        return self.id, *leaves(self.type, self.id)


def leaves(type: pa.DataType, number: int) -> list[int]:
    """Return the numbers of the Parquet columns that a column of this type and number is stored in."""
    inside = inner_fields(type)
    if not inside:
        return [number]
    return [leaf for one in inside for leaf in leaves(one.type, int(one.metadata[FIELD_ID]))]


def inner_fields(type: pa.DataType) -> list[pa.Field]:
    """Return element, key and value, or fields; none for a plain type."""
    if pa.types.is_map(type):
        return [type.key_field, type.item_field]
    return [type.field(number) for number in range(type.num_fields)]
