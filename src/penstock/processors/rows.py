"""Processors over rows and events of tables: rows in, the rows that are left out, with the columns that a table has.

A table is what its source's rows make it, whenever and however they come: in a copy, in a change, in a copy again. So
in a table of rows a processor sees a row alone, as a copy reads it, and nothing of the change that brought it. It makes
one row of it or none, keeps its key, and writes no columns but those that the table has. In a table of events it sees
events, as in a stream. A row or event that it fails on is left out, as one that it drops, and reported in `failed` if
it is to be a dead letter; or the table stops (`on_error: stop`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ProcessorFailed
from penstock.model.processor import OnError, ProcessorSpec
from penstock.model.table import TableId, TableSchema
from penstock.processors.batch import UNCHANGED_TYPE, EventBatch, Facts, StepFailed, columns_of, images_of
from penstock.processors.chain import Failure, run_chain
from penstock.processors.expression import Call, Expression, Name, Node
from penstock.processors.factory import step_of
from penstock.processors.filter import FilterStep
from penstock.processors.sql import SqlStep

OF_TABLES = ("filter", "sql", "python", "javascript", "cel")  # types of processors that may act on tables
_ROW_FACTS = ("schema", "table")  # facts that are the same for all rows of a table
_CORRECT = "Correct the processor, start again, and `penstock retry`"
Origins = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ProcessedRows:
    """What is left of rows, and by `origin` of which each was made, in order.

    `failed` are rows, by their number, that are to be dead letters.
    """

    rows: pa.Table
    origin: Origins
    failed: dict[int, Failure] = field(default_factory=dict)


def process_rows(specs: Sequence[ProcessorSpec], schema: TableSchema, rows: pa.Table) -> ProcessedRows:
    """Run processors over rows of a table, whose structure is `schema`. ProcessorFailed when the table must stop."""
    count = rows.num_rows
    if not specs or not count:
        return ProcessedRows(rows, np.arange(count))
    after = images_of({name: _whole(rows[name]) for name in rows.column_names}, pa.array(np.zeros(count, np.bool_)))
    given = EventBatch(
        facts=_no_facts(schema, count),
        origin=np.arange(count),
        op=pa.repeat("read", count),
        before=pa.nulls(count, after.type),
        after=after,
        unchanged=pa.nulls(count, UNCHANGED_TYPE),
    )
    done = _one_each(specs, given, {"after": pa.struct(list(rows.schema))}, schema.table)
    order = np.argsort(done.origin, kind="stable")
    arrays = [one.take(pa.array(order)) for one in done.images["after"].flatten()]
    return ProcessedRows(pa.Table.from_arrays(arrays, schema=rows.schema), done.origin[order], done.failed)


def process_events(specs: Sequence[ProcessorSpec], schema: TableSchema, events: pa.Table) -> ProcessedRows:
    """Run processors over events of a table of events. Begin and commit of transactions pass by."""
    is_change = np.asarray(pc.is_in(_whole(events["op"]), value_set=pa.array(["begin", "commit"])), np.bool_) == 0
    at = np.flatnonzero(is_change)
    if not specs or not len(at):
        return ProcessedRows(events, np.arange(events.num_rows))
    changes = events.take(pa.array(at))
    given = EventBatch(
        facts=Facts(
            schema.table.schema,
            schema.table.name,
            schema.key,
            pa.nulls(len(at), pa.string()),
            _whole(changes["commit_time"]),
            _whole(changes["transaction"]),
        ),
        origin=np.arange(len(at)),
        op=_whole(changes["op"]),
        before=_whole(changes["before"]),
        after=_whole(changes["after"]),
        unchanged=_whole(changes["unchanged"]).cast(UNCHANGED_TYPE),
    )
    kinds = {name: events.schema.field(name).type for name in ("before", "after")}
    done = _one_each(specs, given, kinds, schema.table)
    kept = changes.take(pa.array(done.origin))
    for name, made in {"op": done.op, **done.images}.items():
        column = events.schema.get_field_index(name)
        kept = kept.set_column(column, events.schema.field(column), made)
    passing = np.flatnonzero(~is_change)
    whole = pa.concat_tables([kept, events.take(pa.array(passing))]).combine_chunks()
    origins = np.concatenate([at[done.origin], passing])
    order = np.argsort(origins, kind="stable")
    failed = {int(at[number]): failure for number, failure in done.failed.items()}
    return ProcessedRows(whole.take(pa.array(order)), origins[order], failed)


def not_fitting(specs: Sequence[ProcessorSpec], schema: TableSchema, nothing: pa.Table, *, events: bool) -> str | None:
    """Say which columns processors make or leave out that a table has not or has.

    `nothing` is the table, empty. What functions and scripts make is not known before there is a row.
    """
    if any(_expressions(spec) is None for spec in specs):
        return None
    columns = {name: _whole(nothing[name]) for name in nothing.column_names}
    images = columns["after"] if events else images_of(columns, pa.array([], pa.bool_()))
    batch = EventBatch(
        facts=_no_facts(schema, 0),
        origin=np.arange(0),
        op=pa.array([], pa.string()),
        before=images,
        after=images,
        unchanged=pa.nulls(0, UNCHANGED_TYPE),
    )
    try:
        for spec in specs:
            batch = step_of(spec).run(batch)
        kind = nothing.schema.field("after").type if events else images.type
        _, bad = _fitted(batch.after, kind, schema.table)
    except StepFailed as error:
        return error.reason
    except ProcessorFailed as error:
        return error.what.removeprefix(f"table {schema.table}: ")
    return next(iter(bad.values()), None)


def needed_columns(specs: Sequence[ProcessorSpec]) -> frozenset[str] | None:
    """Return the columns whose values processors of a table look at; None: any."""
    needed: set[str] = set()
    for spec in specs:
        expressions = _expressions(spec)
        if expressions is None:
            return None
        needed |= {name.column for one in expressions for name in one.names if name.side != "fact"}
    return frozenset(needed)


def not_for_rows(spec: ProcessorSpec) -> str | None:
    """Say what a processor looks at that a row of a table does not have: it is not the row that changed, but how."""
    step = step_of(spec)
    if isinstance(step, FilterStep) and step.ops:
        return "`ops`"
    for expression in _expressions(spec) or ():
        for node in _nodes(expression.root):
            if isinstance(node, Call) and node.function == "changed":
                return "`changed`"
            if isinstance(node, Name) and node.side == "before":
                return f"`before.{node.column}`"
            if isinstance(node, Name) and node.side == "fact" and node.column not in _ROW_FACTS:
                return f"`{node.column}`"
    return None


def _expressions(spec: ProcessorSpec) -> list[Expression] | None:
    """Return the expressions of a processor; None where it is code."""
    step = step_of(spec)
    if isinstance(step, FilterStep):
        return [] if step.where is None else [step.where]
    if isinstance(step, SqlStep):
        found = [one for _, one in step.assigned] + [
            one.expression for one in step.select if one.expression is not None
        ]
        return found if step.where is None else [*found, step.where]
    return None


def _nodes(node: Node) -> list[Node]:
    return (
        [node, *(one for argument in node.arguments for one in _nodes(argument))] if isinstance(node, Call) else [node]
    )


@dataclass(frozen=True)
class _Made:
    """What processors made of a batch: at most one of each, with images of the table's columns."""

    origin: Origins
    op: pa.Array
    images: dict[str, pa.StructArray]
    failed: dict[int, Failure]


