"""Quarantine in the SQL state store: messages kept byte for byte. Called by `sql.py`, inside its transactions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from penstock.model.position import Position
from penstock.model.quarantine import Quarantined, RawMessage
from penstock.model.table import TableId, TableSchema
from penstock.state.sql_statements import table_key
from penstock.state.sql_tables import QUARANTINE


def keep(connection: Connection, destination: str, table: TableId, messages: Sequence[RawMessage]) -> None:
    for message in messages:
        place = {
            **table_key(destination, table),
            "commit_position": message.commit_position,
            "ordinal": message.ordinal,
        }
        again = connection.execute(update(QUARANTINE).filter_by(**place).values(reason=message.reason))
        if again.rowcount:
            continue
        connection.execute(
            insert(QUARANTINE).values(
                **place,
                at=datetime.now(UTC),
                change_position=message.change_position,
                transaction=message.transaction,
                commit_time=message.commit_time,
                op=message.op,
                data=message.data,
                definition=message.schema.to_json(),
                fingerprint=message.schema.fingerprint,
                reason=message.reason,
            )
        )


def read(connection: Connection, destination: str) -> list[Quarantined]:
    kept = select(QUARANTINE).filter_by(destination=destination)
    order = (QUARANTINE.c.table_schema, QUARANTINE.c.table_name, QUARANTINE.c.commit_position, QUARANTINE.c.ordinal)
    return [_quarantined(row) for row in connection.execute(kept.order_by(*order))]


def count(connection: Connection, destination: str) -> dict[TableId, int]:
    by = (QUARANTINE.c.table_schema, QUARANTINE.c.table_name)
    rows = connection.execute(select(*by, func.count()).filter_by(destination=destination).group_by(*by).order_by(*by))
    return {TableId(schema, name): number for schema, name, number in rows}


def release(connection: Connection, numbers: Collection[int]) -> None:
    connection.execute(delete(QUARANTINE).where(QUARANTINE.c.id.in_(numbers)))


def release_before(connection: Connection, destination: str, table: TableId, position: Position) -> int:
    gone = delete(QUARANTINE).filter_by(destination=destination, table_schema=table.schema, table_name=table.name)
    return int(connection.execute(gone.where(QUARANTINE.c.commit_position < position)).rowcount)


def _quarantined(row: Row[tuple[object, ...]]) -> Quarantined:
    values = row._mapping
    message = RawMessage(
        schema=TableSchema.from_json(values["definition"]),
        commit_position=values["commit_position"],
        ordinal=values["ordinal"],
        change_position=values["change_position"],
        transaction=values["transaction"],
        commit_time=values["commit_time"],
        op=values["op"],
        data=bytes(values["data"]),
        reason=values["reason"],
    )
    table = TableId(values["table_schema"], values["table_name"])
    return Quarantined(values["id"], values["destination"], table, values["at"], message)
