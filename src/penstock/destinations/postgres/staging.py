"""Rows on their way into a table: temporary tables with the target's types, which COPY fills from text.

A session keeps a temporary table for each shape of rows, so its catalogue rows are made once and not for every batch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa
from psycopg import sql

from penstock.decode.dialect import dialect_of
from penstock.decode.rescue import RESCUED, RESCUED_TYPE
from penstock.destinations.postgres.columns import as_csv, selected
from penstock.destinations.postgres.connection import Connection, Session
from penstock.destinations.postgres.shape import Shape, TargetColumn, names_of
from penstock.model.feed import Sid
from penstock.model.table import TableSchema

NUMBER = "penstock row"  # of a staged row, where cells are filled in
PART = "penstock part"
TIMES, NEEDED = "penstock times", "penstock needed"


def staged(session: Session, columns: Sequence[TargetColumn], rows: pa.Table) -> sql.Identifier:
    """Put rows into a temporary table that has exactly these columns, until the transaction ends."""
    shape = tuple(f"{column.name} {column.type}" for column in columns)
    place = 0
    while f"{place} {session.staging.get((*shape, str(place)), '')}" in session.used:
        place += 1
    key = (*shape, str(place))
    name = session.staging.get(key)
    if name is None:
        name = f"penstock_{len(session.staging)}"
        session.connection.execute(
            sql.SQL("CREATE TEMP TABLE {} ({}) ON COMMIT DELETE ROWS").format(
                sql.Identifier("pg_temp", name), _described(columns)
            )
        )
        session.staging[key] = name
    session.used.add(f"{place} {name}")
    table = sql.Identifier("pg_temp", name)
    copied(session.connection, table, columns, rows)
    return table


def copied(connection: Connection, table: sql.Identifier, columns: Sequence[TargetColumn], rows: pa.Table) -> None:
    """COPY rows into a table, from the text of their values."""
    names = [column.name for column in columns]
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(table, names_of(names))
    with connection.cursor().copy(statement) as copy:
        for start in range(0, rows.num_rows, 65536):
            copy.write(memoryview(as_csv(selected(rows.slice(start, 65536), names))))


def create_unlogged(connection: Connection, table: sql.Identifier, columns: Sequence[TargetColumn]) -> None:
    connection.execute(sql.SQL("CREATE UNLOGGED TABLE {} ({})").format(table, _described(columns)))


def _described(columns: Sequence[TargetColumn]) -> sql.Composed:
    return sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(column.type)) for column in columns
    )


def row_columns(shape: Shape) -> list[TargetColumn]:
    """Return the columns of rows of the table, with what was rescued of them."""
    return [*shape.columns, TargetColumn(RESCUED, "jsonb")]


def key_columns(shape: Shape) -> list[TargetColumn]:
    return [TargetColumn(name, shape.type_of(name)) for name in shape.key]


def same_key(shape: Shape, left: str, right: str) -> sql.Composed:
    """Return the condition under which a row of the one is the other's by key."""
    return sql.SQL(" AND ").join(
        sql.SQL("{l}.{c} = {r}.{c}").format(l=sql.SQL(left), r=sql.SQL(right), c=sql.Identifier(name))
        for name in shape.key
    )


def own_share(shape: Shape, alias: str) -> sql.Composed:
    """Only this source's rows of a table that several feed."""
    if shape.sid is None:
        return sql.Composed([sql.SQL("TRUE")])
    return sql.SQL("{}.{} = {}").format(sql.SQL(alias), sql.Identifier(shape.sid.column), sid_literal(shape.sid))


def sid_literal(sid: Sid) -> sql.Literal:
    """Return the value without a type of its own, so that it takes the column's.

    A table that an operator made may have numbers where the file has texts, or the other way round.
    """
    return sql.Literal(str(sid.value))


def read_rows(
    connection: Connection, query: sql.Composed, kept: TableSchema, names: Sequence[str], others: pa.Schema
) -> pa.Table:
    """Read rows by their values' texts: columns `names` of `kept` in its types, then `others` in theirs.

    Those are texts, times, truth values and RESCUED.
    """
    with connection.cursor().copy(sql.SQL("COPY ({}) TO STDOUT").format(query)) as copy:
        rows = list(copy.rows())
    columns = list(zip(*rows, strict=True)) if rows else [()] * (len(names) + len(others))
    dialect, fields, arrays = dialect_of(kept), [], []
    for name, texts in zip(names, columns, strict=False):
        type = kept.column(name).type
        arrays.append(dialect.parsed(type, pa.array(texts, pa.string()).cast(pa.binary())))
        fields.append(pa.field(name, dialect.arrow_type(type)))
    for field, texts in zip(others, columns[len(names) :], strict=True):
        arrays.append(_other(field, list(texts)))
        fields.append(field)
    return pa.table(arrays, schema=pa.schema(fields))


def _other(field: pa.Field, texts: list[str | None]) -> pa.Array:
    if field.type == RESCUED_TYPE:
        return pa.array([None if text is None else list(json.loads(text).items()) for text in texts], RESCUED_TYPE)
    if pa.types.is_boolean(field.type):
        return pa.array([None if text is None else text == "t" for text in texts], pa.bool_())
    if pa.types.is_timestamp(field.type):
        return (
            pa.array([None if text is None else text.removesuffix("+00") for text in texts])
            .cast(pa.timestamp("us"))
            .cast(field.type)
        )
    return pa.array(texts, pa.string())
