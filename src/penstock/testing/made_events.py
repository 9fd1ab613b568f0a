"""Events that a suite gives to a destination: of a table that has a column of every family of types."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from penstock.destinations.stream_contract import TOPIC_TYPE, Records
from penstock.model.place import place_at
from penstock.model.table import Column, ColumnType, TableId, TableSchema

_TYPES = {
    "id": ColumnType(20, "int8"),
    "name": ColumnType(25, "text"),
    "price": ColumnType(1700, "numeric", (10 << 16 | 2) + 4),
    "at": ColumnType(1184, "timestamptz"),
    "day": ColumnType(1082, "date"),
    "active": ColumnType(16, "bool"),
    "ratio": ColumnType(701, "float8"),
    "raw": ColumnType(17, "bytea"),
    "tags": ColumnType(1009, "_text", kind="array", element=ColumnType(25, "text")),
    "doc": ColumnType(3802, "jsonb"),
}
_REST = {
    "price": "12.50",
    "at": "2026-05-04T03:02:01.5Z",
    "day": "2026-05-04",
    "active": True,
    "ratio": 0.25,
    "raw": "AP8=",
    "tags": ["a", None, 'with "quotes", and a comma'],
    "doc": {"nested": [1, {"x": None}]},
}
COMMIT_TIME = "2026-05-04T03:02:02.000001Z"


def table(name: str) -> TableSchema:
    """Return the structure of a table in schema `public` with the key `id`."""
    columns = tuple(
        Column(one, type, nullable=one != "id", number=number) for number, (one, type) in enumerate(_TYPES.items(), 1)
    )
    return TableSchema(TableId("public", name), sum(name.encode()), columns, ("id",))


def row(key: int, name: str | None = "x") -> dict[str, Any]:
    """Return the image of a row."""
    return {"id": key, "name": name, **_REST}


def event(op: str, position: int, of: TableSchema, key: int | None, **images: Any) -> dict[str, Any]:
    """Return an event in the native envelope. `images` are further members: `before`, `after`, …"""
    place = place_at(position)
    head: dict[str, Any] = {"op": op, "id": f"shop/{of.relation_id}/{place}", "source": "shop", "database": "shop"}
    head |= {"schema": of.table.schema, "table": of.table.name, "table_id": of.relation_id, "place": place}
    head |= {"change_position": f"{position:016x}", "transaction": position, "commit_time": COMMIT_TIME}
    head |= {"schema_version": of.structure, "key": None if key is None else {"id": key}}
    return {**head, "before": None, "after": None, **images}


def insert(position: int, of: TableSchema, key: int, name: str = "x") -> dict[str, Any]:
    """Return an insert at a commit position."""
    return event("insert", position, of, key, after=row(key, name))


def records_of(events: list[dict[str, Any]], tables: Mapping[str, TableSchema]) -> Records:
    """Return events as a stream has them."""
    count = len(events)
    return Records(
        pa.array([one["place"] for one in events], pa.string()),
        pa.array([None if one["key"] is None else json.dumps(one["key"]).encode() for one in events], pa.binary()),
        pa.array([json.dumps(one).encode() for one in events], pa.binary()),
        pa.array([f"{one['schema']}.{one['table']}" for one in events], TOPIC_TYPE),
        pa.array([0] * count, pa.int32()),
        schemas={one.structure: one for one in tables.values()},
    )
