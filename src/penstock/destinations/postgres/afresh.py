"""Rows of a batch when a unique index that somebody made stands in the way of their order.

Two rows may hand a value over within a batch: the one gives it up, the other takes it. Put in one after the other, in
an order that is not the source's, the second may come first, and be refused. So the rows that change are all taken out
before any is put in. What somebody else keeps beside them, in columns of their own, comes back with them.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from psycopg import sql

from penstock.decode.rescue import RESCUED
from penstock.destinations.postgres.connection import Connection, Session
from penstock.destinations.postgres.shape import Shape, names_of, table_columns
from penstock.destinations.postgres.staging import own_share, same_key, sid_literal

Rows = tuple[sql.Identifier, sql.Composable]  # a table of staged rows `s`, and the condition that chooses them


def may_be_removed(session: Session, shape: Shape) -> bool:
    """Return whether a row can be taken out and put in again unnoticed.

    Foreign keys that point to it must be checked at the end of the transaction, and must not act on a DELETE.
    """
    row = session.connection.execute(
        "SELECT NOT EXISTS (SELECT FROM pg_constraint WHERE contype = 'f' AND confrelid = %s::text::regclass"
        " AND NOT (condeferrable AND confdeltype = 'a'))",
        (shape.identifier.as_string(None),),
    ).fetchone()
    return row == (True,) and bool(shape.key) and shape.layout.period is None


def put_in_afresh(connection: Connection, shape: Shape, sources: Sequence[Rows]) -> None:
    """Take out the rows of all keys, then put the new ones in."""
    names = [*shape.names, *([RESCUED] if shape.rescued else [])]
    beside = {*names, *shape.former, *([shape.sid.column] if shape.sid is not None else [])}
    own = [name for name, _, _ in table_columns(connection, shape.target) if name not in beside]
    asides = [_taken_out(connection, shape, rows, own) for rows in sources]
    for rows, aside in zip(sources, asides, strict=True):
        _put_in(connection, shape, rows, names, aside, own)


def _taken_out(connection: Connection, shape: Shape, rows: Rows, own: Sequence[str]) -> sql.Identifier:
    """Remove the rows of these keys; return a temporary table with their keys and what others keep beside them."""
    table, where = rows
    aside = sql.Identifier("pg_temp", f"penstock_aside_{uuid.uuid4().hex}")
    kept = sql.SQL(", ").join(sql.SQL("t.{}").format(sql.Identifier(name)) for name in (*shape.key, *own))
    chosen = sql.SQL("{} AND {} AND {}").format(same_key(shape, "t", "s"), own_share(shape, "t"), where)
    connection.execute(
        sql.SQL("CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT {} FROM {} t JOIN {} s ON {}").format(
            aside, kept, shape.identifier, table, chosen
        )
    )
    connection.execute(sql.SQL("DELETE FROM {} t USING {} s WHERE {}").format(shape.identifier, table, chosen))
    return aside


def _put_in(
    connection: Connection, shape: Shape, rows: Rows, names: Sequence[str], aside: sql.Identifier, own: Sequence[str]
) -> None:
    table, where = rows
    there = sql.SQL("EXISTS (SELECT FROM {} a WHERE {})").format(aside, same_key(shape, "a", "s"))
    into, values = names_of(names), sql.SQL(", ").join(sql.SQL("s.{}").format(sql.Identifier(name)) for name in names)
    if shape.sid is not None:
        into = sql.SQL("{}, {}").format(sql.Identifier(shape.sid.column), into)
        values = sql.SQL("{}, {}").format(sid_literal(shape.sid), values)
    new = sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} s WHERE {} AND NOT {}")
    connection.execute(new.format(shape.identifier, into, values, table, where, there))
    kept = sql.SQL(", ").join([values, *(sql.SQL("a.{}").format(sql.Identifier(name)) for name in own)])
    again = sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {} s JOIN {} a ON {} WHERE {}")
    columns = sql.SQL(", ").join([into, *map(sql.Identifier, own)])
    connection.execute(again.format(shape.identifier, columns, kept, table, aside, same_key(shape, "a", "s"), where))
