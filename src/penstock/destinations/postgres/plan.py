"""Writes of a batch and of a copy, as executors run them. `apply` commits what comes out of them.

Keys decide inside the statements of the commit, so a clone's write looks nothing up and can be made over a commit that
is still to come. A table of versions is another matter: its write reads the open versions of the touched keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from penstock.decode.rescue import RESCUED, RESCUED_TYPE, with_cells
from penstock.decode.schema import arrow_schema
from penstock.destinations.postgres.connection import Connection, Session, Sessions
from penstock.destinations.postgres.parts import FetchedCells, PostgresPart, StoredRows, new_number
from penstock.destinations.postgres.records import SCHEMA, register_part
from penstock.destinations.postgres.shape import Move, Shape, TargetColumn
from penstock.destinations.postgres.staging import (
    NEEDED,
    NUMBER,
    PART,
    TIMES,
    copied,
    create_unlogged,
    key_columns,
    own_share,
    read_rows,
    row_columns,
    same_key,
    staged,
)
from penstock.fold.keys import bucket_of, decode_keys, encode_keys
from penstock.fold.layout import MOMENT, ROWS, Layout
from penstock.fold.net_effect import NO_ROW, NetEffect
from penstock.fold.versions import Held, closed_versions, versions
from penstock.model.position import Position
from penstock.model.table import TableId

SPILLED_AT = 24 << 20  # bytes of rows: more goes straight to the destination, not through the driver
GROUP_ROWS = 200_000  # of `held`
OPEN_SQL = "'9999-01-01 00:00:00+00'"


@dataclass(frozen=True)
class PostgresPlan:
    """`base` is the token of the table's record that it was made under, `made` the one that its commit sets."""

    sessions: Sessions
    source: str
    position: Position
    moment: int
    base: str
    made: str
    move: Move
    groups: int = 1
    merges: bool = False  # it commits a copy that is merged: the table may have no position

    @property
    def target(self) -> TableId:
        return self.shape.target

    @property
    def shape(self) -> Shape:
        return self.move.shape

    @property
    def layout(self) -> Layout:
        return self.shape.layout

    def write(self, net: NetEffect) -> PostgresPart:
        if net.steps is not None:
            with self.sessions.for_table(self.target) as session:
                staging = dict(session.staging)
                for statement in self.move.statements:  # it reads the table as it will be, and leaves it as it is
                    session.connection.execute(statement)
                part = self._versions(session, net)
                if self.move.statements:
                    session.staging = dict(staging)
                    raise psycopg.Rollback
            return part
        upserts = _with_rescued(net)
        removals = None
        if net.removals is not None and len(net.removals.keys):
            removals = _removals(net)
        gone: pa.Table | None = None
        fetches: tuple[FetchedCells, ...] = ()
        if net.touched_keys is not None and net.upsert_keys is not None:
            ending = net.touched_keys.filter(pc.invert(pc.is_in(net.touched_keys, value_set=net.upsert_keys)))
            gone = None if net.truncated else key_table(self.shape, ending)
            fetches = tuple(
                FetchedCells(one.column, one.rows, key_table(self.shape, one.keys))
                for one in net.fetches
                if one.column in self.shape.names
            )
        part = PostgresPart(
            upserts if upserts.num_rows else None,
            gone=gone if gone is not None and gone.num_rows else None,
            fetches=fetches,
            removals=removals,
            rows=upserts.num_rows,
            bytes=upserts.nbytes,
            fetched=sum(len(one.rows) for one in fetches),
        )
        return part if upserts.nbytes < SPILLED_AT else self._spilled(part)

    def _spilled(self, part: PostgresPart) -> PostgresPart:
        """Write the rows of a large part to a table of their own."""
        assert part.upserts is not None
        name, rows = f"batch_{part.name}", part.upserts
        columns = [*row_columns(self.shape), TargetColumn(NUMBER, "bigint"), TargetColumn(PART, "bigint")]
        rows = rows.append_column(NUMBER, pa.array(np.arange(rows.num_rows)))
        rows = rows.append_column(PART, pa.repeat(0, rows.num_rows))
        with self.sessions.for_table(self.target) as session:
            create_unlogged(session.connection, sql.Identifier(SCHEMA, name), columns)
            register_part(session.connection, name, self.target, self.source)
            copied(session.connection, sql.Identifier(SCHEMA, name), columns, rows)
        stored = StoredRows(name, 0, structure_text(self.shape))
        return PostgresPart(
            None, stored, part.gone, part.fetches, part.removals, None, part.rows, part.bytes, part.fetched
        )

    def _versions(self, session: Session, net: NetEffect) -> PostgresPart:
        """Read the open versions of the touched keys, and write what becomes of them."""
        shape, period, steps, touched = self.shape, self.layout.period, net.steps, net.touched_keys
        assert period is not None
        assert steps is not None
        assert touched is not None
        connection = session.connection
        keys = staged(session, key_columns(shape), key_table(shape, touched))
        everything = steps.truncated_at is not None
        rows = self._open_versions(connection, None if everything else keys)
        found = _encoded(rows, shape.key)
        gone_query = sql.SQL("SELECT DISTINCT {} FROM {} t JOIN {} k ON {} WHERE t.{} AND {}").format(
            _columns("t", shape.key),
            shape.identifier,
            keys,
            same_key(shape, "t", "k"),
            sql.Identifier(period.deleted),
            own_share(shape, "t"),
        )
        gone = read_rows(connection, gone_query, shape.kept, shape.key, pa.schema([]))
        upserts, fetched, missing = _filled(net, rows, found)
        beside = [name for name in rows.column_names if name not in {*shape.layout.around.names}]
        held = Held(
            rows.select(beside),
            np.asarray(rows[period.valid_from].cast(pa.int64())),
            np.asarray(pc.fill_null(pc.index_in(touched, value_set=found), NO_ROW)).astype(np.int64),
            np.asarray(pc.is_in(touched, value_set=_encoded(gone, shape.key))),
        )
        made = versions(steps, upserts, held, self.layout)
        written, ended = [made.replaced, made.ended, made.opened], touched.filter(pa.array(made.closed))
        if steps.truncated_at is not None:
            left = ~np.asarray(pc.is_in(found, value_set=touched))
            left &= bucket_of(found, steps.buckets) == steps.bucket
            written.append(closed_versions(rows.filter(pa.array(left)), steps.truncated_at, self.layout))
            ended = pa.concat_arrays([ended, found.filter(pa.array(left))])
        whole = pa.concat_tables(written, promote_options="default")
        unresolved = tuple(np.unique(missing).tolist())
        return PostgresPart(
            whole if whole.num_rows else None,
            closed=key_table(shape, ended) if len(ended) else None,
            rows=whole.num_rows,
            bytes=whole.nbytes,
            fetched=fetched,
            unresolved_rows=unresolved,
            unresolved=len(missing),
        )

    def _open_versions(self, connection: Connection, keys: sql.Identifier | None) -> pa.Table:
        shape, period = self.shape, self.layout.period
        assert period is not None
        names = shape.names
        others = [pa.field(column.name, pa.string()) for column in shape.own]
        others += [pa.field(name, pa.string()) for name in shape.former]
        others += [pa.field(RESCUED, RESCUED_TYPE)] if shape.rescued else []
        others += [
            pa.field(period.valid_from, MOMENT),
            pa.field(period.valid_to, MOMENT),
            pa.field(period.deleted, pa.bool_()),
        ]
        join = sql.SQL("") if keys is None else sql.SQL(" JOIN {} k ON {}").format(keys, same_key(shape, "t", "k"))
        query = sql.SQL("SELECT {} FROM {} t{} WHERE t.{} = {} AND {}").format(
            _columns("t", [*names, *(field.name for field in others)]),
            shape.identifier,
            join,
            sql.Identifier(period.valid_to),
            sql.SQL(OPEN_SQL),
            own_share(shape, "t"),
        )
        rows = read_rows(connection, query, shape.kept, names, pa.schema(others))
        return _with_lacking(shape, rows, [column.name for column in shape.kept.columns])

    def held(self, group: int, columns: Sequence[str]) -> pa.Table:
        shape, period = self.shape, self.layout.period
        names = [name for name in columns if name in shape.names]
        wanted = [*names, *([RESCUED] if RESCUED in columns and shape.rescued else [])]
        where = [own_share(shape, "t")]
        if period is not None:
            where.append(sql.SQL("t.{} = {}").format(sql.Identifier(period.valid_to), sql.SQL(OPEN_SQL)))
        if self.groups > 1:
            where.append(
                sql.SQL("abs(hashtext(ROW({})::text)::bigint) % {} = {}").format(
                    _columns("t", shape.key or shape.names), sql.Literal(self.groups), sql.Literal(group)
                )
            )
        query = sql.SQL("SELECT {} FROM {} t WHERE {}").format(
            _columns("t", wanted), shape.identifier, sql.SQL(" AND ").join(where)
        )
        others = pa.schema([pa.field(RESCUED, RESCUED_TYPE)] if len(wanted) > len(names) else [])
        with self.sessions.for_table(self.target) as session:
            rows = read_rows(session.connection, query, shape.kept, names, others)
        if RESCUED in columns and RESCUED not in rows.column_names:
            rows = rows.append_column(pa.field(RESCUED, RESCUED_TYPE), pa.nulls(rows.num_rows, RESCUED_TYPE))
        return _with_lacking(shape, rows, columns).select(list(columns))

    def has(self, keys: pa.Array) -> npt.NDArray[np.bool_]:
        shape, period = self.shape, self.layout.period
        is_open = sql.SQL("TRUE")
        if period is not None:
            is_open = sql.SQL("t.{} = {}").format(sql.Identifier(period.valid_to), sql.SQL(OPEN_SQL))  # type: ignore[assignment]
        with self.sessions.for_table(self.target) as session:
            wanted = staged(session, key_columns(shape), key_table(shape, keys))
            query = sql.SQL("SELECT {} FROM {} t JOIN {} k ON {} WHERE {} AND {}").format(
                _columns("t", shape.key),
                shape.identifier,
                wanted,
                same_key(shape, "t", "k"),
                own_share(shape, "t"),
                is_open,
            )
            found = read_rows(session.connection, query, shape.kept, shape.key, pa.schema([]))
        return np.asarray(pc.is_in(keys, value_set=_encoded(found, shape.key)), bool)


