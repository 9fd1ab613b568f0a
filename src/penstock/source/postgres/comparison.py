"""A table of a Postgres source as one side of a comparison (model/row_digest.py): figures, rows and cells in SQL.

`model/row_digest_sql.py` has the queries, `canonical` the text of each column in them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.model.row_digest import Cell, Figures, Row
from penstock.model.row_digest_sql import DigestQueries, digits, figures_of, md5, row_text, rows_of
from penstock.model.table import ColumnType, TableSchema
from penstock.source.postgres.canonical import column_sql
from penstock.source.postgres.connect import Connection, source_errors
from penstock.source.postgres.copy_ranges import leaves
from penstock.source.postgres.copy_read import row_filter
from penstock.source.postgres.statements import quoted_table

FLOAT8 = ColumnType(701, "float8")


@dataclass(frozen=True)
class SourceSide:
    """A table in a snapshot; `connection` is in a transaction of it. `only`: without children of plain inheritance."""

    connection: Connection
    schema: TableSchema
    row_filter: str | None
    only: bool
    read_as: Mapping[str, str] | None = None  # types of a destination that reads the texts of values

    @property
    def may_have_partitions(self) -> bool:
        return not self.only

    def widened(self, columns: Collection[str]) -> SourceSide:
        """Compare `real` as `double precision`; the text of other numbers is the same in any width."""
        wide = tuple(
            replace(column, type=FLOAT8) if column.type.name == "float4" and column.name in columns else column
            for column in self.schema.columns
        )
        return replace(self, schema=replace(self.schema, columns=wide))

    @property
    def tail(self) -> str:
        """FROM and WHERE."""
        only = "ONLY " if self.only else ""
        where = f" WHERE ({self.row_filter})" if self.row_filter else ""
        return f"FROM {only}{quoted_table(self.schema.table)}{where}"

    def as_read(self, types: Mapping[str, str]) -> SourceSide:
        names = [column for column in self.schema.columns if column.name in types]
        return replace(self, schema=replace(self.schema, columns=tuple(names)), read_as=types)

    @property
    def queries(self) -> DigestQueries:
        read_as = self.read_as or {}
        own = {column.name for column in self.schema.columns if column.type.carried_as not in ("", "text")}
        types = {name: type for name, type in read_as.items() if name not in own}
        columns = [column_sql(column, read_as=types.get(column.name)) for column in self.schema.columns]
        return DigestQueries(columns, self.schema.key, self.tail)

    def figures(self, buckets: int) -> dict[int, Figures]:
        return figures_of(self._run(self.queries.figures(buckets)))

    def rows(self, buckets: int, chosen: Sequence[int]) -> list[Row]:
        return rows_of(self._run(self.queries.rows(buckets, chosen)))

    def cells(self, keys: Sequence[str]) -> dict[str, dict[str, Cell]]:
        queries = self.queries
        return queries.cells_of(self._run(queries.cells(keys)))

    def _run(self, statement: str) -> list[tuple[Any, ...]]:
        with source_errors(f"reading table {self.schema.table} at the source"):
            return self.connection.execute(statement.encode()).fetchall()


def comparable(connection: Connection, publication: str, schema: TableSchema) -> SourceSide:
    """Lock the table against a rewrite, from here on, and see that it has had none since the snapshot (RangeVoid)."""
    table = schema.table
    with source_errors(f"locking table {table} for reading"):
        connection.execute(f"LOCK TABLE {quoted_table(table)} IN ACCESS SHARE MODE".encode())
        connection.execute("SET LOCAL row_security = off")
        row = connection.execute("SELECT relkind = 'r' FROM pg_class WHERE oid = %s", (schema.relation_id,))
        only = row.fetchone() == (True,)
    leaves(connection, schema)
    return SourceSide(connection, schema, row_filter(connection, publication, table), only)


def table_figures(connection: Connection, schema: TableSchema) -> Figures:
    """Return rows and checksum of a whole table, which should be at rest."""
    total = f"coalesce(sum({digits(md5(row_text(map(column_sql, schema.columns))))}), 0)::text"
    with source_errors(f"reading table {schema.table} at the source"):
        row = connection.execute(f"SELECT count(*), {total} FROM {quoted_table(schema.table)}".encode()).fetchone()
    assert row is not None
    return row[0], int(row[1])
