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
    FromClause,
    Row,
    Table,
    and_,
    case,
    create_engine,
    delete,
    event,
    func,
    insert,
    inspect,
    make_url,
    select,
    text,
    update,
)
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from penstock.errors import ConfigError, StateError
from penstock.model.anomaly import AnomalyCount, merged_anomalies
from penstock.model.partitions import Partitions
from penstock.model.position import Position
from penstock.model.quarantine import Quarantined, RawMessage
from penstock.model.rescue import RescueCount
from penstock.model.schema_version import SchemaVersion
from penstock.model.table import TableId, TableSchema
from penstock.model.table_state import State, TableProgress, TableStatus
from penstock.state import sql_cuts, sql_quarantine, sql_schemas
from penstock.state.cut import Cut
from penstock.state.sql_tables import (
    ANOMALIES,
    COPIES,
    COPY_NOTES,
    COPY_RANGES,
    EVENTS,
    FORMAT,
    HEALTH,
    METADATA,
    PARTITIONS,
    PROCESSED,
    REQUESTS,
    RESCUED,
    STORE_FORMAT,
    TABLE_PROGRESS,
    TABLE_STATUS,
)
from penstock.state.store import (
    EVENTS_KEPT,
    SCHEMAS_KEPT,
    CopyProgress,
    CopyRecord,
    Event,
    Health,
    RangeRecord,
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
            version = FORMAT if is_new else connection.scalar(select(STORE_FORMAT.c.version))
            if version != FORMAT:
                raise StateError(
                    f"the state store {self._where} has format {version}; this penstock knows format {FORMAT}",
                    "Use the penstock that wrote it, or move it away: positions are in the destinations",
                )
            METADATA.create_all(connection)
            if is_new:
                connection.execute(insert(STORE_FORMAT).values(version=FORMAT))

    def exists(self) -> bool:
        with self._transaction() as connection:
            return inspect(connection).has_table(STORE_FORMAT.name)

    def is_complete(self) -> bool:
        """Whether every table is there; a store of an earlier penstock lacks the newer ones."""
        with self._transaction() as connection:
            return set(METADATA.tables) <= set(inspect(connection).get_table_names())

    def table_status(self, destination: str) -> dict[TableId, TableStatus]:
        with self._transaction() as connection:
            rows = connection.execute(_of_destination(TABLE_STATUS, destination)).all()
        found = {
            TableId(row.table_schema, row.table_name): TableStatus(
                State(row.state), row.since, row.reason, row.solution, row.retry
            )
            for row in rows
        }
        return dict(sorted(found.items()))

    def set_table_status(self, destination: str, table: TableId, status: TableStatus) -> None:
        key = _table_key(destination, table)
        with self._writing() as connection:
            present = connection.scalar(select(TABLE_STATUS.c.state).filter_by(**key))
            require_legal(table, None if present is None else State(present), status.state)
            _put(
                connection,
                TABLE_STATUS,
                key,
                {
                    "state": status.state.value,
                    "since": status.since,
                    "reason": status.reason,
                    "solution": status.solution,
                    "retry": status.retry,
                },
            )

    def record_progress(self, destination: str, progress: Mapping[TableId, TableProgress]) -> None:
        with self._transaction() as connection:
            for table, made in progress.items():
                _put(
                    connection,
                    TABLE_PROGRESS,
                    _table_key(destination, table),
                    {
                        "position": made.position,
                        "changes": made.changes,
                        "rate": made.rate,
                        "commit_time": made.commit_time,
                        "updated_at": made.updated_at,
                    },
                )

    def progress(self, destination: str) -> dict[TableId, TableProgress]:
        with self._transaction() as connection:
            rows = connection.execute(_of_destination(TABLE_PROGRESS, destination)).all()
        found = {
            TableId(row.table_schema, row.table_name): TableProgress(
                row.position, row.changes, row.rate, row.commit_time, row.updated_at
            )
            for row in rows
        }
        return dict(sorted(found.items()))

    def set_processed(self, destination: str, position: Position) -> None:
        with self._transaction() as connection:
            _put(connection, PROCESSED, {"destination": destination}, {"position": position})

    def processed(self, destination: str) -> Position | None:
        with self._transaction() as connection:
            return connection.scalar(select(PROCESSED.c.position).filter_by(destination=destination))

    def add_event(self, kind: str, message: str, table: TableId | None = None) -> None:
        with self._transaction() as connection:
            connection.execute(
                insert(EVENTS).values(
                    at=datetime.now(UTC),
                    kind=kind,
                    message=message,
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
            )
            for row in reversed(rows)
        ]

    def set_health(self, component: str, health: Health) -> None:
        with self._transaction() as connection:
            _put(
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
        self, destination: str, table: TableId, copy: str, fingerprint: str, ranges: Sequence[tuple[bytes, int]]
    ) -> None:
        key = _table_key(destination, table)
        with self._writing() as connection:
            earlier = connection.scalar(select(COPIES.c.attempts).filter_by(**key, ended=None)) or 0
            for kept in (COPIES, COPY_RANGES, COPY_NOTES, RESCUED, ANOMALIES):
                connection.execute(delete(kept).filter_by(**key))
            head = {"copy": copy, "started": datetime.now(UTC), "fingerprint": fingerprint, "attempts": earlier + 1}
            connection.execute(insert(COPIES).values(**key, **head, ranges=len(ranges), rows=0, bytes=0))
            if ranges:
                connection.execute(
                    insert(COPY_RANGES),
                    [
                        {**key, "number": number, "copy": copy, "content": content, "rows": 0, "bytes": size}
                        for number, (content, size) in enumerate(ranges)
                    ],
                )

    def finish_range(
        self, destination: str, table: TableId, copy: str, number: int, position: Position, part: bytes, rows: int
    ) -> bool:
        with self._transaction() as connection:
            finished = connection.execute(
                update(COPY_RANGES)
                .filter_by(**_table_key(destination, table), copy=copy, number=number)
                .values(position=position, part=part, rows=rows)
            )
            return finished.rowcount == 1

    def note_copy(self, destination: str, table: TableId, note: str) -> None:
        key = _table_key(destination, table)
        with self._writing() as connection:
            if note:
                _put(connection, COPY_NOTES, key, {"note": note})
            else:
                connection.execute(delete(COPY_NOTES).filter_by(**key))

    def copy_of(self, destination: str, table: TableId) -> CopyRecord | None:
        under_way = select(COPIES).filter_by(**_table_key(destination, table), ended=None).subquery()
        found = (
            select(
                *under_way.c["copy", "started", "fingerprint", "attempts"],
                COPY_NOTES.c.note,
                *COPY_RANGES.c["number", "content", "position", "part", "rows", "bytes"],
            )
            .select_from(under_way)
            .outerjoin(COPY_NOTES, _same_table(under_way, COPY_NOTES))
            .outerjoin(COPY_RANGES, _same_table(under_way, COPY_RANGES))
            .order_by(COPY_RANGES.c.number)
        )
        with self._transaction() as connection:
            rows = connection.execute(found).all()
        if not rows:
            return None
        head = rows[0]
        return CopyRecord(
            head.copy,
            head.started,
            head.fingerprint,
            tuple(
                RangeRecord(row.number, row.content, row.position, row.part, row.rows, row.bytes)
                for row in rows
                if row.number is not None
            ),
            head.attempts,
            head.note or "",
        )

    def copy_progress(self, destination: str) -> dict[TableId, CopyProgress]:
        finished = COPY_RANGES.c.position.is_not(None)
        counted = (
            select(
                *COPIES.c,
                func.count(COPY_RANGES.c.position).label("finished"),
                func.coalesce(func.sum(COPY_RANGES.c.rows), 0).label("finished_rows"),
                func.coalesce(func.sum(case((finished, COPY_RANGES.c.bytes))), 0).label("finished_bytes"),
                func.coalesce(func.sum(COPY_RANGES.c.bytes), 0).label("all_bytes"),
            )
            .select_from(COPIES.outerjoin(COPY_RANGES, _same_table(COPIES, COPY_RANGES)))
            .where(COPIES.c.destination == destination)
            .group_by(*COPIES.c)
        )
        with self._transaction() as connection:
            copies = connection.execute(counted).all()
            notes = connection.execute(_of_destination(COPY_NOTES, destination)).all()
        note_of = {TableId(row.table_schema, row.table_name): row.note for row in notes}
        found = {table: CopyProgress(note=note) for table, note in note_of.items()}
        for row in copies:
            table, over = TableId(row.table_schema, row.table_name), row.ended is not None
            found[table] = CopyProgress(
                started=row.started,
                ended=row.ended,
                attempts=row.attempts,
                ranges=row.ranges,
                ranges_finished=row.ranges if over else row.finished,
                rows=row.rows if over else int(row.finished_rows),
                bytes=row.bytes if over else int(row.finished_bytes),
                bytes_total=row.bytes if over else int(row.all_bytes),
                note=note_of.get(table, ""),
            )
        return dict(sorted(found.items()))

    def end_copy(self, destination: str, table: TableId) -> None:
        key = _table_key(destination, table)
        with self._writing() as connection:
            ranges = COPY_RANGES.c
            unfinished, rows, size = connection.execute(
                select(
                    func.count() - func.count(ranges.position),
                    func.coalesce(func.sum(ranges.rows), 0),
                    func.coalesce(func.sum(ranges.bytes), 0),
                ).filter_by(**key)
            ).one()
            under_way = {**key, "ended": None}
            if unfinished:
                connection.execute(delete(COPIES).filter_by(**under_way))
            else:
                totals = {"ended": datetime.now(UTC), "rows": int(rows), "bytes": int(size)}
                connection.execute(update(COPIES).filter_by(**under_way).values(**totals))
            for kept in (COPY_RANGES, COPY_NOTES):
                connection.execute(delete(kept).filter_by(**key))

    def add_rescued(self, destination: str, table: TableId, counts: Sequence[RescueCount]) -> None:
        if not counts:
            return
        with self._writing() as connection:
            for count in counts:
                key = {**_table_key(destination, table), "column_name": count.column}
                before = connection.scalar(select(RESCUED.c.cells).filter_by(**key)) or 0
                values = {"cells": before + count.cells, "sample": count.sample, "place": count.place}
                _put(connection, RESCUED, key, values)

    def add_anomalies(self, destination: str, table: TableId, counts: Sequence[AnomalyCount]) -> None:
        if not counts:
            return
        with self._writing() as connection:
            known = _anomalies(connection.execute(select(ANOMALIES).filter_by(**_table_key(destination, table))).all())
            for count in merged_anomalies([*known.get(table, ()), *counts]):
                key = {**_table_key(destination, table), "kind": count.kind}
                _put(connection, ANOMALIES, key, {"changes": count.changes, "places": "\n".join(count.places)})

    def anomalies(self, destination: str) -> dict[TableId, tuple[AnomalyCount, ...]]:
        with self._transaction() as connection:
            return _anomalies(connection.execute(_of_destination(ANOMALIES, destination)).all())

    def rescued(self, destination: str) -> dict[TableId, tuple[RescueCount, ...]]:
        with self._transaction() as connection:
            rows = connection.execute(_of_destination(RESCUED, destination)).all()
        found: dict[TableId, list[RescueCount]] = {}
        for row in rows:
            count = RescueCount(row.column_name, row.cells, row.sample, row.place)
            found.setdefault(TableId(row.table_schema, row.table_name), []).append(count)
        return {table: tuple(sorted(counts, key=lambda count: count.column)) for table, counts in sorted(found.items())}

    def add_request(self, kind: RequestKind, table: TableId) -> int:
        asked = {"at": datetime.now(UTC), "kind": kind, "table_schema": table.schema, "table_name": table.name}
        with self._transaction() as connection:
            number: int = connection.execute(insert(REQUESTS).returning(REQUESTS.c.id), asked).scalar_one()
        return number

    def requests(self) -> list[Request]:
        with self._transaction() as connection:
            rows = connection.execute(select(REQUESTS).order_by(REQUESTS.c.id)).all()
        return [Request(row.id, row.kind, TableId(row.table_schema, row.table_name), row.at) for row in rows]

    def drop_request(self, number: int) -> None:
        with self._transaction() as connection:
            connection.execute(delete(REQUESTS).filter_by(id=number))

    def set_partitions(self, destination: str, table: TableId, partitions: Partitions | None) -> None:
        key = _table_key(destination, table)
        with self._writing() as connection:
            if partitions is None:
                connection.execute(delete(PARTITIONS).filter_by(**key))
            else:
                _put(connection, PARTITIONS, key, {"content": partitions.to_json()})

    def partitions(self, destination: str) -> dict[TableId, Partitions]:
        with self._transaction() as connection:
            rows = connection.execute(_of_destination(PARTITIONS, destination)).all()
        found = {TableId(row.table_schema, row.table_name): Partitions.from_json(row.content) for row in rows}
        return dict(sorted(found.items()))

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

    def ask_cuts(self, tables: Sequence[TableId]) -> list[int]:
        with self._transaction() as connection:
            return sql_cuts.add(connection, tables)

    def cuts(self) -> list[Cut]:
        with self._transaction() as connection:
            return sql_cuts.read(connection)

    def hold_cut(self, number: int) -> bool:
        with self._transaction() as connection:
            return sql_cuts.move(connection, number, ("asked",), {"state": "held"})

    def place_cut(self, number: int, position: Position, repair: str = "") -> bool:
        placed = {"state": "placed", "position": position, "repair": repair}
        with self._transaction() as connection:
            return sql_cuts.move(connection, number, ("held",), placed)

    def answer_cut(
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
            sql_cuts.move(connection, number, ("asked", "held", "placed"), answer)

    def renew_cuts(self, numbers: Sequence[int]) -> None:
        with self._transaction() as connection:
            sql_cuts.renew(connection, numbers)

    def drop_cuts(self, numbers: Sequence[int]) -> None:
        with self._transaction() as connection:
            sql_cuts.drop(connection, numbers)

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
    engine = _engine(where)
    if engine.url.database is not None and engine.url.get_backend_name() == "sqlite":
        _make_folder(Path(engine.url.database).parent)
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
    engine = _engine(where)
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


def _engine(where: str | Path) -> Engine:
    text = str(where)
    if "://" not in text:
        engine = create_engine(f"sqlite:///{Path(text).absolute()}")
    else:
        try:
            url = make_url(text)
            if url.drivername in ("postgres", "postgresql"):
                url = url.set(drivername="postgresql+psycopg")
            engine = create_engine(url, pool_pre_ping=True)
        except (ArgumentError, NoSuchModuleError) as error:
            raise ConfigError(
                "state: is neither a path nor a URL of a database that penstock knows",
                "Give a path, `sqlite:///path` or `postgresql://user@host/database`",
            ) from error
    if engine.url.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    for pragma in ("busy_timeout = 10000", "journal_mode = WAL", "synchronous = NORMAL"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(
            f"the state store's folder {folder} cannot be made: {error.strerror}", "Make its parent writable"
        ) from error


def _table_key(destination: str, table: TableId) -> dict[str, str]:
    return {"destination": destination, "table_schema": table.schema, "table_name": table.name}


def _same_table(left: FromClause, right: FromClause) -> Any:
    return and_(*(left.c[name] == right.c[name] for name in ("destination", "table_schema", "table_name")))


def _of_destination(table: Table, destination: str) -> Any:
    return select(table).filter_by(destination=destination)


def _put(connection: Connection, table: Table, key: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Insert or replace, in one transaction with one writer, so that no dialect's own upsert is needed."""
    changed = connection.execute(update(table).filter_by(**key).values(**values))
    if changed.rowcount == 0:
        connection.execute(insert(table).values(**key, **values))


def _anomalies(rows: Sequence[Row[Any]]) -> dict[TableId, tuple[AnomalyCount, ...]]:
    found: dict[TableId, list[AnomalyCount]] = {}
    for row in rows:
        count = AnomalyCount(row.kind, row.changes, tuple(row.places.split("\n")))
        found.setdefault(TableId(row.table_schema, row.table_name), []).append(count)
    return {table: tuple(sorted(counts, key=lambda count: count.kind)) for table, counts in sorted(found.items())}
