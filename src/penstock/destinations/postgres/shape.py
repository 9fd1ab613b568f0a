"""What a table at the destination looks like to those who write it, and the statements that make it look like that.

A `Shape` is plain data that goes to executors with a plan. Columns of the source's are known by the numbers of the
structure that was recorded; columns that followed it once (`former`) are NULL in rows that are written from then on;
columns that somebody added are left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from psycopg import sql

from penstock.decode.rescue import RESCUED
from penstock.decode.schema import arrow_schema
from penstock.destinations.postgres.columns import column_types
from penstock.destinations.postgres.connection import Connection
from penstock.destinations.postgres.records import Record
from penstock.destinations.structure import Held, OnDrop, steps, unkept
from penstock.destinations.union import united
from penstock.errors import SchemaChanged
from penstock.fold.layout import Layout
from penstock.model.feed import Sid
from penstock.model.table import TableId, TableSchema
from penstock.model.type_map import WIDEST, TypeMap

TIMESTAMP = "timestamp with time zone"
_FOLLOWS = TypeMap(own_texts=True)
_INTEGERS = {"smallint": pa.int16(), "integer": pa.int32(), "bigint": pa.int64()}


@dataclass(frozen=True)
class TargetColumn:
    name: str
    type: str  # as SQL writes it


@dataclass(frozen=True)
class Shape:
    """`kept` is the structure that rows are written under; `columns` are those of it that the table has, in order."""

    target: TableId
    kept: TableSchema
    columns: tuple[TargetColumn, ...]
    layout: Layout
    sid: Sid | None = None
    former: tuple[str, ...] = ()
    own: tuple[TargetColumn, ...] = ()  # columns that somebody added; of a table of versions, written again with them
    rescued: bool = False  # the table has a column for what was rescued
    unique: bool = True  # a unique index over its key finds the row that another takes the place of

    @property
    def key(self) -> tuple[str, ...]:
        return self.kept.key

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.target.schema, self.target.name)

    @property
    def around(self) -> tuple[TargetColumn, ...]:
        """The columns of a table of versions that say when a version was the valid one."""
        period = self.layout.period
        if period is None:
            return ()
        return (
            TargetColumn(period.valid_from, TIMESTAMP),
            TargetColumn(period.valid_to, TIMESTAMP),
            TargetColumn(period.deleted, "boolean"),
        )

    @property
    def numbers(self) -> dict[str, int]:
        """The columns that follow the source, with their numbers there."""
        return {column.name: self.kept.column(column.name).number for column in self.columns}

    def type_of(self, name: str) -> str:
        return next(column.type for column in self.columns if column.name == name)

    @property
    def conflict_key(self) -> list[str]:
        """The columns of the index by which a row is found; none for a table without a key."""
        if not self.key:
            return []
        key = [*([self.sid.column] if self.sid is not None else []), *self.key]
        period = self.layout.period
        return key if period is None else [*key, period.valid_to, period.valid_from]


def table_columns(connection: Connection, target: TableId) -> list[tuple[str, str, bool]]:
    """Return name, type and whether it must not be null of each column that the table has."""
    rows = connection.execute(
        "SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull FROM pg_attribute a"
        " JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''"
        " ORDER BY a.attnum",
        (target.schema, target.name),
    ).fetchall()
    return [(str(name), str(type), bool(required)) for name, type, required in rows]


def sid_type(sid: Sid) -> str:
    return "text" if isinstance(sid.value, str) else "bigint"


def create_statements(shape: Shape) -> list[sql.Composed]:
    """Return the statements that make the table."""
    columns = [
        sql.SQL("{} {}{}").format(
            sql.Identifier(column.name),
            sql.SQL(column.type),
            sql.SQL(" NOT NULL" if column.name in shape.key else ""),
        )
        for column in (*shape.columns, *shape.around)
    ]
    if shape.sid is not None:
        sid = sql.SQL("{} {} NOT NULL").format(sql.Identifier(shape.sid.column), sql.SQL(sid_type(shape.sid)))
        columns.insert(0, sid)
    made = [
        sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(shape.target.schema)),
        sql.SQL("CREATE TABLE {} ({})").format(shape.identifier, sql.SQL(", ").join(columns)),
    ]
    return made + key_statements(shape)


def key_statements(shape: Shape) -> list[sql.Composed]:
    if not shape.conflict_key:
        return []
    names = sql.SQL(", ").join(map(sql.Identifier, shape.conflict_key))
    return [sql.SQL("ALTER TABLE {} ADD PRIMARY KEY ({})").format(shape.identifier, names)]


def names_of(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, columns))


@dataclass(frozen=True)
class Move:
    """How a table gets to another structure: statements, and what is then recorded. `rekeyed`: its key is another."""

    shape: Shape
    structure: TableSchema
    statements: tuple[sql.Composed, ...] = ()
    rekeyed: bool = False


def wanted_columns(connection: Connection, kept: TableSchema, *, enums: bool) -> tuple[TargetColumn, ...]:
    types = column_types(connection, kept, enums=enums)
    return tuple(TargetColumn(column.name, type) for column, type in zip(kept.columns, types, strict=True))


def shape_of(connection: Connection, record: Record, layout: Layout) -> Shape:
    """Read how the table is now. SchemaChanged when somebody took columns from it that we made."""
    kept = layout.kept(record.structure)
    there = {name: type for name, type, _ in table_columns(connection, record.target)}
    around = layout.around.names
    lacking = [name for name in (*record.columns, *around) if name not in there]
    if lacking and (record.created or set(lacking) & {*kept.key, *around}):
        raise SchemaChanged(
            f"table {record.target}: column {', '.join(lacking)} is gone at the destination",
            f"Put it back, or drop {record.target} to have it copied again; then `penstock retry`",
        )
    if record.sid is not None and record.sid.column not in there:
        raise SchemaChanged(
            f"table {record.target} lacks column {record.sid.column}, which says what source a row is of",
            f"Add it to the table and to its key, then `penstock retry`; without it a copy of {record.source} would "
            "remove the rows of other sources",
        )
    columns = tuple(
        TargetColumn(one.name, there[one.name])
        for one in kept.columns
        if one.name in there and one.name in record.columns
    )
    ours = {*record.columns, *around, RESCUED, *record.former}
    ours |= {record.sid.column} if record.sid is not None else set()
    own = tuple(TargetColumn(name, type) for name, type in there.items() if name not in ours)
    former = tuple(name for name in record.former if name in there)
    return Shape(record.target, kept, columns, layout, record.sid, former, own, RESCUED in there)


def moved(
    connection: Connection,
    record: Record,
    before: Shape,
    after: TableSchema,
    on_drop: OnDrop,
    *,
    enums: bool,
    layout: Layout | None = None,
) -> Move:
    """Return how the table gets to the structure `after`; `layout` is given where all rows are replaced."""
    now = layout or before.layout
    kept = now.kept(after)
    now.require_room(kept)
    if not record.created:
        there = {name: type for name, type, _ in table_columns(connection, record.target)}
        columns = tuple(TargetColumn(one.name, there[one.name]) for one in kept.columns if one.name in there)
        return Move(replace(before, kept=kept, columns=columns, layout=now), after)
    wanted = wanted_columns(connection, kept, enums=enums)
    if record.sid is not None:
        return _united(connection, record, replace(before, kept=kept, columns=wanted, layout=now), after)
    table, held = before.identifier, _held(connection, record, before)
    numbers = [one.number for one in held if one.number is not None]
    unkept_numbers = unkept(numbers, after, kept)
    taken = steps(held, kept, on_drop, types=_FOLLOWS, past=now.keeps_past, unkept=unkept_numbers)
    made: list[sql.Composed] = []
    gone_names = {*taken.deleted, *(old for old, _ in taken.renamed)}
    rekeyed = layout is not None and (before.key != kept.key or bool(set(before.key) & gone_names))
    if rekeyed:
        made += drop_key_statements(connection, before)
    alter = sql.SQL("ALTER TABLE {} ").format(table)
    made += [alter + sql.SQL("DROP COLUMN {}").format(sql.Identifier(name)) for name in taken.deleted]
    made += _renames(alter, taken.renamed)
    names = dict(taken.renamed)
    for name in taken.loosened:
        made.append(alter + sql.SQL("ALTER COLUMN {} DROP NOT NULL").format(sql.Identifier(name)))
    added = {field.name for field in taken.added}
    types = {names.get(column.name, column.name): column.type for column in before.columns}
    for column in wanted:
        called, type = sql.Identifier(column.name), sql.SQL(column.type)
        if column.name in added:
            made.append(alter + sql.SQL("ADD COLUMN {} {}").format(called, type))
        elif types.get(column.name) not in (None, column.type):
            text = sql.SQL("ALTER COLUMN {0} TYPE {1} USING {0}::text::{1}").format(called, type)
            made.append(alter + text)
    gone = [one.name for one in held if one.number is not None]
    gone = [names.get(name, name) for name in gone if name not in taken.deleted]
    former = [
        *(names.get(name, name) for name in before.former),
        *(name for name in gone if name not in before_names(wanted)),
    ]
    shape = replace(before, kept=kept, columns=wanted, layout=now, former=tuple(dict.fromkeys(former)))
    return Move(shape, after, tuple(made), rekeyed)


def before_names(columns: Sequence[TargetColumn]) -> set[str]:
    return {column.name for column in columns}


def _renames(alter: sql.Composed, renamed: Sequence[tuple[str, str]]) -> list[sql.Composed]:
    """Rename columns. If names change places, all of them first get names that nobody has."""
    rename = sql.SQL("RENAME COLUMN {} TO {}")
    olds, news = {old for old, _ in renamed}, {new for _, new in renamed}
    if not olds & news:
        return [alter + rename.format(sql.Identifier(old), sql.Identifier(new)) for old, new in renamed]
    aside = [(old, f"penstock moving {place}", new) for place, (old, new) in enumerate(renamed)]
    first = [alter + rename.format(sql.Identifier(old), sql.Identifier(way)) for old, way, _ in aside]
    return first + [alter + rename.format(sql.Identifier(way), sql.Identifier(new)) for _, way, new in aside]


def _held(connection: Connection, record: Record, shape: Shape) -> list[Held]:
    kept = shape.layout.kept(record.structure)
    types = {column.number: field.type for field, column in zip(arrow_schema(kept), kept.columns, strict=True)}
    followed = {name: (types.get(number, pa.string()), number) for name, number in record.columns.items()}
    around = {*shape.layout.around.names, RESCUED}
    held = []
    for name, _, required in table_columns(connection, record.target):
        type, number = followed.get(name, (None, None))
        if name not in around:
            held.append(Held(name, type, required, number))
    return held


def _united(connection: Connection, record: Record, after: Shape, structure: TableSchema) -> Move:
    """Return the columns of a shared table united with a source's, which adds and widens columns and removes none."""
    assert record.sid is not None
    held = _union_held(connection, record.target, after)
    marked = [name for name, _, required in table_columns(connection, record.target) if required]
    key = after.kept.key if after.layout.has_identifiers else ()
    marked_key = marked if after.layout.has_identifiers else [record.sid.column]
    columns = arrow_schema(after.kept)
    taken = united(record.target, held, marked_key, columns, key, sid=record.sid, types=WIDEST)
    alter = sql.SQL("ALTER TABLE {} ").format(after.identifier)
    types = {column.name: column.type for column in after.columns}
    made = [
        alter + sql.SQL("ADD COLUMN {} {}").format(sql.Identifier(one.name), sql.SQL(types[one.name]))
        for one in taken.added
    ]
    made += [
        alter + sql.SQL("ALTER COLUMN {} TYPE {}").format(sql.Identifier(one.name), sql.SQL(types[one.name]))
        for one in taken.widened
        if one.name in types
    ]
    there = {name: type for name, type, _ in table_columns(connection, record.target)}
    widened = {one.name for one in taken.widened}
    shown = tuple(
        one if one.name in widened else replace(one, type=there.get(one.name, one.type)) for one in after.columns
    )
    return Move(replace(after, columns=shown), structure, tuple(made))


def _union_held(connection: Connection, target: TableId, shape: Shape) -> list[Held]:
    """Return the table's columns, with Arrow's types where those say what can be united."""
    own = dict(zip([one.name for one in shape.kept.columns], arrow_schema(shape.kept), strict=True))
    types = {column.name: column.type for column in shape.columns}
    held = []
    for name, type, required in table_columns(connection, target):
        field = own.get(name)
        arrow = None if field is None else field.type
        if field is not None and types.get(name) != type:
            arrow = _INTEGERS.get(type) if types.get(name) in _INTEGERS else None
        held.append(Held(name, arrow, required, None))
    return held


def drop_key_statements(connection: Connection, shape: Shape) -> list[sql.Composed]:
    row = connection.execute(
        "SELECT conname FROM pg_constraint c JOIN pg_class r ON r.oid = c.conrelid JOIN pg_namespace n"
        " ON n.oid = r.relnamespace WHERE contype = 'p' AND n.nspname = %s AND r.relname = %s",
        (shape.target.schema, shape.target.name),
    ).fetchone()
    if row is None:
        return []
    return [sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}").format(shape.identifier, sql.Identifier(str(row[0])))]
