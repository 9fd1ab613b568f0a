"""The initial copy of one table in a test: a snapshot, its ranges, their rows; and what the stream says of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pytest

from databases import Database
from penstock.decode.schema import arrow_schema
from penstock.model.change import RAW_SCHEMA, RawChanges
from penstock.model.table import TableId, TableSchema
from penstock.source.postgres.connect import Connection, connect
from penstock.source.postgres.copy_ranges import CopyRange, plan_ranges
from penstock.source.postgres.copy_read import CopySource, read_range, row_filter
from penstock.source.postgres.discover import discover
from penstock.source.postgres.pgoutput import read_begin
from penstock.source.postgres.snapshot import Blocker, ExportedSnapshot, export_snapshot, snapshot_connection

PUBLICATION = "p"
OUR_SLOTS = "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'penstock_copy_%'"


@dataclass(frozen=True)
class Copying:
    """A table about to be copied, its snapshot held."""

    snapshot: ExportedSnapshot
    source: CopySource
    ranges: list[CopyRange]

    def read(self, *ranges: CopyRange, strict: bool = False) -> pa.Table:
        """The rows of these ranges, or of all."""
        return rows_of(self.source, *(ranges or self.ranges), strict=strict)


def rows_of(source: CopySource, *ranges: CopyRange, strict: bool = False) -> pa.Table:
    """With a column of rescued cells, if there are any."""
    batches = [batch for one in ranges for batch in read_range(source, one, statement_timeout=60, strict=strict)]
    tables = [pa.Table.from_batches([batch]) for batch in batches]
    return pa.concat_tables([arrow_schema(source.schema).empty_table(), *tables], promote_options="default")


Waiting = Callable[[list[Blocker]], None]


def nobody(blockers: list[Blocker]) -> None:
    """`waiting` for those who expect no wait."""


@contextmanager
def held_snapshot(database: Database, waiting: Waiting = nobody) -> Iterator[ExportedSnapshot]:
    with export_snapshot(database.url, timeout=30, waiting=waiting) as snapshot:
        yield snapshot


@contextmanager
def copying(
    database: Database, table: TableId, range_bytes: int = 1 << 30, waiting: Waiting = nobody
) -> Iterator[Copying]:
    with held_snapshot(database, waiting) as snapshot:
        yield prepared(database, snapshot, table, range_bytes)


def prepared(
    database: Database,
    snapshot: ExportedSnapshot,
    table: TableId,
    range_bytes: int = 1 << 30,
    carried: Callable[[TableSchema], TableSchema] = lambda schema: schema,
) -> Copying:
    """`carried` is what a pipeline chooses for the table's columns."""
    with snapshot_connection(database.url, snapshot.name) as connection:
        schema = carried(schema_of(connection, table))
        condition = row_filter(connection, PUBLICATION, table)
        ranges = plan_ranges(connection, schema, range_bytes=range_bytes)
    return Copying(snapshot, CopySource(database.url, snapshot.name, schema, condition), ranges)


def schema_of(connection: Connection, table: TableId) -> TableSchema:
    (schema,) = discover(connection, lambda found: found == table, PUBLICATION)
    return schema


def streamed(database: Database, slot: str) -> dict[int, pa.RecordBatch]:
    """What the slot has to send, by relation: batches of RAW_SCHEMA."""
    rows: dict[int, list[dict[str, object]]] = {}
    with connect(database.url) as connection:
        messages = connection.execute(
            "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, 'proto_version', '1',"
            " 'publication_names', %s)",
            (slot, PUBLICATION),
        ).fetchall()
    for ordinal, (message,) in enumerate(messages):
        if message[:1] == b"B":
            begin = read_begin(message)
        elif message[:1] in b"IUD":
            relation = int.from_bytes(message[1:5], "big")
            rows.setdefault(relation, []).append(
                {
                    "commit_position": begin.commit_lsn,
                    "ordinal": ordinal,
                    "change_position": begin.commit_lsn,
                    "transaction": begin.xid,
                    "commit_time": begin.commit_time,
                    "op": message[0],
                    "data": message,
                }
            )
    return {relation: pa.RecordBatch.from_pylist(found, schema=RAW_SCHEMA) for relation, found in rows.items()}


def changes_of(stream: dict[int, pa.RecordBatch], schema: TableSchema) -> RawChanges:
    empty = pa.RecordBatch.from_pylist([], schema=RAW_SCHEMA)
    return RawChanges(schema, stream.get(schema.relation_id, empty))


def await_zero(database: Database, query: str) -> None:
    with database.connect() as connection:
        for _ in range(200):
            row = connection.execute(query.encode()).fetchone()
            assert row is not None
            if row[0] == 0:
                return
            connection.execute("SELECT pg_sleep(0.05)")
    pytest.fail(f"never became zero: {query}")
