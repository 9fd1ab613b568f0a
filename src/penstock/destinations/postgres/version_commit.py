"""What a batch makes of a table of versions: open versions that ended are written again, and new ones beside them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from psycopg import sql

from penstock.decode.rescue import RESCUED
from penstock.destinations.postgres.connection import Connection, Session
from penstock.destinations.postgres.parts import PostgresPart
from penstock.destinations.postgres.plan import OPEN_SQL
from penstock.destinations.postgres.shape import Shape, TargetColumn, names_of, table_columns
from penstock.destinations.postgres.staging import key_columns, own_share, same_key, sid_literal, staged


def apply_versions(session: Session, shape: Shape, parts: Sequence[PostgresPart]) -> None:
    """Take out the versions that are no longer open, and put in what became of them."""
    period = shape.layout.period
    assert period is not None
    connection = session.connection
    closed = [part.closed for part in parts if part.closed is not None]
    if closed:
        keys = staged(session, key_columns(shape), pa.concat_tables(closed))
        connection.execute(
            sql.SQL("DELETE FROM {} t USING {} k WHERE {} AND t.{} = {} AND {}").format(
                shape.identifier,
                keys,
                same_key(shape, "t", "k"),
                sql.Identifier(period.valid_to),
                sql.SQL(OPEN_SQL),
                own_share(shape, "t"),
            )
        )
    upserts = [part.upserts for part in parts if part.upserts is not None]
    if not upserts:
        return
    rows = pa.concat_tables(upserts, promote_options="default")
    columns = [*shape.columns, *(one for one in shape.own if one.name in rows.column_names)]
    there = dict(_former_types(connection, shape))
    columns += [TargetColumn(name, there[name]) for name in shape.former if name in rows.column_names and name in there]
    columns += [TargetColumn(RESCUED, "jsonb")] if shape.rescued else []
    columns += list(shape.around)
    versions = staged(session, columns, rows)
    own = [one.name for one in shape.own if one.name in rows.column_names]
    names = [column.name for column in columns]
    if not own:
        _insert_versions(connection, shape, versions, names, sql.SQL("TRUE"))
        return
    # A version that is new has nothing in columns that somebody added: there it gets their defaults.
    new = sql.SQL(" AND ").join(sql.SQL("{} IS NULL").format(sql.Identifier(name)) for name in own)
    _insert_versions(connection, shape, versions, [name for name in names if name not in own], new)
    _insert_versions(connection, shape, versions, names, sql.SQL("NOT ({})").format(new))


def _insert_versions(
    connection: Connection, shape: Shape, versions: sql.Identifier, names: Sequence[str], where: sql.Composable
) -> None:
    """Insert versions, OVERRIDING.

    A version that is written again keeps its number, also where the server alone gives numbers.
    """
    into, values = names_of(names), names_of(names)
    if shape.sid is not None:
        into = sql.SQL("{}, {}").format(sql.Identifier(shape.sid.column), into)
        values = sql.SQL("{}, {}").format(sid_literal(shape.sid), values)
    connection.execute(
        sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {} WHERE {}").format(
            shape.identifier, into, values, versions, where
        )
    )


def _former_types(connection: Connection, shape: Shape) -> list[tuple[str, str]]:
    return [(name, type) for name, type, _ in table_columns(connection, shape.target) if name in shape.former]
