"""Events of note, health of the components and what operators asked for, in the SQL state store."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import delete, insert, select

from penstock.model.table import TableId
from penstock.state.sql_part import SqlPart, put, table_of
from penstock.state.sql_tables import EVENTS, HEALTH, PAUSES, REQUESTS
from penstock.state.store import EVENTS_KEPT, Event, Health, Pause, Request, RequestKind

NO_TABLE = TableId("", "")  # in a row: the destination as a whole


class SqlEvents(SqlPart):
    def add_event(
        self, kind: str, message: str, table: TableId | None = None, *, destination: str | None = None
    ) -> None:
        with self._transaction() as connection:
            connection.execute(
                insert(EVENTS).values(
                    source=self._source,
                    at=datetime.now(UTC),
                    kind=kind,
                    message=message,
                    destination=destination,
                    table_schema=table.schema if table else None,
                    table_name=table.name if table else None,
                )
            )
            own = select(EVENTS.c.id).filter_by(source=self._source).order_by(EVENTS.c.id.desc())
            old = connection.scalar(own.offset(EVENTS_KEPT).limit(1))
            if old is not None:
                connection.execute(delete(EVENTS).where(EVENTS.c.source == self._source, EVENTS.c.id <= old))

    def events(self, limit: int = 20) -> list[Event]:
        with self._transaction() as connection:
            rows = connection.execute(self._own(EVENTS).order_by(EVENTS.c.id.desc()).limit(limit)).all()
        return [
            Event(
                row.at,
                row.kind,
                row.message,
                None if row.table_name is None else table_of(row),
                row.destination,
            )
            for row in reversed(rows)
        ]


class SqlHealthReports(SqlPart):
    def set_health(self, component: str, health: Health) -> None:
        with self._transaction() as connection:
            put(
                connection,
                HEALTH,
                {"source": self._source, "component": component},
                {
                    "state": health.state,
                    "since": health.since,
                    "message": health.message,
                    "solution": health.solution,
                    "attempts": health.attempts,
                    "code": health.code,
                },
            )

    def health(self) -> dict[str, Health]:
        with self._transaction() as connection:
            rows = connection.execute(self._own(HEALTH).order_by(HEALTH.c.component)).all()
        return {
            row.component: Health(row.state, row.since, row.message, row.solution, row.attempts, row.code)
            for row in rows
        }


class SqlRequests(SqlPart):
    def add_request(self, destination: str, table: TableId, kind: RequestKind) -> int:
        asked = {"at": datetime.now(UTC), "kind": kind, **self._key(destination, table)}
        with self._transaction() as connection:
            number: int = connection.execute(insert(REQUESTS).returning(REQUESTS.c.id), asked).scalar_one()
        return number

    def requests(self, destination: str | None = None) -> list[Request]:
        wanted = self._own(REQUESTS, destination)
        with self._transaction() as connection:
            rows = connection.execute(wanted.order_by(REQUESTS.c.id)).all()
        return [Request(row.id, row.destination, table_of(row), row.kind, row.at) for row in rows]

    def drop_request(self, number: int) -> None:
        with self._transaction() as connection:
            connection.execute(delete(REQUESTS).filter_by(source=self._source, id=number))


class SqlPauses(SqlPart):
    def set_pause(self, destination: str, table: TableId | None) -> bool:
        key = self._key(destination, table or NO_TABLE)
        with self._writing() as connection:
            if connection.execute(select(PAUSES).filter_by(**key)).first() is not None:
                return False
            connection.execute(insert(PAUSES).values(**key, at=datetime.now(UTC)))
            return True

    def lift_pause(self, destination: str, table: TableId | None) -> bool:
        with self._writing() as connection:
            gone = connection.execute(delete(PAUSES).filter_by(**self._key(destination, table or NO_TABLE)))
            return gone.rowcount > 0

    def pauses(self) -> list[Pause]:
        with self._transaction() as connection:
            rows = connection.execute(self._own(PAUSES)).all()
        found = [Pause(row.destination, table_of(row) if row.table_name else None, row.at) for row in rows]
        return sorted(found, key=lambda one: (one.table is not None, one.destination, one.table or NO_TABLE))
