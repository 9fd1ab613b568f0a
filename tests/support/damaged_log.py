"""A change log with a message in it that nobody can decode, while no run is up."""

from __future__ import annotations

import pyarrow as pa

from databases import Database
from penstock.changelog.log import ChangeLog
from penstock.changelog.segment import SliceRows
from penstock.changelog.writer import SegmentWriter
from penstock.model.change import RAW_SCHEMA
from running import PipelineFile


def damage(file: PipelineFile, database: Database) -> bytes:
    """Puts a message into the log that Postgres never sends: an insert that ends in the middle of a value."""
    log = ChangeLog(str(file.log))
    last = log.segments()[-1]
    header = log.header(last)
    relation = int(database.value("select 'orders'::regclass::oid::int"))
    with_orders = next(
        part.table_schema
        for name in reversed(log.segments())
        for part in log.slices(name)
        if part.table_schema.table.name == "orders"
    )
    message = b"I" + relation.to_bytes(4, "big") + b"N\0\2t\0\0\0\1" + b"9" + b"t\0\0\1\0cut"
    row = {
        "commit_position": last.end,
        "ordinal": 0,
        "change_position": last.end,
        "transaction": 1,
        "commit_time": 1_700_000_000_000_000,
        "op": ord("I"),
        "data": message,
    }
    with SegmentWriter(log) as writer:
        writer.begin(last.end, header.origin)
        writer.append(last.end + 8, [SliceRows(with_orders, pa.RecordBatch.from_pylist([row], schema=RAW_SCHEMA), 0)])
    with database.connect() as connection:  # as if it had been captured: it must not be sent again
        moved = (
            "select pg_replication_slot_advance(slot_name, %s::pg_lsn) from pg_replication_slots where database = %s"
        )
        connection.execute("select pg_logical_emit_message(true, 'test', 'the server is beyond the log')")
        connection.execute(moved, (f"{last.end + 8 >> 32:X}/{(last.end + 8) & 0xFFFFFFFF:X}", database.name))
    return message
