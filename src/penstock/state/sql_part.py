"""What the parts of the SQL state store share: its transactions, and the source whose rows it reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, FromClause, Table, and_, insert, select, update
from sqlalchemy.exc import SQLAlchemyError

from penstock.errors import StateError
from penstock.model.table import TableId

Guard = Callable[[Connection], None]
KEY = ("source", "destination", "table_schema", "table_name")


class SqlPart:
    """A part of the store. `source` is "" where the pipeline has one source only.

    `guard` begins each transaction, and raises if it may not be made.
    """

    def __init__(self, engine: Engine, source: str = "", guard: Guard | None = None) -> None:
        self._engine, self._source, self._guard = engine, source, guard
        self._where = engine.url.render_as_string(hide_password=True)

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        try:
            with self._engine.begin() as connection:
                if self._guard is not None:
                    self._guard(connection)
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
        """Open a transaction that reads, decides and writes: on SQLite no other writer comes between."""
        with self._transaction() as connection:
            if connection.dialect.name == "sqlite":
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection

    def _key(self, destination: str, table: TableId) -> dict[str, str]:
        return dict(zip(KEY, (self._source, destination, table.schema, table.name), strict=True))

    def _own(self, table: Table, destination: str | None = None) -> Any:
        """Select the source's rows; of one destination, or of all."""
        own = select(table).filter_by(source=self._source)
        return own if destination is None else own.filter_by(destination=destination)


def put(connection: Connection, table: Table, key: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Insert or replace, in one transaction with one writer, so that no dialect's own upsert is needed."""
    changed = connection.execute(update(table).filter_by(**key).values(**values))
    if changed.rowcount == 0:
        connection.execute(insert(table).values(**key, **values))


def same_table(left: FromClause, right: FromClause) -> Any:
    return and_(*(left.c[name] == right.c[name] for name in KEY))


def table_of(row: Any) -> TableId:
    """Return the table that a row is of."""
    return TableId(row.table_schema, row.table_name)
