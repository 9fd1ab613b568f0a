"""A table at a Postgres destination as one side of a comparison (model/row_digest.py), computed by its own server.

Both sides compare texts: the source what it wrote, read into the type that the column has here, and this side what it
writes of what it holds. So a `json` that became a `jsonb`, or a number with another scale, is no difference in itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from penstock.decode.rescue import RESCUED
from penstock.destinations.postgres.columns import BUILT_IN
from penstock.destinations.postgres.connection import Connection, Sessions
from penstock.errors import RangeVoid, SchemaChanged
from penstock.model.feed import Sid
from penstock.model.row_digest import Cell, Figures, Row
from penstock.model.row_digest_sql import ColumnSql, DigestQueries, column_sql, figures_of, rows_of
from penstock.model.table import TableId, TableSchema
from penstock.model.type_map import TEXT

_TEXTS = frozenset({"text", "character varying"})


@dataclass(frozen=True)
class PostgresSide:
    """`connection` is in a transaction that sees the table as the bookmark does.

    `types`: of the columns that are compared, as `ComparableTable.as_read` takes them.
    """

    sessions: Sessions
    connection: Connection
    queries: DigestQueries
    types: Mapping[str, str]

    def figures(self, buckets: int) -> dict[int, Figures]:
        return figures_of(self._run(self.queries.figures(buckets)))

    def rows(self, buckets: int, chosen: Sequence[int]) -> list[Row]:
        return rows_of(self._run(self.queries.rows(buckets, chosen)))

    def cells(self, keys: Sequence[str]) -> dict[str, dict[str, Cell]]:
        return self.queries.cells_of(self._run(self.queries.cells(keys)))

    def _run(self, statement: str) -> list[tuple[Any, ...]]:
        with self.sessions.errors():
            return self.connection.execute(statement.encode()).fetchall()


@contextmanager
def side_at(
    sessions: Sessions,
    target: TableId,
    schema: TableSchema,
    *,
    bookmark: str,
    called: Mapping[int, str],
    sid: Sid | None,
    partial: bool,
) -> Iterator[PostgresSide]:
    """Give the table as it was when `bookmark` was made, protected from being rewritten.

    `partial`: columns that it lacks are meant to be left out; otherwise they are null, until the source's next change
    brings them.
    """
    with at_bookmark(sessions, bookmark) as connection:
        with sessions.errors():
            there = _locked_columns(connection, target)
        names = {one.name: called.get(one.number, one.name) if one.number else one.name for one in schema.columns}
        columns, types = [], {}
        for column in schema.columns:
            name = names[column.name]
            if name not in there or (called and column.number and column.number not in called):
                if not partial:
                    columns.append(column_sql(column.name, "NULL::text"))
                    types[column.name] = ""
                continue
            number = column.type.carried_as not in ("", TEXT)
            columns.append(_column(column.name, name, rescued=RESCUED in there, number=number))
            type, oid = there[name]
            types[column.name] = "" if oid >= BUILT_IN or type in _TEXTS else type
        lacking = [key for key in schema.key if names[key] not in there]
        if lacking:
            raise SchemaChanged(
                f"table {target}: the destination does not have its key column {', '.join(lacking)}",
                f"See `penstock tables`; `penstock resync` copies {schema.table} again",
            )
        tail = sql.SQL("FROM {}").format(sql.Identifier(target.schema, target.name))
        if sid is not None:
            whose = sql.SQL(" WHERE {}::text = {}").format(sql.Identifier(sid.column), sql.Literal(str(sid.value)))
            tail += whose
        yield PostgresSide(sessions, connection, DigestQueries(columns, schema.key, tail.as_string(None)), types)


@contextmanager
def at_bookmark(sessions: Sessions, bookmark: str) -> Iterator[Connection]:
    """Give a session that sees the tables as they were when `TableDestination.bookmark` returned this text."""
    with sessions.errors():
        connection = sessions.connected()
    try:
        with sessions.errors():
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            if bookmark:
                connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(bookmark)))
        yield connection
    finally:
        connection.close()


def _locked_columns(connection: Connection, target: TableId) -> dict[str, tuple[str, int]]:
    """Return type and its number of each column.

    RangeVoid when the table was rewritten since the bookmark: then the rows that the bookmark should show are gone.
    """
    identifier = sql.Identifier(target.schema, target.name)
    connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(identifier))
    row = connection.execute(
        "SELECT c.relfilenode = pg_relation_filenode(c.oid) FROM pg_class c JOIN pg_namespace n"
        " ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s",
        (target.schema, target.name),
    ).fetchone()
    if row is None or row[0] is False:
        raise RangeVoid(f"table {target} was rewritten at the destination at the wrong moment", "Run it again")
    found = connection.execute(
        "SELECT attname, format_type(atttypid, atttypmod), atttypid::bigint FROM pg_attribute"
        " WHERE attrelid = %s::text::regclass AND attnum > 0 AND NOT attisdropped",
        (identifier.as_string(None),),
    ).fetchall()
    return {str(name): (str(type), int(oid)) for name, type, oid in found}


def _column(name: str, here: str, *, rescued: bool, number: bool) -> ColumnSql:
    value = sql.Identifier(here).as_string(None)
    text = f"trim_scale({value})::pg_catalog.text" if number else f"pg_catalog.format('%s', {value})"
    text = f"CASE WHEN {value} IS DISTINCT FROM NULL THEN {text} END"
    if rescued:
        cell = f"({sql.Identifier(RESCUED).as_string(None)} ->> {sql.Literal(name).as_string(None)})"
        text = f"coalesce({text}, {cell})"
    return column_sql(name, text)
