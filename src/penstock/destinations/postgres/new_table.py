"""Make a table in Postgres, take over one that somebody has made, or take in another source that feeds one.

In the transaction of `PostgresDestination.ensure_table`, which holds the lock of the table's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.destinations.postgres import records
from penstock.destinations.postgres.connection import Connection
from penstock.destinations.postgres.records import Record
from penstock.destinations.postgres.shape import Shape, create_statements, moved, table_columns, wanted_columns
from penstock.errors import OtherLayout, PositionLost, SchemaChanged, TableError
from penstock.fold.layout import Layout
from penstock.model.feed import Sid
from penstock.model.position import Position
from penstock.model.table import TableId, TableSchema

Storage = tuple[int, int]  # the relation's number, and its file's


@dataclass(frozen=True)
class NewTable:
    """What a source asks for. `start` is the position of a table that needs no copy."""

    target: TableId
    schema: TableSchema
    source: str
    start: Position | None
    layout: Layout
    sid: Sid | None


def forget_lost(connection: Connection, known: Sequence[Record], found: Storage | None) -> list[Record]:
    """Forget a table that somebody dropped, or replaced by another: it is made again, and copied."""
    lost = [one for one in known if found is None or found[0] != one.relation]
    for one in lost:
        records.delete(connection, one.target, one.source)
    return [one for one in known if one not in lost]


def take_in(
    connection: Connection,
    wanted: NewTable,
    known: Sequence[Record],
    found: Storage | None,
    *,
    create: bool,
    enums: bool,
) -> Record:
    """Make the table, or take another source in that feeds it; `known` are those that do."""
    target, layout = wanted.target, wanted.layout
    kept = layout.kept(wanted.schema)
    _require_free(wanted, kept, known, found, create=create)
    shape = Shape(target, kept, wanted_columns(connection, kept, enums=enums), layout, wanted.sid)
    if found is None:
        for statement in create_statements(shape):
            connection.execute(statement)
        found = records.storage(connection, target)
        assert found is not None
    record = Record(
        target=target,
        source=wanted.source,
        relation=found[0],
        filenode=found[1],
        position=wanted.start,
        moment=0,
        history="",
        token=records.new_token(),
        epoch=records.new_token(),
        structure=wanted.schema,
        layout=layout.to_json(),
        rule=layout.rule,
        former=(),
        columns={one.name: one.number for one in kept.columns},
        created=create,
        sid=wanted.sid,
    )
    if known and create:
        for statement in moved(connection, record, shape, wanted.schema, "keep", enums=enums).statements:
            connection.execute(statement)
        record = replace(record, filenode=records.rewrote(connection, target, record.filenode))
    if not create:
        _require_fit(connection, shape)
    records.insert(connection, record)
    return record


def _require_free(
    wanted: NewTable, kept: TableSchema, known: Sequence[Record], found: Storage | None, *, create: bool
) -> None:
    """Raise a TableError when the name is taken by something else, or nothing is there and nobody may make it."""
    target, sid, layout = wanted.target, wanted.sid, wanted.layout
    if sid is not None and sid.column in {one.name for one in kept.columns} | set(layout.around.names):
        raise SchemaChanged(f"table {target}: the source has a column {sid.column}", "Set another `sid_column`")
    if known and (sid is None or any(one.sid is None or one.sid.family != sid.family for one in known)):
        if sid is not None and all(one.sid is None for one in known):
            raise SchemaChanged(f"table {target} was not made for several sources", f"Drop {target}")
        what = f"table {target} holds no position of {wanted.source}"
        raise PositionLost(what, f"Drop {target} or give it another target")
    if known and any(one.layout != layout.to_json() for one in known):
        raise OtherLayout(f"table {target} was made for another mode", f"Drop {target} to start again")
    if found is not None and not known and create:
        raise PositionLost(
            f"table {target} is there, and was not made by penstock, so it holds no position of {wanted.source}",
            f"Drop {target}, give the table another `target`, or set `create: false` to have it filled as it is",
        )
    if found is None and not create:
        raise TableError(
            f"table {target} is not there, and `create: false` leaves it to you to make it",
            "Create it, then `penstock retry`; or set `create: true`",
        )


def _require_fit(connection: Connection, shape: Shape) -> None:
    """SchemaChanged when a table that somebody made cannot take the rows at all."""
    there = {name for name, _, _ in table_columns(connection, shape.target)}
    needed = [*shape.key, *(column.name for column in shape.around)]
    lacking = [name for name in needed if name not in there]
    if lacking:
        raise SchemaChanged(
            f"table {shape.target} lacks column {', '.join(lacking)}, which rows are found by",
            "Add it, then `penstock retry`; other columns may be left out",
        )
