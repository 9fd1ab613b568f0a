"""Put a copy into a table whose past is to be kept, instead of in its place: one job over the copy's parts.

The copy holds the table as it was at one position. Each of its rows is compared with what the table has: in a history,
rows that differ, appear or are gone close and open versions at the snapshot's time, and all others stay as they are; in
append mode, rows of the copy replace those of their keys, and nothing goes. The first copy into an empty table is the
same with nothing to compare. Neighbour: `catch_up`, which has replayed the log over the copy until then.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.decode.rescue import RESCUED, whole
from penstock.decode.schema import arrow_schema
from penstock.destinations.contract import JobRunner, WritePlan, WrittenPart
from penstock.errors import PenstockError
from penstock.fold.keys import encode_keys
from penstock.fold.net_effect import NO_ROW, NetEffect, Steps
from penstock.model.table import TableSchema


@dataclass(frozen=True)
class MergeTask:
    """One group of the copy's rows (or, `absent`, of the table's) to be compared with the other side."""

    copy: WritePlan
    plan: WritePlan
    schema: TableSchema
    group: int
    absent: bool
    moment: int
    first: bool  # nothing has been copied from that source before


@dataclass(frozen=True)
class Merged:
    part: WrittenPart | None = None
    error: PenstockError | None = None


def merge_copy(
    runner: JobRunner, copy: WritePlan, plan: WritePlan, schema: TableSchema, moment: int, *, first: bool
) -> list[WrittenPart]:
    """Return the parts that put the copy into the table of `plan`, whose rows have `schema`.

    `first`: nothing has been copied from that source before.
    """
    tasks = [MergeTask(copy, plan, schema, group, False, moment, first) for group in range(copy.groups)]
    if plan.layout.period is not None:
        tasks += [MergeTask(copy, plan, schema, group, True, moment, first) for group in range(plan.groups)]
    results = runner.run(merge_group, tasks)
    error = next((result.error for result in results if result.error is not None), None)
    if error is not None:
        raise error
    return [result.part for result in results if result.part is not None and not result.part.empty]


def merge_group(task: MergeTask) -> Merged:
    try:
        return Merged(task.plan.write(_effect(task)))
    except PenstockError as error:
        return Merged(error=error)


def _effect(task: MergeTask) -> NetEffect:
    """Return what the group does to the table."""
    schema, rescued = arrow_schema(task.schema), None
    rows = schema.empty_table()
    if not task.absent:
        held = task.copy.held(task.group, [*schema.names, RESCUED])
        rows, rescued = held.select(schema.names).cast(schema), whole(held[RESCUED])
    if not task.schema.key:
        return NetEffect(False, rows, None, None, (), rows.num_rows, 0, rescued=rescued)
    upsert_keys = _keys(task, rows)
    touched = upsert_keys
    if task.absent:
        keys = _keys(task, task.plan.held(task.group, task.schema.key))
        touched = keys.filter(pa.array(~task.copy.has(keys)))
    steps = None
    if task.plan.layout.period is not None:
        everything = np.arange(len(touched))
        row = np.full(len(touched), NO_ROW) if task.absent else everything
        steps = Steps(everything, np.full(len(touched), task.moment), row, first_copy=task.first)
    return NetEffect(False, rows, upsert_keys, touched, (), len(touched), task.moment, steps=steps, rescued=rescued)


def _keys(task: MergeTask, rows: pa.Table) -> pa.Array:
    return encode_keys([rows[name].combine_chunks() for name in task.schema.key])
