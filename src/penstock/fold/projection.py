"""What a feed keeps of its table: `where`, `columns` and `set` of its rule, applied to decoded rows.

The copy's rows and the stream's net effects go through the same functions. A row for which `where` does not hold is no
row: in the stream, its key is one that was touched and has no row any more. Masked values are the hexadecimal SHA-256
of salt and text, so that equal values stay equal and nobody can read them. Key columns are kept as they are.

What was rescued of a row follows its columns: a renamed one's has the new name, a dropped one's is gone. A masked
column is a text, which everything fits: its cell is the mask of the text that was rescued. For `where`, a rescued cell
is NULL.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.dialect import OwnType, dialect_of
from penstock.decode.rescue import RESCUED, RESCUED_TYPE, counted, renamed, rescued_of, whole
from penstock.decode.schema import arrow_schema
from penstock.decode.verbatim import is_verbatim, typed_values, without_texts
from penstock.errors import RowIncomplete, SchemaChanged
from penstock.fold.condition import BadCondition, Condition, parse
from penstock.fold.net_effect import NO_ROW, NetEffect
from penstock.model.feed import ColumnChoice, Projection
from penstock.model.rescue import RescueCount
from penstock.model.table import Column, ColumnType, TableSchema

CONSTANT_TYPES: dict[type, OwnType] = {bool: "bool", int: "int64", str: "text"}
FIRST_CONSTANT = -1_000_000  # constants are columns too, with numbers that no source gives


def kept_schema(projection: Projection, schema: TableSchema) -> TableSchema:
    """Return the table as the destination has it. SchemaChanged when what the rule says does not suit the table."""
    if not projection:
        return schema
    choices = {choice.column: choice for choice in projection.columns}
    problem = next(_problems(projection, without_texts(schema)), None)
    if problem is not None:
        raise SchemaChanged(f"table {schema.table}: {problem}", "Correct the table's rule, and start again")
    dialect = dialect_of(schema)
    columns = [
        _chosen(column, choices.get(column.name), dialect.own_type("text"))
        for column in schema.columns
        if not (column.name in choices and choices[column.name].dropped)
    ]
    for place, (name, value) in enumerate(projection.constants):
        columns.append(Column(name, dialect.own_type(CONSTANT_TYPES[type(value)]), number=FIRST_CONSTANT - place))
    return replace(schema, columns=tuple(columns))


def check_projection(projection: Projection, schema: TableSchema) -> list[str]:
    """Say in words everything that does not suit the table."""
    return list(_problems(projection, schema)) if projection else []


def project_rows(projection: Projection, schema: TableSchema, rows: pa.Table) -> pa.Table:
    """Return rows of the source's table as the destination has them, without those that are not kept.

    Both may have RESCUED behind their columns.
    """
    if not projection:
        return rows
    condition = condition_of(projection)
    if condition is not None:
        rows = rows.filter(condition.holds(with_values(rows, schema, condition.columns), schema))
    rows = maskable(rows, schema, projection)
    rescued = whole(rows[RESCUED]) if RESCUED in rows.column_names else None
    kept = shaped(projection, schema, rows, rescued)
    rescued = kept_rescued(projection, schema, rescued)
    return kept if rescued is None else kept.append_column(pa.field(RESCUED, RESCUED_TYPE), rescued)


def project_batches(
    projection: Projection, schema: TableSchema, batches: Iterable[pa.RecordBatch | pa.Table]
) -> Iterable[pa.RecordBatch | pa.Table]:
    if not projection:
        return batches
    tables = (pa.Table.from_batches([one]) if isinstance(one, pa.RecordBatch) else one for one in batches)
    return (project_rows(projection, schema, table) for table in tables)


def project_effect(projection: Projection, schema: TableSchema, net: NetEffect) -> NetEffect:
    """Return the net effect on what is kept.

    `schema` is the one of its upserts.

    RowIncomplete when `where` needs a value that was not sent.
    """
    if not projection:
        return net
    condition = condition_of(projection)
    kept = np.ones(net.upserts.num_rows, np.bool_)
    if condition is not None:
        needed = [fetch.column for fetch in net.fetches if fetch.column in condition.columns]
        if needed:
            raise where_incomplete(schema, needed[0], "`penstock resync`")
        kept = np.asarray(condition.holds(net.upserts, schema).combine_chunks(), np.bool_)
    choices = {choice.column: choice for choice in projection.columns}
    place = np.where(kept, np.cumsum(kept) - 1, NO_ROW)
    fetches = []
    for fetch in net.fetches:
        choice = choices.get(fetch.column)
        if choice is not None and choice.dropped:
            continue
        stays = kept[fetch.rows]
        name = choice.name if choice is not None and choice.name else fetch.column
        fetches.append(
            replace(fetch, column=name, rows=place[fetch.rows[stays]], keys=fetch.keys.filter(pa.array(stays)))
        )
    steps = net.steps
    if steps is not None:
        steps = replace(steps, row=np.where(steps.row == NO_ROW, NO_ROW, place[steps.row]))
    keys = net.upsert_keys
    rescued = None if net.rescued is None else whole(net.rescued.filter(pa.array(kept)))
    cells = kept_rescued(projection, schema, rescued)
    return replace(
        net,
        upserts=shaped(projection, schema, net.upserts.filter(pa.array(kept)), rescued),
        rescued=cells,
        rescues=kept_counts(projection, schema, net.rescues, cells),
        upsert_keys=None if keys is None else keys.filter(pa.array(kept)),
        fetches=tuple(fetch for fetch in fetches if len(fetch.rows)),
        steps=steps,
    )


def where_incomplete(schema: TableSchema, column: str, then: str) -> RowIncomplete:
    """Return the error for a change that lacks a value which `where` needs; `then` is what to run in the end."""
    advice = dialect_of(schema).unsent_value(schema.table)
    return RowIncomplete(
        f"table {schema.table}: `where` needs column {column}, whose value {advice.what}",
        f"{advice.solution}; then {then}",
    )


def let_in_without_values(schema: TableSchema) -> RowIncomplete:
    """Return the error for a row that `where` lets in from now on.

    What was not sent of it is nowhere at the destination.
    """
    advice = dialect_of(schema).unsent_value(schema.table)
    return RowIncomplete(
        f"table {schema.table}: an UPDATE brought a row into `where` and left a value as it was, which {advice.what}",
        f"{advice.solution}; then `penstock resync`",
    )


def _chosen(column: Column, choice: ColumnChoice | None, text: ColumnType) -> Column:
    if choice is None:
        return column
    name, type = choice.name or column.name, text if choice.masked else column.type
    return replace(column, name=name, type=type)


def _problems(projection: Projection, schema: TableSchema) -> Iterator[str]:
    """Yield what does not suit the table, one problem after the other."""
    names = {column.name for column in schema.columns}
    for choice in projection.columns:
        if choice.column not in names:
            yield f"`columns` names {choice.column}, which it does not have; it has {', '.join(sorted(names))}"
        elif choice.column in schema.key:
            yield f"column {choice.column} is of its key, which is kept as it is"
        elif choice.masked and not choice.dropped and not _can_be_masked(schema, schema.column(choice.column)):
            yield (
                f"column {choice.column} of type {_type_name(schema.column(choice.column).type)} cannot be masked; "
                f"carry it as text (`types: {{{choice.column}: text}}`), or drop it"
            )
    gone = {choice.column for choice in projection.columns if choice.dropped or choice.name}
    after = [name for name in names if name not in gone]
    after += [choice.name for choice in projection.columns if choice.name and not choice.dropped]
    after += [name for name, _ in projection.constants]
    for name in dict.fromkeys(name for name in after if after.count(name) > 1):
        yield f"two of its columns would be named {name}"
    if projection.where:
        try:
            parse(projection.where).check(schema)
        except BadCondition as bad:
            yield f"`where`: {bad}"


def _can_be_masked(schema: TableSchema, column: Column) -> bool:
    """Whether values of the column's type have a text to be hashed: lists and structs have none."""
    (field,) = arrow_schema(replace(schema, columns=(column,), key=()))
    try:
        _masked(pa.chunked_array([pa.array([], field.type)]), "")
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return False
    return True


