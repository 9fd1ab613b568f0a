"""The state store on SQLAlchemy Core: SQLite (default, in WAL mode, so that readers never wait) or Postgres.

Keeps the contract of `store.py`. Tables are created when missing. Times are ISO text in UTC and positions fixed-width
hexadecimal, so that both databases hold the same values and a person can read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Dialect,
    Engine,
    Float,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    delete,
    event,
    func,
    insert,
    inspect,
    make_url,
    select,
    update,
)
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.types import TypeDecorator

from penstock.errors import ConfigError, StateError
from penstock.model.position import Position, parse_position, position_text
from penstock.model.table import TableId
from penstock.model.table_state import State, TableProgress, TableStatus
from penstock.state.store import EVENTS_KEPT, Event, Health, require_legal

FORMAT = 1


class Moment(TypeDecorator[datetime]):
    impl = String(40)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> str | None:
        return None if value is None else value.astimezone(UTC).isoformat(timespec="microseconds")

    def process_result_value(self, value: str | None, dialect: Dialect) -> datetime | None:
        return None if value is None else datetime.fromisoformat(value)


class PositionText(TypeDecorator[Position]):
    impl = String(16)
    cache_ok = True

    def process_bind_param(self, value: Position | None, dialect: Dialect) -> str | None:
        return None if value is None else position_text(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Position | None:
        return None if value is None else parse_position(value)


METADATA = MetaData()

STORE_FORMAT = Table("penstock_format", METADATA, Column("version", Integer, primary_key=True))

TABLE_STATUS = Table(
    "penstock_table_status",
    METADATA,
    Column("destination", Text, primary_key=True),
    Column("table_schema", Text, primary_key=True),
    Column("table_name", Text, primary_key=True),
    Column("state", Text, nullable=False),
    Column("since", Moment, nullable=False),
    Column("reason", Text, nullable=False),
    Column("solution", Text, nullable=False),
    Column("retry", Text, nullable=False),
)

TABLE_PROGRESS = Table(
    "penstock_table_progress",
    METADATA,
    Column("destination", Text, primary_key=True),
    Column("table_schema", Text, primary_key=True),
    Column("table_name", Text, primary_key=True),
    Column("position", PositionText, nullable=False),
    Column("changes", BigInteger, nullable=False),
    Column("rate", Float, nullable=False),
    Column("commit_time", Moment),
    Column("updated_at", Moment, nullable=False),
)

PROCESSED = Table(
    "penstock_processed",
    METADATA,
    Column("destination", Text, primary_key=True),
    Column("position", PositionText, nullable=False),
)

EVENTS = Table(
    "penstock_events",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("at", Moment, nullable=False),
    Column("kind", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("table_schema", Text),
    Column("table_name", Text),
)

HEALTH = Table(
    "penstock_health",
    METADATA,
    Column("component", Text, primary_key=True),
    Column("state", Text, nullable=False),
    Column("since", Moment, nullable=False),
    Column("message", Text, nullable=False),
    Column("solution", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
)


class SqlStateStore:
    """Use `open_store` or `find_store`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._where = engine.url.render_as_string(hide_password=True)

    def create_tables(self) -> None:
        with self._transaction() as connection:
            METADATA.create_all(connection)
            version = connection.scalar(select(STORE_FORMAT.c.version))
            if version is None:
                connection.execute(insert(STORE_FORMAT).values(version=FORMAT))
            elif version != FORMAT:
                raise StateError(
                    f"the state store {self._where} has format {version}; this penstock knows format {FORMAT}",
                    "Use the penstock that wrote it, or move it away: positions are in the destinations",
                )

    def exists(self) -> bool:
        with self._transaction() as connection:
            return inspect(connection).has_table(STORE_FORMAT.name)

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
        with self._transaction() as connection:
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
    """The store as it is, for reading; None where there is none yet. Creates nothing."""
    engine = _engine(where)
    sqlite_file = engine.url.database if engine.url.get_backend_name() == "sqlite" else None
    if sqlite_file is not None and not Path(sqlite_file).exists():
        return None
    store = SqlStateStore(engine)
    try:
        found = store.exists()
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


def _of_destination(table: Table, destination: str) -> Any:
    return select(table).filter_by(destination=destination)


def _put(connection: Connection, table: Table, key: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Insert or replace, in one transaction with one writer, so that no dialect's own upsert is needed."""
    changed = connection.execute(update(table).filter_by(**key).values(**values))
    if changed.rowcount == 0:
        connection.execute(insert(table).values(**key, **values))