@dataclass(frozen=True)
class PostgresCatchup:
    """A plan over the parts of a copy: in it a key may have several rows."""

    sessions: Sessions
    source: str
    position: Position
    shape: Shape  # of the rows, whatever becomes of them
    table: str
    base: tuple[PostgresPart, ...]
    layout: Layout = ROWS
    moment: int = 0

    @property
    def target(self) -> TableId:
        return self.shape.target

    @property
    def groups(self) -> int:
        return max(1, len(self.base))

    def write(self, net: NetEffect) -> PostgresPart:
        shape, part, connection_rows = self.shape, new_number(), _with_rescued(net)
        upserts, fetched, missing = net.upserts, 0, np.empty(0, np.int64)
        with self.sessions.for_table(self.target) as session:
            if net.fetches:
                keys = pa.concat_arrays([one.keys for one in net.fetches]).unique()
                names = list(dict.fromkeys([*shape.key, *(one.column for one in net.fetches)]))
                held = self._living(session, names, keys=key_table(shape, keys))
                upserts, fetched, missing = _filled(net, held, _encoded(held, shape.key))
                connection_rows = upserts
            write_stored(session.connection, shape, self.table, part, connection_rows)
            ended = 0
            if net.removals is not None and len(net.removals.keys):
                rows = _removals(net).append_column(PART, pa.repeat(part, len(net.removals.keys)))
                copied(session.connection, sql.Identifier(SCHEMA, f"{self.table}_gone"), removal_columns(shape), rows)
                ended = int(net.removals.times.sum())
            elif net.touched_keys is not None and not net.truncated:
                rows = key_table(shape, net.touched_keys)
                ended = rows.num_rows
                rows = rows.append_column(PART, pa.repeat(part, ended))
                columns = [*key_columns(shape), TargetColumn(PART, "bigint")]
                copied(session.connection, sql.Identifier(SCHEMA, f"{self.table}_ended"), columns, rows)
        return PostgresPart(
            stored=StoredRows(self.table, part, structure_text(shape), ended),
            rows=upserts.num_rows,
            bytes=connection_rows.nbytes,
            fetched=fetched,
            unresolved_rows=tuple(np.unique(missing).tolist()),
            unresolved=len(missing),
        )

    def _living(
        self, session: Session, names: Sequence[str], *, keys: pa.Table | None = None, only: PostgresPart | None = None
    ) -> pa.Table:
        """Return rows of the copy that no part of it has ended, the older ones first."""
        shape, connection = self.shape, session.connection
        others = pa.schema([pa.field(RESCUED, RESCUED_TYPE)])
        plain = [name for name in names if name in shape.names]
        order = part_order(session, self.base)
        found = []
        for table in dict.fromkeys(part.stored.table for part in self.base if part.stored is not None):
            where: list[sql.Composable] = [sql.SQL("TRUE")]
            if keys is not None:
                wanted = staged(session, key_columns(shape), keys)
                match = sql.SQL("EXISTS (SELECT FROM {} k WHERE {})").format(wanted, same_key(shape, "c", "k"))
                where.append(match)
            if only is not None and only.stored is not None:
                where.append(sql.SQL("c.{} = {}").format(sql.Identifier(PART), sql.Literal(only.stored.part)))
            query = sql.SQL("SELECT {}, c.{} {} AND {} ORDER BY o.place").format(
                _columns("c", plain),
                sql.Identifier(RESCUED),
                living(shape, table, order, tables_of(self.base)),
                sql.SQL(" AND ").join(where),
            )
            found.append(read_rows(connection, query, shape.kept, plain, others))
        schema = arrow_schema(shape.kept)
        empty = pa.schema([*(schema.field(name) for name in plain), *others]).empty_table()
        return _with_lacking(shape, pa.concat_tables(found) if found else empty, names)

    def held(self, group: int, columns: Sequence[str]) -> pa.Table:
        with self.sessions.for_table(self.target) as session:
            only = self.base[group] if self.base else None
            return self._living(session, columns, only=only).select(list(columns))

    def has(self, keys: pa.Array) -> npt.NDArray[np.bool_]:
        with self.sessions.for_table(self.target) as session:
            found = self._living(session, self.shape.key, keys=key_table(self.shape, keys))
        return np.asarray(pc.is_in(keys, value_set=_encoded(found, self.shape.key)), bool)


