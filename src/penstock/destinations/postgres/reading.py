"""Read tables of a Postgres destination back, for `query` and `verify`: with SQL, without Spark.

`query` is answered by the database itself, and `verify` computes there (`comparison`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from penstock import libpq
from penstock.destinations.postgres import records
from penstock.destinations.postgres.comparison import PostgresSide, side_at
from penstock.destinations.postgres.connection import Connection, Sessions
from penstock.destinations.postgres.destination import PostgresSettings
from penstock.destinations.postgres.shape import table_columns
from penstock.destinations.postgres.staging import sid_literal
from penstock.destinations.reading import DirectTable, Foreseen, Instant, TableSize
from penstock.destinations.spark_session import Session
from penstock.errors import UsageError
from penstock.model.feed import Feed, Mode, Sid
from penstock.model.table import TableId, TableSchema

_PLAIN = {
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "text": pa.string(),
    "boolean": pa.bool_(),
    "double precision": pa.float64(),
}
_ANSWERED = {
    16: pa.bool_(),
    20: pa.int64(),
    21: pa.int16(),
    23: pa.int32(),
    25: pa.string(),
    701: pa.float64(),
    1043: pa.string(),
}  # by the number of the type


class PostgresTable:
    """A table as it is now."""

    def __init__(self, sessions: Sessions, target: TableId, columns: Mapping[str, str]) -> None:
        self._sessions, self._target, self._columns = sessions, target, columns

    @property
    def types(self) -> Mapping[str, pa.DataType | None]:
        """Columns of other than plain types are shown as their text."""
        return {name: _PLAIN.get(type, pa.string()) for name, type in self._columns.items()}

    @property
    def size(self) -> TableSize | None:
        query = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(self._target.schema, self._target.name))
        with self._sessions.session() as session:
            row = session.connection.execute(query).fetchone()
        return None if row is None else TableSize(int(row[0]), 0)

    @property
    def exact(self) -> bool:
        return True

    def scan(self, columns: Sequence[str], limit: int | None) -> pa.Table:
        types = self.types
        chosen = sql.SQL(", ").join(
            sql.Identifier(name) if self._columns[name] in _PLAIN else sql.SQL("{}::text").format(sql.Identifier(name))
            for name in columns
        )
        query = sql.SQL("SELECT {} FROM {}{}").format(
            chosen or sql.SQL("1"),
            sql.Identifier(self._target.schema, self._target.name),
            sql.SQL("") if limit is None else sql.SQL(" LIMIT {}").format(sql.Literal(limit)),
        )
        with self._sessions.session() as session:
            rows = session.connection.execute(query).fetchall()
        if not columns:
            return pa.table({"": pa.nulls(len(rows))}).select([])
        values = [[row[place] for row in rows] for place in range(len(columns))]
        arrays = [pa.array(value, types[name]) for name, value in zip(columns, values, strict=True)]
        return pa.table(arrays, names=list(columns))


class PostgresTables:
    """The tables of one destination, for reading."""

    by_spark = False

    def __init__(self, settings: PostgresSettings) -> None:
        self._create = settings.create
        self.sessions = Sessions(settings.url.get_secret_value(), settings.name)

    def require_there(self) -> None:
        with self.sessions.session() as session:
            session.connection.execute("SELECT 1")

    def problems(self) -> list[tuple[str, str]]:
        with self.sessions.session() as session:
            row = session.connection.execute(
                "SELECT current_user, current_database(), pg_is_in_recovery(), has_database_privilege("
                "current_database(), 'CREATE'), to_regnamespace('penstock') IS NOT NULL"
            ).fetchone()
        assert row is not None
        role, database, standby, may_create, prepared = row
        found = []
        if standby:
            found.append(("the server is a standby, which takes no writes", "Name the primary in `url`"))
        if not may_create and not prepared:
            found.append(
                (
                    f"role {role} may not create the schema penstock, in which positions are kept",
                    f'As the owner of the database: GRANT CREATE ON DATABASE "{database}" TO "{role}"',
                )
            )
        return found

    def foreseen(self, feeds: Sequence[Feed]) -> list[Foreseen]:
        with self.sessions.session() as session:
            found = [_foreseen(session.connection, feed, create=self._create) for feed in feeds]
        return [one for one in found if one is not None]

    def name(self, target: TableId) -> str:
        raise self._not_by_spark()

    def version(self, target: TableId, bookmark: str) -> str:
        raise self._not_by_spark()

    def register(self, spark: Session, statement: str) -> None:
        raise self._not_by_spark()

    def _not_by_spark(self) -> UsageError:
        return UsageError(
            f"destination {self.sessions.name} is a Postgres database, which Spark does not read here",
            f"Ask the database itself, at {self.sessions.where}",
        )

    def size(self, spark: Session, target: TableId) -> TableSize:
        table = self.direct(target)
        found = None if table is None else table.size
        return found or TableSize(0, 0)

    def direct(self, target: TableId) -> DirectTable | None:
        with self.sessions.session() as session:
            columns = {name: type for name, type, _ in table_columns(session.connection, target)}
        return PostgresTable(self.sessions, target, columns) if columns else None

    def instant(self, folder: Path) -> Instant:
        return Instant({}, lambda: None)  # every statement sees one

    def own_side(
        self, target: TableId, schema: TableSchema, *, bookmark: str, called: Mapping[int, str], sid: Sid | None
    ) -> AbstractContextManager[PostgresSide]:
        return side_at(
            self.sessions, target, schema, bookmark=bookmark, called=called, sid=sid, partial=not self._create
        )

    def query(self, statement: str, limit: int | None) -> pa.Table:
        """Run the statement in a transaction that cannot write, as the role that the URL names."""
        with self.sessions.errors():
            connection = self.sessions.connected()
        try:
            with self.sessions.errors():
                connection.execute("BEGIN TRANSACTION READ ONLY")
            try:
                # Prepared: so the server takes one statement, and no second one behind it.
                found = connection.execute(statement.encode(), prepare=True)
            except psycopg.OperationalError as error:
                raise self.sessions.unreachable(error) from error
            except psycopg.Error as error:
                said = error.diag.message_primary or libpq.one_line(str(error))
                raise UsageError(
                    f"the query is wrong: {said}", "It is Postgres SQL; tables are schema.table"
                ) from error
            if found.description is None:
                raise UsageError("the statement gives no rows", "Ask with SELECT, WITH, VALUES, TABLE or SHOW")
            rows = found.fetchall() if limit is None else found.fetchmany(limit)
            names = [column.name for column in found.description]
            types = [_ANSWERED.get(column.type_code) for column in found.description]
        finally:
            connection.close()
        if len(set(names)) < len(names):
            raise UsageError("two columns of the answer have the same name", "Rename one: … AS other")
        arrays = [_answers([row[place] for row in rows], type) for place, type in enumerate(types)]
        return pa.table(arrays, names=names)


def _foreseen(connection: Connection, feed: Feed, *, create: bool) -> Foreseen | None:
    target, sid = feed.target, feed.sid
    columns = [name for name, _, _ in table_columns(connection, target)]
    known = []
    if connection.execute("SELECT to_regclass('penstock.tables')").fetchone() != (None,):
        known = records.read(connection, target)
    if not columns and not create:
        return Foreseen(target, f"table {target} is not there, and `create: false` makes none", "Create it", fatal=True)
    if not columns or any(sid is None or (one.sid is not None and one.sid.value == sid.value) for one in known):
        return None
    if create and not known:
        way_out = f"Drop {target}, give the table another `target`, or set `create: false` to have it filled as it is"
        return Foreseen(target, f"table {target} is there already, and was not made by penstock", way_out, fatal=True)
    if create or feed.mode in (Mode.HISTORY, Mode.EVENTS) or (sid is not None and sid.column not in columns):
        return None
    whose, rows = "", sql.SQL("SELECT EXISTS (SELECT FROM {} t)").format(sql.Identifier(target.schema, target.name))
    if sid is not None:
        whose = f" with {sid.column} {sid.value}"
        rows = sql.SQL("SELECT EXISTS (SELECT FROM {} t WHERE t.{} = {})").format(
            sql.Identifier(target.schema, target.name), sql.Identifier(sid.column), sid_literal(sid)
        )
    if connection.execute(rows).fetchone() == (False,):
        return None
    return Foreseen(
        target,
        f"table {target} has rows{whose} already, which its first copy replaces by those of the source",
        f"Put aside what should stay: CREATE TABLE … AS TABLE {target}",
        fatal=False,
    )


def _answers(values: list[Any], type: pa.DataType | None) -> pa.Array:
    """Show values of other than plain types as Python writes them."""
    if type is not None:
        return pa.array(values, type)
    return pa.array([None if value is None else str(value) for value in values], pa.string())
