"""A source's share of a table in Iceberg's words: a partition by the column of its sid. See `lake.source_partition`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from penstock.destinations.iceberg.columns import arrow_type
from penstock.destinations.iceberg.java import JavaObject
from penstock.destinations.lake.columns import LakeColumn
from penstock.destinations.lake.source_partition import SourceSlice, with_sid
from penstock.errors import SchemaChanged
from penstock.model.feed import Sid
from penstock.model.table import TableId


def partition_json(share: SourceSlice) -> dict[str, Any]:
    """Describe the slice's partition for Iceberg's ContentFileParser."""
    return {"partition": {str(share.field): share.value}}


def is_in_slice(file: JavaObject, share: SourceSlice) -> bool:
    return bool(file.partition().get(0) == share.value)


def sid_spec(table: JavaObject, target: TableId, column: int) -> tuple[int, int]:
    """Return the numbers of the partition spec by sid, and of its field; SchemaChanged when the table has none."""
    specs = table.specs()
    for number in specs:
        fields = specs.get(number).fields()
        if fields.size() == 1 and fields.get(0).sourceId() == column and fields.get(0).transform().isIdentity():
            return int(number), int(fields.get(0).fieldId())
    raise _not_for_several(target)


def sid_column(target: TableId, found: str, sid: Sid) -> LakeColumn:
    """Return the column of the sid in an existing table (`found`: JSON of Iceberg's SchemaParser).

    SchemaChanged when it has none of that type.
    """
    type = with_sid(pa.schema([]), sid).field(0).type
    for field in json.loads(found)["fields"]:
        if field["name"] == sid.column and arrow_type(field["type"]) == type:
            return LakeColumn(field["id"], sid.column, type, field["required"])
    raise _not_for_several(target)


def is_of_family(properties: Iterable[str], family: str) -> bool:
    """Return whether one of the table's properties says that a source of the family feeds it."""
    prefixes = ("penstock.position.", "penstock.source.")
    sources = [name.removeprefix(prefix) for name in properties for prefix in prefixes if name.startswith(prefix)]
    return any(source == family or source.startswith(f"{family}.") for source in sources)


def _not_for_several(target: TableId) -> SchemaChanged:
    return SchemaChanged(
        f"table {target}: it is not partitioned by a sid, so it was not made for several sources",
        f"Give the sources' tables another `target`, or drop {target}: it is made and copied again",
    )
