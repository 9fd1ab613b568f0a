"""The state store on SQLAlchemy Core: SQLite (default, in WAL mode, so that readers never wait) or Postgres.

Keeps the contract of `store.py` in the tables of `sql_tables.py`, a part in each `sql_*.py`. Tables that are missing
are created, also in a store that an earlier penstock made. Several processes may write: on SQLite a writer waits for
the others' short transactions.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from sqlalchemy import Connection, insert, inspect, select, text

from penstock.errors import StateError
from penstock.state.sql_copies import SqlCopyRecords
from penstock.state.sql_engine import engine_of, make_folder
from penstock.state.sql_findings import SqlCopyFacts, SqlRowFindings, SqlUpkeepReports
from penstock.state.sql_letters import SqlDeadLetters
from penstock.state.sql_part import Guard
from penstock.state.sql_pins import SqlPins
from penstock.state.sql_quarantine import SqlQuarantine
from penstock.state.sql_reports import SqlEvents, SqlHealthReports, SqlPauses, SqlRequests
from penstock.state.sql_schemas import SqlSchemaVersions
from penstock.state.sql_states import SqlProgress, SqlTableStates
from penstock.state.sql_tables import FORMAT, METADATA, STORE_FORMAT

CREATION_LOCK = 0x70656E73746F636B  # "penstock": Postgres' advisory lock while tables are created


class SqlStateStore(
    SqlTableStates,
    SqlProgress,
    SqlEvents,
    SqlHealthReports,
    SqlCopyRecords,
    SqlCopyFacts,
    SqlRowFindings,
    SqlUpkeepReports,
    SqlRequests,
    SqlPauses,
    SqlSchemaVersions,
    SqlQuarantine,
    SqlDeadLetters,
    SqlPins,
):
    """Use `open_store` or `find_store`."""

    def of_source(self, source: str | None) -> SqlStateStore:
        return SqlStateStore(self._engine, source or "", self._guard)

    def guarded(self, guard: Guard) -> SqlStateStore:
        """Return the store with a guard before each of its transactions."""
        return SqlStateStore(self._engine, self._source, guard)

    def close(self) -> None:
        self._engine.dispose()

    def transaction(self) -> AbstractContextManager[Connection]:
        """Open a transaction over the tables of `sql_tables.py`, of all sources."""
        return self._transaction()

    def writing(self) -> AbstractContextManager[Connection]:
        """Open one that no other writer comes between."""
        return self._writing()

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
        """Return whether every table is there; a store of an earlier penstock lacks the newer ones."""
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


def open_store(where: str | Path, *, frozen_seconds: float | None = None) -> SqlStateStore:
    """Return the store at a path (SQLite) or a database URL, created when missing.

    `frozen_seconds`: see `engine_of`.
    """
    engine = engine_of(where, frozen_seconds=frozen_seconds)
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
    """Return the store that is there, for reading and for requests; None where there is none yet.

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
