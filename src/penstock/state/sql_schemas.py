"""The schema registry in the SQL state store."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from sqlalchemy import Connection, Row, delete, insert, select

from penstock.model.position import Position
from penstock.model.schema_version import SchemaVersion, obsolete
from penstock.model.table import TableId, TableSchema
from penstock.state.sql_part import SqlPart, put
from penstock.state.sql_tables import SCHEMAS, SCHEMAS_SEEN
from penstock.state.store import SCHEMAS_KEPT


class SqlSchemaVersions(SqlPart):
    def record_schemas(
        self, found: Sequence[tuple[TableId, TableSchema, Position]], seen: Position | None = None
    ) -> None:
        with self._writing() as connection:
            for table, schema, position in found:
                newest = self._newest(connection, table)
                if newest is not None and (newest.is_same(schema) or position < newest.position):
                    continue
                values = {
                    "source": self._source,
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
                put(connection, SCHEMAS_SEEN, {"source": self._source}, {"position": seen})

    def schemas_seen(self) -> Position | None:
        with self._transaction() as connection:
            return connection.scalar(select(SCHEMAS_SEEN.c.position).filter_by(source=self._source))

    def schema_versions(self) -> list[SchemaVersion]:
        with self._transaction() as connection:
            return self._versions(connection)

    def prune_schemas(self, before: Position, tables: Collection[TableId]) -> int:
        with self._writing() as connection:
            wanted = [one for one in self._versions(connection) if one.table in tables]
            numbers = [one.sequence for one in obsolete(wanted, before, SCHEMAS_KEPT)]
            if numbers:
                connection.execute(delete(SCHEMAS).where(SCHEMAS.c.sequence.in_(numbers)))
            return len(numbers)

    def _versions(self, connection: Connection) -> list[SchemaVersion]:
        return [_version(row) for row in connection.execute(self._own(SCHEMAS).order_by(SCHEMAS.c.sequence))]

    def _newest(self, connection: Connection, table: TableId) -> SchemaVersion | None:
        of_table = self._own(SCHEMAS).filter_by(table_schema=table.schema, table_name=table.name)
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