def _one_each(
    specs: Sequence[ProcessorSpec], given: EventBatch, kinds: Mapping[str, pa.StructType], table: TableId
) -> _Made:
    """Run the processors, and require that none makes several of one or says where it goes.

    `kinds` are the types of images; a row with values that fit no column is one that they failed on.
    """
    done = run_chain(specs, given, table)
    parts = done.parts
    origin = np.concatenate([np.zeros(0, np.int64), *(part.origin for part in parts)])
    if len(np.unique(origin)) < len(origin):
        raise ProcessorFailed(f"table {table}: a processor makes several rows of one, which no table takes", _CORRECT)
    if any(part.route is not None for part in parts):
        raise ProcessorFailed(f"table {table}: a processor says where rows go, which is for streams", _CORRECT)
    op = pa.concat_arrays([part.op for part in parts]) if parts else pa.array([], pa.string())
    unfit: dict[int, Failure] = {}
    images: dict[str, pa.StructArray] = {}
    for side, kind in kinds.items():
        made = []
        for part in parts:
            fitted, bad = _fitted(getattr(part, side), kind, table)
            made.append(fitted)
            unfit |= {int(part.origin[row]): Failure("processor", reason) for row, reason in bad.items()}
        images[side] = pa.concat_arrays(made) if made else pa.array([], kind)
    on_error = _strictest(specs)
    if unfit and on_error == "stop":
        raise ProcessorFailed(f"table {table}: {next(iter(unfit.values())).reason}", _CORRECT)
    if unfit:
        fit = pa.array(~np.isin(origin, np.array(sorted(unfit), np.int64)))
        images = {side: one.filter(fit) for side, one in images.items()}
        origin, op = origin[np.asarray(fit)], op.filter(fit)
    return _Made(origin, op, images, {**done.failed, **({} if on_error == "drop" else unfit)})


