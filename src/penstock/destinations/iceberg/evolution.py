"""A table's structure in Iceberg: which structure of the source it follows, and how it moves on with its rows.

The property `penstock.structure.<source>` has the source's structure and, by the source's column numbers, Iceberg's
own. It moves in the same transaction as rows, position and schema. Which numbers new columns will get must be known
before files are written: the steps are tried in a transaction that is never committed, and as a commit succeeds only on
the very same base, they give the same numbers there.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock.decode.choices import fitted
from penstock.decode.schema import arrow_schema
from penstock.destinations.iceberg.columns import (
    arrow_type,
    column_from,
    held_columns,
    identifiers,
    located,
    to_iceberg,
)
from penstock.destinations.iceberg.java import Java, JavaObject
from penstock.destinations.iceberg.type_map import ICEBERG_TYPES
from penstock.destinations.lake.columns import LakeColumn
from penstock.destinations.lake.properties import structure_property
from penstock.destinations.lake.recorded_structure import Move, Recorded
from penstock.destinations.lake.source_partition import SourceSlice, require_free_name, with_sid
from penstock.destinations.structure import OnDrop, Steps, steps, unkept
from penstock.destinations.union import holds, united
from penstock.errors import SchemaChanged
from penstock.fold.layout import Layout
from penstock.model.feed import Sid
from penstock.model.table import TableId, TableSchema


def identifiers_after(move: Move) -> set[str]:
    """Return the table's identifier fields once the move is made."""
    marks = identifiers(arrow_schema(move.kept), move.kept.key) if move.marked else set()
    return {move.slice.column.name, *marks} if move.slice is not None and marks else marks


def recorded(metadata: JavaObject, source: str, layout: Layout) -> Recorded | None:
    """Return the structure that the table itself records.

    `layout` and the type map count for tables of earlier versions of penstock, which record less.
    """
    text = metadata.properties().get(structure_property(source))
    if text is None:
        return None
    raw = json.loads(text)
    fields = {int(number): field for number, field in raw["fields"].items()}
    schema = _read_schema(raw["schema"])
    if "kept" not in raw:
        return Recorded(schema, layout.kept(schema), fields)
    return Recorded(schema, _read_schema(raw["kept"]) if raw["kept"] else schema, fields)


def _read_schema(raw: Any) -> TableSchema:
    return fitted(TableSchema.from_json(json.dumps(raw)), ICEBERG_TYPES)


def columns_of(target: TableId, found: str, following: Recorded) -> tuple[LakeColumn, ...]:
    """Return the columns that follow the source, in its order. `found`: JSON of Iceberg's SchemaParser."""
    ids = [following.fields[column.number] for column in following.kept.columns]
    return located(target, found, arrow_schema(following.kept), ids)


def planned(
    java: Java,
    table: JavaObject,
    target: TableId,
    *,
    following: Recorded,
    schema: TableSchema,
    on_drop: OnDrop,
    layout: Layout,
) -> Move:
    """Return how the table, as it is now, gets to `schema`.

    In one of versions columns stay, and the key does not tell its rows apart.
    """
    kept, past, marked = layout.kept(schema), layout.keeps_past, layout.has_identifiers
    found = java.schemas.toJson(table.schema())
    numbers = {field: number for number, field in following.fields.items()}
    types = {field.name: field.type for field in arrow_schema(following.kept)}
    names = {column.number: column.name for column in following.kept.columns}
    held = held_columns(found, {field: (number, types[names[number]]) for field, number in numbers.items()})
    taken = steps(held, kept, on_drop, types=ICEBERG_TYPES, past=past, unkept=unkept(following.fields, schema, kept))
    marks = identifiers(arrow_schema(kept), kept.key) if marked else set()
    if taken or marks != set(table.schema().identifierFieldNames()):
        tried = table.newTransaction()
        evolve(java, tried, taken, marks)
        found = java.schemas.toJson(tried.table().schema())
    ids = {field["name"]: field["id"] for field in json.loads(found)["fields"]}
    wanted = arrow_schema(kept)
    columns = located(target, found, wanted, [ids[name] for name in wanted.names])
    return Move(schema, kept, taken, columns, on_drop, marked)