def _type_name(type: ColumnType) -> str:
    return f"{type.element.name}[]" if type.element is not None else type.name


@lru_cache(maxsize=64)
def _parsed(text: str) -> Condition:
    return parse(text)


def condition_of(projection: Projection) -> Condition | None:
    return _parsed(projection.where) if projection.where else None


def kept_rescued(projection: Projection, schema: TableSchema, rescued: pa.Array | None) -> pa.Array | None:
    """Return what was rescued of rows, as it is with their columns as chosen; None when that is nothing."""
    return None if rescued is None else renamed(rescued, _names_rescued(projection, schema))


def kept_counts(
    projection: Projection, schema: TableSchema, counts: Iterable[RescueCount], kept: pa.Array | None
) -> tuple[RescueCount, ...]:
    """Return the counts of rescued cells that are `kept`. `counts` are of all of them, under the source's names."""
    names = _names_rescued(projection, schema)
    places = {names[one.column]: one.place for one in counts if one.column in names}
    return counted(kept, places.__getitem__)


def _names_rescued(projection: Projection, schema: TableSchema) -> dict[str, str]:
    """Return columns of which cells are rescued, and their names at the destination."""
    choices = {choice.column: choice for choice in projection.columns}
    names = {column.name: column.name for column in schema.columns}
    for name, choice in choices.items():
        if choice.dropped or choice.masked:
            names.pop(name, None)
        else:
            names[name] = choice.name or name
    return names


