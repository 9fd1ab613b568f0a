"""Raw changes made by hand, for tests of the change log: what they say does not matter, only that it stays the same."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.changelog.chain import SegmentName
from penstock.changelog.log import ChangeLog
from penstock.changelog.segment import SliceRows
from penstock.model.change import RAW_SCHEMA
from penstock.model.table import Column, ColumnType, TableId, TableSchema

ORDERS = TableSchema(TableId("public", "orders"), 16384, (Column("id", ColumnType(20, "int8"), False),), ("id",))
PEOPLE = TableSchema(
    TableId("public", "péople"), 16390, (Column("id", ColumnType(25, "text")), Column("n", ColumnType(23, "int4"))), ()
)


def raw_slice(schema: TableSchema, commits: Sequence[int], moved_keys: int = 0, ops: bytes = b"I") -> SliceRows:
    """One row a commit; every op of `ops` in turn."""
    rows = [
        {
            "commit_position": commit,
            "ordinal": place,
            "change_position": commit - 8,
            "transaction": 700 + place,
            "commit_time": 1_700_000_000_000_000 + commit,
            "op": ops[place % len(ops)],
            "data": f"{schema.table.name} {commit} {place}".encode(),
        }
        for place, commit in enumerate(commits)
    ]
    return SliceRows(schema, pa.RecordBatch.from_pylist(rows, schema=RAW_SCHEMA), moved_keys)


def contents(log: ChangeLog, names: Sequence[SegmentName] | None = None) -> list[tuple[str, int, bytes]]:
    """Everything that the log says: table, commit and message, in the order in which it is read."""
    return [
        (str(changes.schema.table), row["commit_position"], row["data"])
        for name in (log.segments() if names is None else names)
        for changes in log.read(name)
        for row in changes.batch.to_pylist()
    ]