def _strictest(specs: Sequence[ProcessorSpec]) -> OnError:
    found = {one.on_error for one in specs}
    return "stop" if "stop" in found else "dlq" if "dlq" in found else "drop"


def _fitted(images: pa.StructArray, kind: pa.StructType, table: TableId) -> tuple[pa.StructArray, dict[int, str]]:
    """Return images with exactly the columns that the table has, of their types, and which rows do not fit, and why."""
    made, names = columns_of(images), [field.name for field in kind]
    further = next((name for name in made if name not in names), None)
    if further is not None:
        raise ProcessorFailed(
            f"table {table}: a processor makes a column {further}, which the source's table does not have",
            "Processors of tables write columns that the table has; compute others where they are read",
        )
    columns = []
    bad: dict[int, str] = {}
    is_null = images.is_null()
    for one in kind:
        if one.name not in made:
            raise ProcessorFailed(
                f"table {table}: a processor leaves column {one.name} out", "Use `columns` of the table's rule"
            )
        columns.append(_cast(made[one.name], one, bad, 0))
        if not one.nullable and columns[-1].null_count:
            lacking = np.asarray(pc.and_not(columns[-1].is_null(), is_null))
            for row in np.flatnonzero(lacking).tolist():
                bad.setdefault(row, f"a processor makes column {one.name} null, which it cannot be")
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=is_null), bad


def _cast(values: pa.Array, wanted: pa.Field, bad: dict[int, str], first: int) -> pa.Array:
    """Return values of the column's type. What cannot be one is null, and noted in `bad` by its row."""
    if values.type == wanted.type:
        return values
    try:
        return values.cast(wanted.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        if len(values) < 2 or isinstance(error, pa.ArrowNotImplementedError):
            reason = f"a processor makes values of column {wanted.name} that are no {wanted.type}: {error}"
            for row in range(max(len(values), 1)):  # types that never fit show without a row
                bad.setdefault(first + row, reason)
            return pa.nulls(len(values), wanted.type)
        middle = len(values) // 2
        halves = [
            _cast(values[:middle], wanted, bad, first),
            _cast(values[middle:], wanted, bad, first + middle),
        ]
        return pa.concat_arrays(halves)


def _no_facts(schema: TableSchema, rows: int) -> Facts:
    moments = pa.nulls(rows, pa.timestamp("us", "UTC"))
    names = schema.table.schema, schema.table.name, schema.key
    return Facts(*names, pa.nulls(rows, pa.string()), moments, pa.nulls(rows, pa.int64()))


def _whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
