"""A table of a Postgres source as one side of a comparison (model/row_digest.py): figures, rows and cells in SQL.

Every answer is one query over an inner query that gives `digest` and `bucket_of` for each row, the MD5s of row and key
(canonical.py). What comes back is figures, digests, keys and shortened cells: never a whole table.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.model.row_digest import Cell, Figures, Row
from penstock.model.table import ColumnType, TableSchema
from penstock.source.postgres.canonical import column_text, digits, md5, row_text, shown_text
from penstock.source.postgres.connect import Connection, source_errors
from penstock.source.postgres.copy_ranges import leaves
from penstock.source.postgres.copy_read import row_filter
from penstock.source.postgres.statements import literal, quoted_table

SHOWN = 80  # characters of a cell
FLOAT8 = ColumnType(701, "float8")
_SHOWN_OF_ROW = 200


@dataclass(frozen=True)
class SourceSide:
    """A table in a snapshot; `connection` is in a transaction of it. `only`: without children of plain inheritance."""

    connection: Connection
    schema: TableSchema
    row_filter: str | None
    only: bool

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

    def figures(self, buckets: int) -> dict[int, Figures]:
        rows = self._run(
            f"SELECT {_bucket(buckets)}, count(*), sum({digits('digest')})::text FROM ({self._inner()}) s GROUP BY 1"
        )
        return {bucket: (count, int(total)) for bucket, count, total in rows}

    def rows(self, buckets: int, chosen: Sequence[int]) -> list[Row]:
        texts = self._key_texts()
        extra = "".join(f", {text} AS key_{number}" for number, text in enumerate(texts))
        names = "".join(f", key_{number}" for number in range(len(texts)))
        found = self._run(
            f"SELECT bucket_of, digest{names} FROM ({self._inner(extra)}) s"
            f" WHERE {_bucket(buckets)} = ANY (ARRAY[{', '.join(map(str, chosen))}]::int[])"
        )
        return [Row(key, digest, tuple(texts)) for key, digest, *texts in found]

    def cells(self, keys: Sequence[str]) -> dict[str, dict[str, Cell]]:
        columns = self.schema.columns
        extra = "".join(
            f", {md5(column_text(column))} AS cell_{number}, left({shown_text(column)}, {SHOWN}) AS shown_{number}"
            for number, column in enumerate(columns)
        )
        wanted = ", ".join(literal(key) for key in keys)
        found = self._run(f"SELECT * FROM ({self._inner(extra)}) s WHERE bucket_of = ANY (ARRAY[{wanted}]::text[])")
        return {row[0]: _cells([column.name for column in columns], row[2:]) for row in found}

    def _key_texts(self) -> list[str]:
        key = [self.schema.column(name) for name in self.schema.key]
        if key:
            return [shown_text(column) for column in key]
        return [f"left({_whole(self.schema)}, {_SHOWN_OF_ROW})"]

    def _inner(self, extra: str = "") -> str:
        """OFFSET 0 keeps the server from computing a digest again for each use of it."""
        row = md5(row_text(self.schema.columns))
        key = md5(row_text([self.schema.column(name) for name in self.schema.key]))
        return f"SELECT {key if self.schema.key else row} AS bucket_of, {row} AS digest{extra} {self.tail} OFFSET 0"

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
    total = f"coalesce(sum({digits(md5(row_text(schema.columns)))}), 0)::text"
    with source_errors(f"reading table {schema.table} at the source"):
        row = connection.execute(f"SELECT count(*), {total} FROM {quoted_table(schema.table)}".encode()).fetchone()
    assert row is not None
    return row[0], int(row[1])


def _bucket(buckets: int) -> str:
    return f"('x' || right(bucket_of, 4))::bit(16)::int % {buckets}"


def _whole(schema: TableSchema) -> str:
    parts = ", ".join(f"coalesce({column_text(column)}, 'NULL')" for column in schema.columns)
    return f"array_to_string(ARRAY[{parts}]::text[], ', ')"


def _cells(names: Sequence[str], values: Sequence[str | None]) -> dict[str, Cell]:
    return {name: Cell(values[2 * number], values[2 * number + 1]) for number, name in enumerate(names)}
