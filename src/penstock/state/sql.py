"""The state store on SQLAlchemy Core: SQLite (default, in WAL mode, so that readers never wait) or Postgres.

Keeps the contract of `store.py` in the tables of `sql_tables.py`. Tables that are missing are created, also in a store
that an earlier penstock made. Several processes may write: on SQLite a writer waits for the others' short transactions.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Connection,
    Engine,
    Row,
    delete,
    func,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.exc import SQLAlchemyError

from penstock.errors import StateError
from penstock.model.anomaly import AnomalyCount, merged_anomalies
from penstock.model.partitions import Partitions
from penstock.model.position import Position
from penstock.model.quarantine import Quarantined, RawMessage
from penstock.model.rescue import RescueCount
from penstock.model.schema_version import SchemaVersion
from penstock.model.table import TableId, TableSchema
from penstock.model.table_marks import TableMarks
from penstock.model.table_state import State, TableProgress, TableStatus
from penstock.model.upkeep import Upkeep
from penstock.model.write_counters import WriteCounters
from penstock.state import sql_copies, sql_pins, sql_quarantine, sql_schemas, sql_upkeep
from penstock.state.pin import Pin
from penstock.state.sql_engine import engine_of, make_folder
from penstock.state.sql_statements import of_destination, put, table_key
from penstock.state.sql_tables import (
    ANOMALIES,
    EVENTS,
    FORGOTTEN,
    FORMAT,
    HEALTH,
    MARKS,
    METADATA,
    PARTITIONS,
    PROCESSED,
    REQUESTS,
    RESCUED,
    RULES,
    STORE_FORMAT,
    TABLE_PROGRESS,
    TABLE_STATUS,
    WRITE_COUNTERS,
)
from penstock.state.store import (
    EVENTS_KEPT,
    SCHEMAS_KEPT,
    CopyProgress,
    CopyRecord,
    Event,
    Health,
    Request,
    RequestKind,
    require_legal,
)

CREATION_LOCK = 0x70656E73746F636B  # "penstock": Postgres' advisory lock while tables are created


class SqlStateStore:
    """Use `open_store` or `find_store`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._where = engine.url.render_as_string(hide_password=True)

    def create_tables(self) -> None:
        """Those that are missing: all of them in a new store, the newer ones in one of an earlier penstock."""
        with self._writing() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("select pg_advisory_xact_lock(:key)"), {"key": CREATION_LOCK})
            is_new = not inspect(connection).has_table(STORE_FORMAT.name)
            if not is_new:
                self._require_format(connection)
            METADATA.create_all(connection)
            if is_new:
                connection.execute(insert(STORE_FORMAT).values(version=FORMAT))

    def exists(self) -> bool:
        """Tell whether there is a store; StateError when it has another format."""
        with self._transaction() as connection:
            found = inspect(connection).has_table(STORE_FORMAT.name)
            if found:
                self._require_format(connection)
            return found

    def is_complete(self) -> bool:
        """Whether every table is there; a store of an earlier penstock lacks the newer ones."""
        with self._transaction() as connection:
            return set(METADATA.tables) <= set(inspect(connection).get_table_names())

    def _require_format(self, connection: Connection) -> None:
        version = connection.scalar(select(STORE_FORMAT.c.version))
        if version != FORMAT:
            raise StateError(
                f"the state store {self._where} has format {version}; this penstock reads and writes format {FORMAT}",
                "Use the penstock that wrote it, or stop the pipeline and move the store away: a new one is made, no "
                "position is lost with it, and copies under way start again",
            )

    def table_status(self, destination: str) -> dict[TableId, TableStatus]:
        with self._transaction() as connection:
            rows = connection.execute(of_destination(TABLE_STATUS, destination)).all()
        found = {
            TableId(row.table_schema, row.table_name): TableStatus(
                State(row.state), row.since, row.reason, row.solution, row.retry, row.code
            )
            for row in rows
        }
        return dict(sorted(found.items()))

    def set_table_status(self, destination: str, table: TableId, status: TableStatus) -> None:
        key = table_key(destination, table)
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
                    "retry": status.retry,
                    "code": status.code,
                },
            )

    def record_progress(self, destination: str, progress: Mapping[TableId, TableProgress]) -> None:
        with self._transaction() as connection:
            for table, made in progress.items():
                put(
                    connection,
                    TABLE_PROGRESS,
                    table_key(destination, table),
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
            rows = connection.execute(of_destination(TABLE_PROGRESS, destination)).all()
        found = {
            TableId(row.table_schema, row.table_name): TableProgress(
                row.position, row.changes, row.rate, row.commit_time, row.updated_at, row.fetched
            )
            for row in rows
        }
        return dict(sorted(found.items()))

    def set_processed(self, destination: str, position: Position) -> None:
        with self._transaction() as connection:
            put(connection, PROCESSED, {"destination": destination}, {"position": position})

    def processed(self, destination: str) -> Position | None:
        with self._transaction() as connection:
            return connection.scalar(select(PROCESSED.c.position).filter_by(destination=destination))

    def add_event(
        self, kind: str, message: str, table: TableId | None = None, *, destination: str | None = None
    ) -> None:
        with self._transaction() as connection:
            connection.execute(
                insert(EVENTS).values(
                    at=datetime.now(UTC),
                    kind=kind,
                    message=message,
                    destination=destination,
                    table_schema=table.schema if table else None,
                    table_name=table.name if table else None,
                )
            )
            newest = select(func.max(EVENTS.c.id)).scalar_subquery()
            connection.execute(delete(EVENTS).where(EVENTS.c.id <= newest - EVENTS_KEPT))

    def events(self, limit: int = 20) -> list[Event]:
        with self._transaction() as connection:
            rows = connection.execute(select(EVENTS).order_by(EVENTS.c.id.desc()).limit(limit)).all()
        return [
            Event(
                row.at,
                row.kind,
                row.message,
                None if row.table_name is None else TableId(row.table_schema, row.table_name),
                row.destination,
            )
            for row in reversed(rows)
        ]

    def set_health(self, component: str, health: Health) -> None:
        with self._transaction() as connection:
            put(
                connection,
                HEALTH,
                {"component": component},
                {
                    "state": health.state,
                    "since": health.since,
                    "message": health.message,
                    "solution": health.solution,
                    "attempts": health.attempts,
                },
            )

    def health(self) -> dict[str, Health]:
        with self._transaction() as connection:
            rows = connection.execute(select(HEALTH).order_by(HEALTH.c.component)).all()
        return {row.component: Health(row.state, row.since, row.message, row.solution, row.attempts) for row in rows}

    def begin_copy(
        self, destination: str, table: TableId, copy: str, fingerprint: str, ranges: Sequence[tuple[str, int]]
    ) -> None:
        with self._writing() as connection:
            sql_copies.begin(connection, table_key(destination, table), copy, fingerprint, ranges)

    def finish_range(
        self, destination: str, table: TableId, copy: str, number: int, position: Position, part: str, rows: int
    ) -> bool:
        with self._transaction() as connection:
            place = {**table_key(destination, table), "copy": copy, "number": number}
            return sql_copies.finish_range(connection, place, position, part, rows)

    def note_copy(self, destination: str, table: TableId, note: str) -> None:
        with self._writing() as connection:
            sql_copies.note(connection, table_key(destination, table), note)

    def copy_of(self, destination: str, table: TableId) -> CopyRecord | None:
        with self._transaction() as connection:
            return sql_copies.under_way(connection, table_key(destination, table))

    def copy_progress(self, destination: str) -> dict[TableId, CopyProgress]:
        with self._transaction() as connection:
            return sql_copies.progress(connection, destination)

    def end_copy(self, destination: str, table: TableId) -> None:
        with self._writing() as connection:
            sql_copies.end(connection, table_key(destination, table))

    def add_rescued(self, destination: str, table: TableId, counts: Sequence[RescueCount]) -> None:
        if not counts:
            return
        with self._writing() as connection:
            for count in counts:
                key = {**table_key(destination, table), "column_name": count.column}
                before = connection.scalar(select(RESCUED.c.cells).filter_by(**key)) or 0
                values = {"cells": before + count.cells, "sample": count.sample, "place": count.place}
                put(connection, RESCUED, key, values)

    def add_anomalies(self, destination: str, table: TableId, counts: Sequence[AnomalyCount]) -> None:
        if not counts:
            return
        with self._writing() as connection:
            known = _anomalies(connection.execute(select(ANOMALIES).filter_by(**table_key(destination, table))).all())
            for count in merged_anomalies([*known.get(table, ()), *counts]):
                key = {**table_key(destination, table), "kind": count.kind}
                put(connection, ANOMALIES, key, {"changes": count.changes, "places": "\n".join(count.places)})

    def anomalies(self, destination: str) -> dict[TableId, tuple[AnomalyCount, ...]]:
        with self._transaction() as connection:
            return _anomalies(connection.execute(of_destination(ANOMALIES, destination)).all())

    def rescued(self, destination: str) -> dict[TableId, tuple[RescueCount, ...]]:
        with self._transaction() as connection:
            rows = connection.execute(of_destination(RESCUED, destination)).all()
        found: dict[TableId, list[RescueCount]] = {}
        for row in rows:
            count = RescueCount(row.column_name, row.cells, row.sample, row.place)
            found.setdefault(TableId(row.table_schema, row.table_name), []).append(count)
        return {table: tuple(sorted(counts, key=lambda count: count.column)) for table, counts in sorted(found.items())}

    def record_upkeep(self, destination: str, upkeep: Mapping[TableId, Upkeep]) -> None:
        with self._writing() as connection:
            sql_upkeep.record(connection, destination, upkeep)

    def upkeep(self, destination: str) -> dict[TableId, Upkeep]:
        with self._transaction() as connection:
            return sql_upkeep.read(connection, destination)

    def add_request(self, destination: str, table: TableId, kind: RequestKind) -> int:
        asked = {"at": datetime.now(UTC), "kind": kind, **table_key(destination, table)}
        with self._transaction() as connection:
            number: int = connection.execute(insert(REQUESTS).returning(REQUESTS.c.id), asked).scalar_one()
        return number

    def requests(self, destination: str | None = None) -> list[Request]:
        wanted = of_destination(REQUESTS, destination)
        with self._transaction() as connection:
            rows = connection.execute(wanted.order_by(REQUESTS.c.id)).all()
        return [
            Request(row.id, row.destination, TableId(row.table_schema, row.table_name), row.kind, row.at)
            for row in rows
        ]

    def drop_request(self, number: int) -> None:
        with self._transaction() as connection:
            connection.execute(delete(REQUESTS).filter_by(id=number))

    def set_partitions(self, destination: str, table: TableId, partitions: Partitions | None) -> None:
        key = table_key(destination, table)
        with self._writing() as connection:
            if partitions is None:
                connection.execute(delete(PARTITIONS).filter_by(**key))
            else:
                put(connection, PARTITIONS, key, {"content": partitions.to_json()})

    def partitions(self, destination: str) -> dict[TableId, Partitions]:
        with self._transaction() as connection:
            rows = connection.execute(of_destination(PARTITIONS, destination)).all()
        found = {TableId(row.table_schema, row.table_name): Partitions.from_json(row.content) for row in rows}
        return dict(sorted(found.items()))

    def set_marks(self, destination: str, table: TableId, marks: TableMarks | None) -> None:
        key = table_key(destination, table)
        with self._writing() as connection:
            if marks is None:
                connection.execute(delete(MARKS).filter_by(**key))
            else:
                put(connection, MARKS, key, {"content": marks.to_json()})

    def marks(self, destination: str) -> dict[TableId, TableMarks]:
        with self._transaction() as connection:
            rows = connection.execute(of_destination(MARKS, destination)).all()
        found = {TableId(row.table_schema, row.table_name): TableMarks.from_json(row.content) for row in rows}
        return dict(sorted(found.items()))

    def set_write_counters(self, destination: str, table: TableId, counters: WriteCounters) -> None:
        with self._writing() as connection:
            put(connection, WRITE_COUNTERS, table_key(destination, table), {"content": counters.to_json()})

    def write_counters(self, destination: str) -> dict[TableId, WriteCounters]:
        with self._transaction() as connection:
            rows = connection.execute(of_destination(WRITE_COUNTERS, destination)).all()
        found = {TableId(row.table_schema, row.table_name): WriteCounters.from_json(row.content) for row in rows}
        return dict(sorted(found.items()))

    def set_rule(self, destination: str, table: TableId, rule: str) -> None:
        with self._writing() as connection:
            put(connection, RULES, table_key(destination, table), {"content": rule})

    def rules(self, destination: str) -> dict[TableId, str]:
        with self._transaction() as connection:
            rows = connection.execute(of_destination(RULES, destination)).all()
        return dict(sorted((TableId(row.table_schema, row.table_name), row.content) for row in rows))

    def forget_table(self, destination: str, table: TableId) -> None:
        with self._writing() as connection:
            for kept in FORGOTTEN:
                connection.execute(delete(kept).filter_by(**table_key(destination, table)))

    def record_schemas(
        self, found: Sequence[tuple[TableId, TableSchema, Position]], seen: Position | None = None, reader: str = ""
    ) -> None:
        with self._writing() as connection:
            sql_schemas.record(connection, found, reader, seen)

    def schemas_seen(self, reader: str = "") -> Position | None:
        with self._transaction() as connection:
            return sql_schemas.seen(connection, reader)

    def schema_versions(self) -> list[SchemaVersion]:
        with self._transaction() as connection:
            return sql_schemas.read(connection)

    def prune_schemas(self, before: Position, tables: Collection[TableId]) -> int:
        with self._writing() as connection:
            return sql_schemas.prune(connection, before, tables, SCHEMAS_KEPT)

    def quarantine(self, destination: str, table: TableId, messages: Sequence[RawMessage]) -> None:
        with self._writing() as connection:
            sql_quarantine.keep(connection, destination, table, messages)

    def quarantined(self, destination: str) -> list[Quarantined]:
        with self._transaction() as connection:
            return sql_quarantine.read(connection, destination)

    def quarantined_counts(self, destination: str) -> dict[TableId, int]:
        with self._transaction() as connection:
            return sql_quarantine.count(connection, destination)

    def release(self, numbers: Collection[int]) -> None:
        with self._transaction() as connection:
            sql_quarantine.release(connection, numbers)

    def release_before(self, destination: str, table: TableId, position: Position) -> int:
        with self._transaction() as connection:
            return sql_quarantine.release_before(connection, destination, table, position)

    def ask_pins(self, destination: str, tables: Sequence[TableId]) -> list[int]:
        with self._transaction() as connection:
            return sql_pins.add(connection, destination, tables)

    def pins(self, destination: str | None = None) -> list[Pin]:
        with self._transaction() as connection:
            return sql_pins.read(connection, destination)

    def hold_pin(self, number: int) -> bool:
        with self._transaction() as connection:
            return sql_pins.move(connection, number, ("asked",), {"state": "held"})

    def place_pin(self, number: int, position: Position, repair: str = "") -> bool:
        placed = {"state": "placed", "position": position, "repair": repair}
        with self._transaction() as connection:
            return sql_pins.move(connection, number, ("held",), placed)

    def answer_pin(
        self,
        number: int,
        *,
        snapshot: str | None,
        columns: Mapping[int, str] | None = None,
        reason: str = "",
        solution: str = "",
    ) -> None:
        state = "failed" if snapshot is None else "made"
        answer = {
            "state": state,
            "snapshot": snapshot or "",
            "columns": json.dumps(dict(columns or {})),
            "reason": reason,
            "solution": solution,
        }
        with self._transaction() as connection:
            sql_pins.move(connection, number, ("asked", "held", "placed"), answer)

    def renew_pins(self, numbers: Sequence[int]) -> None:
        with self._transaction() as connection:
            sql_pins.renew(connection, numbers)

    def drop_pins(self, numbers: Sequence[int]) -> None:
        with self._transaction() as connection:
            sql_pins.drop(connection, numbers)

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            reason = str(error.__cause__ or error).strip().splitlines()[0]
            raise StateError(
                f"the state store {self._where} does not work: {reason}",
                "Make it reachable and writable; if it is damaged, stop the pipeline and move it away: "
                "positions are in the destinations",
            ) from error

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        """A transaction that reads, decides and writes: on SQLite no other writer comes between."""
        with self._transaction() as connection:
            if connection.dialect.name == "sqlite":
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection


def open_store(where: str | Path) -> SqlStateStore:
    """The store at a path (SQLite) or a database URL, created when missing."""
    engine = engine_of(where)
    if engine.url.database is not None and engine.url.get_backend_name() == "sqlite":
        make_folder(Path(engine.url.database).parent)
    store = SqlStateStore(engine)
    try:
        store.create_tables()
    except BaseException:
        store.close()
        raise
    return store


def find_store(where: str | Path) -> SqlStateStore | None:
    """The store that is there, for reading and for requests; None where there is none yet.

    Creates no store; to one that an earlier penstock made it adds the tables that came since.
    """
    engine = engine_of(where)
    sqlite_file = engine.url.database if engine.url.get_backend_name() == "sqlite" else None
    if sqlite_file is not None and not Path(sqlite_file).exists():
        return None
    store = SqlStateStore(engine)
    try:
        found = store.exists()
        if found and not store.is_complete():
            store.create_tables()
    except BaseException:
        store.close()
        raise
    if found:
        return store
    store.close()
    return None


def _anomalies(rows: Sequence[Row[Any]]) -> dict[TableId, tuple[AnomalyCount, ...]]:
    found: dict[TableId, list[AnomalyCount]] = {}
    for row in rows:
        count = AnomalyCount(row.kind, row.changes, tuple(row.places.split("\n")))
        found.setdefault(TableId(row.table_schema, row.table_name), []).append(count)
    return {table: tuple(sorted(counts, key=lambda count: count.kind)) for table, counts in sorted(found.items())}
