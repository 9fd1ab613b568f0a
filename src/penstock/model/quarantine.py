"""Define quarantined messages: those that cannot be decoded, kept byte for byte in the state store.

It holds all that is needed to try again later, with another decoder and without the change log.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from penstock.model.change import RAW_SCHEMA, RawChanges
from penstock.model.position import Position, order_text
from penstock.model.record import read_record, write_record
from penstock.model.table import TableId, TableSchema


@dataclass(frozen=True)
class RawMessage:
    """One raw change under the schema that was in force there. `reason` says why it cannot be decoded."""

    schema: TableSchema
    commit_position: Position
    ordinal: int
    change_position: Position
    transaction: int
    commit_time: datetime
    op: int
    data: bytes
    reason: str

    @property
    def order(self) -> str:
        return order_text(self.commit_position, self.ordinal)


@dataclass(frozen=True)
class Quarantined:
    """A kept message of `table`, as the state store knows it: the name of the feed that stood at it.

    `id` is never used again.
    """

    id: int
    destination: str
    table: TableId
    at: datetime
    message: RawMessage


def raw_message(changes: RawChanges, row: int, reason: str) -> RawMessage:
    values = changes.batch.slice(row, 1).to_pylist()[0]
    return RawMessage(schema=changes.schema, reason=reason, **values)


def as_changes(message: RawMessage) -> RawChanges:
    """Return the message as raw changes for decode."""
    row = {name: getattr(message, name) for name in RAW_SCHEMA.names}
    return RawChanges(message.schema, pa.RecordBatch.from_pylist([row], schema=RAW_SCHEMA))


_RECORD, _RECORD_VERSION = "message", 1


def write_message(message: RawMessage) -> str:
    """Write the message as a record (`record.py`)."""
    return write_record(
        _RECORD,
        _RECORD_VERSION,
        {
            "schema": message.schema.to_json(),
            "commit_position": message.commit_position,
            "ordinal": message.ordinal,
            "change_position": message.change_position,
            "transaction": message.transaction,
            "commit_time": message.commit_time.isoformat(),
            "op": message.op,
            "data": base64.b64encode(message.data).decode(),
            "reason": message.reason,
        },
    )


def read_message(text: str) -> RawMessage:
    """Read what `write_message` wrote. UnreadableRecord for anything else."""
    fields = read_record(text, _RECORD, _RECORD_VERSION)
    return RawMessage(
        schema=TableSchema.from_json(fields.text("schema")),
        commit_position=fields.integer("commit_position"),
        ordinal=fields.integer("ordinal"),
        change_position=fields.integer("change_position"),
        transaction=fields.integer("transaction"),
        commit_time=datetime.fromisoformat(fields.text("commit_time")),
        op=fields.integer("op"),
        data=base64.b64decode(fields.text("data")),
        reason=fields.text("reason"),
    )
