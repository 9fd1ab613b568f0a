"""Quarantine in the SQL state store: messages kept byte for byte."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from sqlalchemy import Row, delete, func, insert, select, update

from penstock.model.position import Position
from penstock.model.quarantine import Quarantined, RawMessage
from penstock.model.table import TableId, TableSchema
from penstock.state.sql_part import SqlPart
from penstock.state.sql_tables import QUARANTINE


class SqlQuarantine(SqlPart):
    def quarantine(self, destination: str, table: TableId, messages: Sequence[RawMessage]) -> None:
        with self._writing() as connection:
            for message in messages:
                place = {
                    **self._key(destination, table),
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

    def quarantined(self, destination: str) -> list[Quarantined]:
        order = QUARANTINE.c["table_schema", "table_name", "commit_position", "ordinal"]
        with self._transaction() as connection:
            rows = connection.execute(self._own(QUARANTINE, destination).order_by(*order)).all()
        return [_quarantined(row) for row in rows]

    def quarantined_counts(self, destination: str) -> dict[TableId, int]:
        by = (QUARANTINE.c.table_schema, QUARANTINE.c.table_name)
        own = select(*by, func.count()).filter_by(source=self._source, destination=destination)
        with self._transaction() as connection:
            rows = connection.execute(own.group_by(*by).order_by(*by)).all()
        return {TableId(schema, name): number for schema, name, number in rows}

    def release(self, numbers: Collection[int]) -> None:
        own = delete(QUARANTINE).where(QUARANTINE.c.source == self._source, QUARANTINE.c.id.in_(numbers))
        with self._transaction() as connection:
            connection.execute(own)

    def release_before(self, destination: str, table: TableId, position: Position) -> int:
        gone = delete(QUARANTINE).filter_by(**self._key(destination, table))
        with self._transaction() as connection:
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