def with_values(rows: pa.Table, schema: TableSchema, names: Iterable[str]) -> pa.Table:
    """Return the rows with the values of these columns, where their texts are carried; null where one does not fit."""
    for name in names:
        type = schema.column(name).type
        if is_verbatim(type):
            values, _ = typed_values(schema, type, rows[name].combine_chunks())
            rows = rows.set_column(rows.schema.get_field_index(name), name, values)
    return rows


def maskable(rows: pa.Table, schema: TableSchema, projection: Projection) -> pa.Table:
    """Return the rows with masked columns as their values' own texts.

    So a value's mask is the same wherever it is made.
    """
    for choice in projection.columns:
        if not choice.masked or choice.column not in rows.column_names:
            continue
        type = schema.column(choice.column).type
        if is_verbatim(type):
            texts = rows[choice.column].combine_chunks()
            values, failed = typed_values(schema, type, texts)
            if not pa.types.is_binary(values.type):
                values = values.cast(pa.string())
            if failed.any():
                values = pc.if_else(pa.array(failed), texts.cast(values.type), values)
            rows = rows.set_column(rows.schema.get_field_index(choice.column), choice.column, values)
    return rows


def shaped(projection: Projection, schema: TableSchema, rows: pa.Table, rescued: pa.Array | None = None) -> pa.Table:
    """Return columns as chosen.

    Without a word about dropped ones: they are simply not taken. Where a masked column's cell was rescued, its text is
    masked.
    """
    choices = {choice.column: choice for choice in projection.columns}
    arrow = arrow_schema(kept_schema(projection, schema))
    columns: list[pa.ChunkedArray | pa.Array] = []
    for column in schema.columns:
        choice = choices.get(column.name)
        if choice is not None and choice.dropped:
            continue
        values = rows[column.name]
        if choice is not None and choice.masked:
            values = _masked(values, projection.salt)
            if rescued is not None:
                values = pc.coalesce(
                    values, _masked(pa.chunked_array([rescued_of(rescued, column.name)]), projection.salt)
                )
        columns.append(values)
    for _, value in projection.constants:
        columns.append(pa.repeat(value, rows.num_rows))
    return pa.table([pa.chunked_array(_chunks(one)) for one in columns] if columns else [], schema=arrow)


def _chunks(column: pa.ChunkedArray | pa.Array) -> list[pa.Array]:
    if isinstance(column, pa.ChunkedArray):
        return column.chunks or [pa.array([], column.type)]
    return [column]


def _masked(values: pa.ChunkedArray, salt: str) -> pa.Array:
    """Each distinct value is hashed once."""
    encoded = values.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    texts = encoded.dictionary.cast(pa.string()) if not pa.types.is_binary(values.type) else encoded.dictionary
    hashed = [
        hashlib.sha256(salt.encode() + (text if isinstance(text, bytes) else text.encode())).hexdigest()
        for text in texts.to_pylist()
    ]
    return pa.array(hashed, pa.string()).take(encoded.indices)