@dataclass(frozen=True)
class PostgresCopy:
    """Where the rows of a copy go."""

    sessions: Sessions
    shape: Shape
    table: str

    @property
    def target(self) -> TableId:
        return self.shape.target

    def write_rows(self, batches: Iterable[pa.RecordBatch | pa.Table]) -> PostgresPart:
        part, rows, size = new_number(), 0, 0
        names = arrow_schema(self.shape.kept).names
        with self.sessions.for_table(self.target) as session:
            for batch in batches:
                has_rescued = len(batch.columns) > len(names)
                table = pa.table(list(batch.columns), names=[*names, *([RESCUED] if has_rescued else [])])
                rows, size = rows + table.num_rows, size + table.nbytes
                write_stored(session.connection, self.shape, self.table, part, table)
        return PostgresPart(
            stored=StoredRows(self.table, part, structure_text(self.shape)), rows=rows, bytes=size if rows else 0
        )


def write_stored(connection: Connection, shape: Shape, table: str, part: int, rows: pa.Table) -> None:
    if rows.num_rows:
        columns = [*row_columns(shape), TargetColumn(PART, "bigint")]
        rows = rows.append_column(PART, pa.repeat(part, rows.num_rows))
        copied(connection, sql.Identifier(SCHEMA, table), columns, rows)


