"""Where a SQL state store lives: the engine for a path or a URL, and how SQLite is set up. Called by `sql.py`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from penstock.errors import ConfigError, StateError

AWAY = {"connect_timeout": 10, "keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3}


def engine_of(where: str | Path, *, frozen_seconds: float | None = None) -> Engine:
    """Make the engine for a path (SQLite) or a database URL; ConfigError for anything else.

    With `frozen_seconds` Postgres ends a session that stands still for so long in the middle of a transaction: its
    process is stopped, or its machine gone, and it would hold the rows that whoever takes over has to write.
    """
    text = str(where)
    if "://" not in text:
        engine = create_engine(f"sqlite:///{Path(text).absolute()}")
    else:
        try:
            url = make_url(text)
            if url.drivername in ("postgres", "postgresql"):
                url = url.set(drivername="postgresql+psycopg")
            of_postgres = url.drivername == "postgresql+psycopg"
            given = {name: value for name, value in AWAY.items() if of_postgres and name not in url.query}
            engine = create_engine(url, pool_pre_ping=True, connect_args=given)
        except (ArgumentError, NoSuchModuleError) as error:
            raise ConfigError(
                "state: is neither a path nor a URL of a database that penstock knows",
                "Give a path, `sqlite:///path` or `postgresql://user@host/database`",
            ) from error
    if engine.url.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
    elif frozen_seconds is not None and engine.url.get_backend_name() == "postgresql":
        event.listen(engine, "connect", partial(_end_when_frozen, frozen_seconds))
    return engine


def _end_when_frozen(seconds: float, connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute(f"SET idle_in_transaction_session_timeout = {round(seconds * 1000)}")
    cursor.close()
    connection.commit()


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    for pragma in ("busy_timeout = 10000", "journal_mode = WAL", "synchronous = NORMAL"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(
            f"the state store's folder {folder} cannot be made: {error.strerror}", "Make its parent writable"
        ) from error
