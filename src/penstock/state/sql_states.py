"""Table states and progress in the SQL state store."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import delete, select

from penstock.errors import Retry
from penstock.model.position import Position
from penstock.model.table import TableId
from penstock.model.table_state import State, TableProgress, TableStatus
from penstock.state.sql_part import SqlPart, put, table_of
from penstock.state.sql_tables import FORGOTTEN, HEALTH, OF_A_DESTINATION, PROCESSED, TABLE_PROGRESS, TABLE_STATUS
from penstock.state.store import component_of, require_legal


class SqlTableStates(SqlPart):
    def table_status(self, destination: str) -> dict[TableId, TableStatus]:
        with self._transaction() as connection:
            rows = connection.execute(self._own(TABLE_STATUS, destination)).all()
        found = {
            table_of(row): TableStatus(
                State(row.state),
                row.since,
                row.reason,
                row.solution,
                Retry(row.retry) if row.retry else None,
                row.code,
                row.next_try,
            )
            for row in rows
        }
        return dict(sorted(found.items()))

    def set_table_status(self, destination: str, table: TableId, status: TableStatus) -> None:
        key = self._key(destination, table)
        with self._writing() as connection:
            present = connection.scalar(select(TABLE_STATUS.c.state).filter_by(**key))
            require_legal(table, None if present is None else State(present), status.state)
            put(
                connection,
                TABLE_STATUS,
                key,
                {
                    "state": status.state.value,
                    "since": status.since,
                    "reason": status.reason,
                    "solution": status.solution,
                    "retry": "" if status.retry is None else status.retry.value,
                    "next_try": status.next_try,
                    "code": status.code,
                },
            )

    def forget_table(self, destination: str, table: TableId) -> None:
        with self._writing() as connection:
            for kept in FORGOTTEN:
                connection.execute(delete(kept).filter_by(**self._key(destination, table)))

    def forget_destination(self, destination: str) -> None:
        with self._writing() as connection:
            for kept in OF_A_DESTINATION:
                connection.execute(delete(kept).filter_by(source=self._source, destination=destination))
            connection.execute(delete(HEALTH).filter_by(source=self._source, component=component_of(destination)))


class SqlProgress(SqlPart):
    def record_progress(self, destination: str, progress: Mapping[TableId, TableProgress]) -> None:
        with self._transaction() as connection:
            for table, made in progress.items():
                put(
                    connection,
                    TABLE_PROGRESS,
                    self._key(destination, table),
                    {
                        "position": made.position,
                        "changes": made.changes,
                        "rate": made.rate,
                        "commit_time": made.commit_time,
                        "updated_at": made.updated_at,
                        "fetched": made.fetched,
                    },
                )

    def progress(self, destination: str) -> dict[TableId, TableProgress]:
        with self._transaction() as connection:
            rows = connection.execute(self._own(TABLE_PROGRESS, destination)).all()
        found = {
            table_of(row): TableProgress(
                row.position, row.changes, row.rate, row.commit_time, row.updated_at, row.fetched
            )
            for row in rows
        }
        return dict(sorted(found.items()))

    def set_processed(self, destination: str, position: Position) -> None:
        with self._transaction() as connection:
            put(connection, PROCESSED, {"source": self._source, "destination": destination}, {"position": position})

    def processed(self, destination: str) -> Position | None:
        with self._transaction() as connection:
            return connection.scalar(
                select(PROCESSED.c.position).filter_by(source=self._source, destination=destination)
            )