def removal_columns(shape: Shape) -> list[TargetColumn]:
    counts = [TargetColumn(name, "bigint") for name in (TIMES, NEEDED, PART)]
    return [*row_columns(shape), *counts]


def make_copy_tables(connection: Connection, shape: Shape, source: str, table: str) -> None:
    """Make the tables that hold a copy until it is committed."""
    part = TargetColumn(PART, "bigint")
    made = {table: [*row_columns(shape), part]}
    if shape.key:
        made[f"{table}_ended"] = [*key_columns(shape), part]
    else:
        made[f"{table}_gone"] = removal_columns(shape)
    for name, columns in made.items():
        create_unlogged(connection, sql.Identifier(SCHEMA, name), columns)
        register_part(connection, name, shape.target, source)


def tables_of(parts: Sequence[PostgresPart]) -> list[str]:
    return list(dict.fromkeys(part.stored.table for part in parts if part.stored is not None))


def part_order(session: Session, parts: Sequence[PostgresPart]) -> sql.Identifier:
    """Return a temporary table with the number and the place of each part of a copy."""
    stored = [(place, part.stored.part) for place, part in enumerate(parts) if part.stored is not None]
    rows = pa.table({PART: [part for _, part in stored], "place": [place for place, _ in stored]})
    return staged(session, [TargetColumn(PART, "bigint"), TargetColumn("place", "bigint")], rows)


