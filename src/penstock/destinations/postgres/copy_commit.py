"""The commit of a copy: all rows of one source at once, in place of those that the table has of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from psycopg import sql

from penstock.destinations.postgres import records
from penstock.destinations.postgres.apply import (
    BY_SCAN,
    empty,
    insert,
    is_referenced,
    remove_rows,
    require_stored,
    rescuing,
)
from penstock.destinations.postgres.connection import Session
from penstock.destinations.postgres.parts import PostgresPart
from penstock.destinations.postgres.plan import (
    PostgresPlan,
    living,
    part_order,
    removal_columns,
    structure_text,
    tables_of,
)
from penstock.destinations.postgres.records import SCHEMA, Record
from penstock.destinations.postgres.shape import Shape, key_statements
from penstock.destinations.postgres.staging import PART, own_share, same_key, staged
from penstock.errors import RangeVoid, StaleBase
from penstock.model.position import Position


def commit_copy(
    session: Session,
    record: Record,
    plan: PostgresPlan,
    parts: Sequence[PostgresPart],
    position: Position,
    history: str,
) -> None:
    """Replace all rows of this source by those of the copy, with its position, inside a transaction."""
    connection, shape = session.connection, plan.shape
    for part in parts:
        assert part.stored is not None
        if part.rows and part.stored.structure != structure_text(shape):
            raise RangeVoid(f"table {shape.target}: parts of its copy are of another structure", "It is copied again")
        try:
            require_stored(connection, part)
        except StaleBase as error:
            raise RangeVoid(
                f"table {shape.target}: rows of its copy are gone at the destination", "It is copied again by itself"
            ) from error
    connection.execute(f"{BY_SCAN}; SET CONSTRAINTS ALL DEFERRED".encode())
    merge = record.position is not None and bool(shape.key) and shape.sid is None and is_referenced(connection, shape)
    if not merge:
        empty(connection, shape)
    for statement in plan.move.statements:
        connection.execute(statement)
    shape = replace(shape, rescued=shape.rescued or rescuing(connection, shape, parts))
    if plan.move.rekeyed and not merge:
        for statement in key_statements(shape):
            connection.execute(statement)
    order = part_order(session, parts)
    tables = tables_of(parts)
    for table in tables:
        tail = living(shape, table, order, tables)
        insert(connection, shape, shape.identifier, sql.SQL("TRUE"), plain=not merge, tail=tail)
    if merge and tables:
        held = sql.SQL(" UNION ALL ").join(
            sql.SQL("SELECT {} {}").format(
                sql.SQL(", ").join(sql.SQL("c.{}").format(sql.Identifier(name)) for name in shape.key),
                living(shape, table, order, tables),
            )
            for table in tables
        )
        connection.execute(
            sql.SQL("DELETE FROM {} t WHERE NOT EXISTS (SELECT FROM ({}) k WHERE {})").format(
                shape.identifier, held, same_key(shape, "t", "k")
            )
        )
    elif merge:
        connection.execute(sql.SQL("DELETE FROM {}").format(shape.identifier))
    if not shape.key:
        for part in parts:
            if part.stored is not None and part.stored.ended:
                _remove_of_copy(session, shape, part)
    filenode = records.rewrote(connection, shape.target, record.filenode)
    records.update(
        connection,
        replace(
            record,
            filenode=filenode,
            position=position,
            history=history,
            token=plan.made,
            structure=plan.move.structure,
            rule=shape.layout.rule,
            former=shape.former,
            columns=shape.numbers,
        ),
    )


def _remove_of_copy(session: Session, shape: Shape, part: PostgresPart) -> None:
    assert part.stored is not None
    columns = removal_columns(shape)
    gone = staged(session, columns, pa.table({column.name: pa.array([], pa.string()) for column in columns}))
    session.connection.execute(
        sql.SQL("INSERT INTO {} SELECT * FROM {} WHERE {} = {}").format(
            gone,
            sql.Identifier(SCHEMA, f"{part.stored.table}_gone"),
            sql.Identifier(PART),
            sql.Literal(part.stored.part),
        )
    )
    remove_rows(session.connection, shape, shape.identifier, gone, own_share(shape, "t"))