def planned_union(
    java: Java,
    table: JavaObject,
    target: TableId,
    *,
    schema: TableSchema,
    share: SourceSlice,
    sid: Sid,
    layout: Layout,
) -> Move:
    """Return how a table of several sources, as it is now, gets to hold what one of them has become."""
    found, kept, marked = java.schemas.toJson(table.schema()), layout.kept(schema), layout.has_identifiers
    taken = union_steps(java, table, target, kept, sid, marked=marked)
    if taken:
        tried = table.newTransaction()
        evolve(java, tried, taken, set(table.schema().identifierFieldNames()))
        found = java.schemas.toJson(tried.table().schema())
    columns, stored = united_columns(found, arrow_schema(kept), sid)
    return Move(schema, kept, taken, columns, "keep", marked, replace(share, stored=stored))


def union_steps(
    java: Java, table: JavaObject, target: TableId, schema: TableSchema, sid: Sid, *, marked: bool
) -> Steps:
    """Return the steps that unite the table with a source's columns. `marked`: the key is the table's identifier."""
    columns = arrow_schema(schema)
    require_free_name(target, columns, sid)
    held = held_columns(java.schemas.toJson(table.schema()), {})
    theirs = set(table.schema().identifierFieldNames())
    key = identifiers(columns, schema.key) if marked else ()
    return united(target, held, theirs, columns, key, sid=sid, types=ICEBERG_TYPES)


def united_columns(found: str, columns: pa.Schema, sid: Sid) -> tuple[tuple[LakeColumn, ...], tuple[LakeColumn, ...]]:
    """Return a source's columns with the table's numbers, by name.

    First as the source has them, then as they are stored, sid first.
    """
    there = {field["name"]: field for field in json.loads(found)["fields"]}
    own = tuple(column_from(there[one.name], one.type) for one in columns)
    kept = tuple(
        column_from(known, arrow_type(known["type"]) or one.type)
        for one in with_sid(columns, sid)
        for known in [there[one.name]]
    )
    return own, kept


def columns_in_union(
    target: TableId, found: str, following: Recorded
) -> tuple[tuple[LakeColumn, ...], tuple[LakeColumn, ...]]:
    """Return the columns that follow one of several sources, in its order.

    First as the source has them, then as they are stored, which may be wider. SchemaChanged if somebody removed one.
    """
    there = {field["id"]: field for field in json.loads(found)["fields"]}
    own, kept = [], []
    for column, field in zip(following.kept.columns, arrow_schema(following.kept), strict=True):
        known = there.get(following.fields[column.number])
        type = None if known is None else arrow_type(known["type"])
        if known is None or type is None or not holds(type, field.type, ICEBERG_TYPES):
            raise SchemaChanged(
                f"table {target}: somebody changed it at the destination: column {field.name} is "
                f"{'gone' if known is None else known['type']}",
                f"Bring the column back, or drop {target} there and `penstock retry`: it is copied again",
            )
        own.append(column_from(known, field.type))
        kept.append(column_from(known, type))
    return tuple(own), tuple(kept)


def evolve(java: Java, transaction: JavaObject, taken: Steps, marks: Collection[str]) -> None:
    """Make the steps part of a transaction; `marks` are the identifier fields.

    Names are freed first, then used again: that takes two updates.
    """
    first = transaction.updateSchema().setIdentifierFields([])
    for name in taken.deleted:
        first.deleteColumn(name)
    for before, after in taken.renamed:
        first.renameColumn(before, after)
    first.commit()
    second = transaction.updateSchema().allowIncompatibleChanges()
    for field in taken.added:
        second.addColumn(None, field.name, _type(java, field))
        if not field.nullable:
            second.requireColumn(field.name)
    for outer, inner in taken.grown:
        for field in inner:
            second.addColumn(outer, field.name, _type(java, field))
    for field in taken.widened:
        second.updateColumn(field.name, _type(java, field))
    for name in taken.loosened:
        second.makeColumnOptional(name)
    for name in taken.required:
        second.requireColumn(name)
    second.setIdentifierFields(sorted(marks))
    second.commit()


def _type(java: Java, field: pa.Field) -> JavaObject:
    alone = java.schemas.fromJson(to_iceberg(pa.schema([field]), ()))
    return alone.columns().get(0).type()
