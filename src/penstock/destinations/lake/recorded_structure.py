"""The structure of the source that a lake table follows, as the table itself records it, and a change of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.destinations.lake.columns import LakeColumn
from penstock.destinations.lake.source_partition import SourceSlice
from penstock.destinations.structure import OnDrop, Steps
from penstock.model.table import TableSchema


@dataclass(frozen=True)
class Recorded:
    """The structure that a table follows, what is kept of it, and the table's column numbers by the source's own."""

    schema: TableSchema
    kept: TableSchema
    fields: Mapping[int, int]

    def to_json(self) -> str:
        kept = None if self.kept == self.schema else json.loads(self.kept.to_json())
        told = {"schema": json.loads(self.schema.to_json()), "kept": kept, "fields": self.fields}
        return json.dumps(told, ensure_ascii=False)


@dataclass(frozen=True)
class Move:
    """From the structure that a table has to another. `columns` are those that follow the source, afterwards."""

    schema: TableSchema
    kept: TableSchema
    steps: Steps
    columns: tuple[LakeColumn, ...]
    on_drop: OnDrop
    marked: bool = True  # the key is the table's identifier
    slice: SourceSlice | None = None  # of a table that several sources feed: what of it is this source's, afterwards

    @property
    def recorded(self) -> Recorded:
        numbers = [column.number for column in self.kept.columns]
        fields = dict(zip(numbers, (column.id for column in self.columns), strict=True))
        return Recorded(self.schema, self.kept, fields)
