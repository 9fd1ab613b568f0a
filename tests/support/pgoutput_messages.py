"""A tiny pgoutput encoder (protocol 1, text values) and a stream of transactions, for tests of decode and fold."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import pyarrow as pa

from penstock.model.change import RAW_SCHEMA, RawChanges
from penstock.model.table import Column, ColumnType, TableId, TableSchema

RELATION = 16_385

BOOL = ColumnType(16, "bool")
BYTEA = ColumnType(17, "bytea")
INT8 = ColumnType(20, "int8")
INT2 = ColumnType(21, "int2")
INT4 = ColumnType(23, "int4")
TEXT = ColumnType(25, "text")
FLOAT8 = ColumnType(701, "float8")
DATE = ColumnType(1082, "date")
TIMESTAMP = ColumnType(1114, "timestamp")
TIMESTAMPTZ = ColumnType(1184, "timestamptz")
JSONB = ColumnType(3802, "jsonb")
UUID = ColumnType(2950, "uuid")


def numeric(precision: int, scale: int) -> ColumnType:
    return ColumnType(1700, "numeric", (precision << 16 | scale & 0x7FF) + 4)


class Unsent(Enum):
    CELL = "unchanged and not sent"


UNSENT = Unsent.CELL
Cell = str | None | Unsent


def image(cells: Sequence[Cell]) -> bytes:
    parts = [struct.pack(">h", len(cells))]
    for cell in cells:
        if cell is None:
            parts.append(b"n")
        elif cell is UNSENT:
            parts.append(b"u")
        else:
            text = str(cell).encode()
            parts.append(b"t" + struct.pack(">i", len(text)) + text)
    return b"".join(parts)


def insert(*cells: Cell, relation: int = RELATION) -> bytes:
    return b"I" + struct.pack(">I", relation) + b"N" + image(cells)


def update(
    *cells: Cell, key: Sequence[Cell] | None = None, row: Sequence[Cell] | None = None, relation: int = RELATION
) -> bytes:
    """`key` and `row` are the old image, as replica identity DEFAULT or FULL sends it."""
    old = b"K" + image(key) if key is not None else b"O" + image(row) if row is not None else b""
    return b"U" + struct.pack(">I", relation) + old + b"N" + image(cells)


def delete(*key: Cell, full: bool = False, relation: int = RELATION) -> bytes:
    return b"D" + struct.pack(">I", relation) + (b"O" if full else b"K") + image(key)


def truncate(*relations: int) -> bytes:
    tables = relations or (RELATION,)
    return b"T" + struct.pack(">IB", len(tables), 0) + b"".join(struct.pack(">I", one) for one in tables)


def table_schema(
    columns: dict[str, ColumnType], key: Sequence[str] = ("id",), identity: str = "key", relation: int = RELATION
) -> TableSchema:
    described = tuple(Column(name, type, name not in key) for name, type in columns.items())
    return TableSchema(TableId("public", "things"), relation, described, tuple(key), identity)


@dataclass
class Change:
    commit_position: int
    ordinal: int
    message: bytes


@dataclass
class Stream:
    """Transactions one after the other. The n-th, from 1, commits at n * 100 and n seconds after 1970."""

    changes: list[Change] = field(default_factory=list)
    transactions: int = 0

    def transaction(self, *messages: bytes) -> Stream:
        self.transactions += 1
        for ordinal, message in enumerate(messages):
            self.changes.append(Change(self.transactions * 100, ordinal, message))
        return self

    def raw(self, schema: TableSchema) -> RawChanges:
        return raw_changes(schema, self.changes)


def raw_changes(schema: TableSchema, changes: Sequence[Change]) -> RawChanges:
    lsn = [change.commit_position for change in changes]
    arrays = [
        pa.array(lsn, pa.uint64()),
        pa.array([change.ordinal for change in changes], pa.uint64()),
        pa.array(lsn, pa.uint64()),
        pa.array([1] * len(changes), pa.uint64()),
        pa.array([one * 10_000 for one in lsn], pa.timestamp("us", "UTC")),
        pa.array([change.message[0] if change.message else 0 for change in changes], pa.uint8()),
        pa.array([change.message for change in changes], pa.binary()),
    ]
    return RawChanges(schema, pa.RecordBatch.from_arrays(arrays, schema=RAW_SCHEMA))
