"""The schema registry in the SQL state store. Called by `sql.py`, inside its transactions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from sqlalchemy import Connection, Row, delete, insert, select, update

from penstock.model.position import Position
from penstock.model.schema_version import SchemaVersion, obsolete
from penstock.model.table import TableId, TableSchema
from penstock.state.sql_tables import SCHEMAS, SCHEMAS_SEEN


def record(
    connection: Connection, found: Sequence[tuple[TableId, TableSchema, Position]], reader: str, seen: Position | None
) -> None:
    for table, schema, position in found:
        newest = _newest(connection, table)
        if newest is not None and (newest.is_same(schema) or position < newest.position):
            continue
        values = {
            "table_schema": table.schema,
            "table_name": table.name,
            "version": 1 if newest is None else newest.version + 1,
            "position": position,
            "at": datetime.now(UTC),
            "fingerprint": schema.structure,
            "guessed": int(schema.guessed),
            "definition": schema.to_json(),
        }
        connection.execute(insert(SCHEMAS), values)
    if seen is not None:
        moved = connection.execute(update(SCHEMAS_SEEN).filter_by(reader=reader).values(position=seen))
        if moved.rowcount == 0:
            connection.execute(insert(SCHEMAS_SEEN).values(reader=reader, position=seen))


def seen(connection: Connection, reader: str) -> Position | None:
    return connection.scalar(select(SCHEMAS_SEEN.c.position).filter_by(reader=reader))


def read(connection: Connection) -> list[SchemaVersion]:
    return [_version(row) for row in connection.execute(select(SCHEMAS).order_by(SCHEMAS.c.sequence))]


def prune(connection: Connection, before: Position, tables: Collection[TableId], keep: int) -> int:
    wanted = [one for one in read(connection) if one.table in tables]
    numbers = [one.sequence for one in obsolete(wanted, before, keep)]
    if numbers:
        connection.execute(delete(SCHEMAS).where(SCHEMAS.c.sequence.in_(numbers)))
    return len(numbers)


def _newest(connection: Connection, table: TableId) -> SchemaVersion | None:
    of_table = select(SCHEMAS).filter_by(table_schema=table.schema, table_name=table.name)
    row = connection.execute(of_table.order_by(SCHEMAS.c.version.desc()).limit(1)).first()
    return None if row is None else _version(row)


def _version(row: Row[tuple[object, ...]]) -> SchemaVersion:
    values = row._mapping
    return SchemaVersion(
        TableId(values["table_schema"], values["table_name"]),
        values["version"],
        values["sequence"],
        values["position"],
        values["at"],
        TableSchema.from_json(values["definition"]),
    )