def living(shape: Shape, table: str, order: sql.Identifier, tables: Sequence[str]) -> sql.Composed:
    """FROM and WHERE: rows `c` of one table of a copy that no later part has ended, with the place `o.place`."""
    joined = sql.SQL("FROM {} c JOIN {} o ON o.{} = c.{}").format(
        sql.Identifier(SCHEMA, table), order, sql.Identifier(PART), sql.Identifier(PART)
    )
    if not shape.key:
        return joined + sql.SQL(" WHERE TRUE")
    ended = sql.SQL(" UNION ALL ").join(
        sql.SQL("SELECT {}, p.place FROM {} e JOIN {} p ON p.{} = e.{}").format(
            _columns("e", shape.key),
            sql.Identifier(SCHEMA, f"{one}_ended"),
            order,
            sql.Identifier(PART),
            sql.Identifier(PART),
        )
        for one in tables
    )
    return joined + sql.SQL(
        " WHERE NOT EXISTS (SELECT FROM (SELECT {0}, max(place) AS last FROM ({1}) every GROUP BY {0}) e"
        " WHERE {2} AND e.last > o.place)"
    ).format(sql.SQL(", ").join(map(sql.Identifier, shape.key)), ended, same_key(shape, "c", "e"))


def structure_text(shape: Shape) -> str:
    return "; ".join(f"{column.name} {column.type}" for column in shape.columns) + f"; key {', '.join(shape.key)}"


def key_table(shape: Shape, keys: pa.Array) -> pa.Table:
    """Return encoded keys as columns."""
    schema = arrow_schema(shape.kept)
    types = [schema.field(name).type for name in shape.key]
    return pa.table(decode_keys(keys, types), names=list(shape.key))


def _with_lacking(shape: Shape, rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the rows with NULL in those of these columns that the table was made without."""
    schema = arrow_schema(shape.kept)
    for name in names:
        if name not in rows.column_names:
            rows = rows.append_column(name, pa.nulls(rows.num_rows, schema.field(name).type))
    return rows


def _columns(alias: str, names: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(sql.SQL("{}.{}").format(sql.SQL(alias), sql.Identifier(name)) for name in names)


def _encoded(rows: pa.Table, key: Sequence[str]) -> pa.Array:
    return encode_keys([rows[name].combine_chunks() for name in key])


def _with_rescued(net: NetEffect) -> pa.Table:
    rows = net.upserts
    return rows if net.rescued is None else rows.append_column(pa.field(RESCUED, RESCUED_TYPE), net.rescued)


def _removals(net: NetEffect) -> pa.Table:
    removals = net.removals
    assert removals is not None
    assert removals.rows is not None
    rows = removals.rows.append_column(TIMES, pa.array(removals.times))
    return rows.append_column(NEEDED, pa.array(removals.needed))


def _filled(net: NetEffect, rows: pa.Table, keys: pa.Array) -> tuple[pa.Table, int, npt.NDArray[np.int64]]:
    """Return the upserts with the cells that the newest row of each key has.

    Also how many cells were found, and the rows without theirs.
    """
    upserts, rescued, fetched, missing = net.upserts, net.rescued, 0, [np.empty(0, np.int64)]
    backwards = keys.take(pa.array(np.arange(len(keys))[::-1]))
    for fetch in net.fetches:
        at = pc.subtract(pa.scalar(len(keys) - 1), pc.index_in(fetch.keys, value_set=backwards).cast(pa.int64()))
        number = upserts.schema.get_field_index(fetch.column)
        values = pa.concat_arrays(
            [upserts.column(number).combine_chunks(), rows[fetch.column].combine_chunks().take(at)]
        )
        order = np.arange(upserts.num_rows)
        order[fetch.rows] = upserts.num_rows + np.arange(len(fetch.rows))
        upserts = upserts.set_column(number, upserts.schema.field(number), values.take(pa.array(order)))
        if RESCUED in rows.column_names:
            cells = rows[RESCUED].combine_chunks().take(at).to_pylist()
            texts = [dict(cell or ()).get(fetch.column) for cell in cells]
            of = [(int(row), text) for row, text in zip(fetch.rows, texts, strict=True) if text is not None]
            if of:
                places = np.array([row for row, _ in of])
                names = [fetch.column] * len(of)
                rescued = with_cells(rescued, upserts.num_rows, places, names, [text for _, text in of])
        fetched += len(at) - at.null_count
        missing.append(fetch.rows[np.asarray(at.is_null())])
    if rescued is not None:
        upserts = upserts.append_column(pa.field(RESCUED, RESCUED_TYPE), rescued)
    return upserts, fetched, np.concatenate(missing)
