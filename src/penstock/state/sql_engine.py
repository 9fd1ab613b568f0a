"""Where a SQL state store lives: the engine for a path or a URL, and how SQLite is set up. Called by `sql.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from penstock.errors import ConfigError, StateError


def engine_of(where: str | Path) -> Engine:
    """For a path (SQLite) or a database URL; ConfigError for anything else."""
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


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(
            f"the state store's folder {folder} cannot be made: {error.strerror}", "Make its parent writable"
        ) from error
