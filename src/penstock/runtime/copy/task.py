"""The work of one copy task, on an executor: read one range of a table under the snapshot, and write it as a file.

A second kind of task reads single rows again, by key, for a copy that is being caught up. Both return what went wrong
as their result, as `apply/task.py` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from penstock.decode.rescue import RESCUED, counted, whole
from penstock.destinations.contract import CopyPlan, WrittenPart
from penstock.errors import PenstockError
from penstock.fold.envelope import RANGE_SHIFT, read_events
from penstock.fold.projection import kept_schema, project_batches
from penstock.model.dead_letter import DeadLetter
from penstock.model.feed import Feed
from penstock.model.position import Position
from penstock.model.rescue import RescueCount, merged
from penstock.model.table import TableSchema
from penstock.runtime.apply.processed import LetterList, processed_batches
from penstock.runtime.apply.table_boundary import unexpected
from penstock.runtime.copy.low_priority import at_low_priority
from penstock.source.snapshot_contract import CopyRange, TableReader


@dataclass(frozen=True)
class AsEvents:
    """The snapshot under which rows are read that become events."""

    position: Position
    moment: int


def read_as_events(
    snapshot: AsEvents,
    source: TableSchema,
    kept: TableSchema,
    number: int,
    batches: Iterable[pa.RecordBatch | pa.Table],
) -> Iterator[pa.Table]:
    """Yield the rows of one range, which has a number, as events."""
    first = number << RANGE_SHIFT
    for batch in batches:
        rows = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        yield read_events(rows, source, kept, snapshot.position, snapshot.moment, first)
        first += rows.num_rows


@dataclass(frozen=True)
class CopyTask:
    reader: TableReader
    range: CopyRange
    plan: CopyPlan
    statement_timeout: float
    max_rows_per_second: float | None
    feed: Feed
    as_events: AsEvents | None = None

    @property
    def weight(self) -> int:
        return self.range.bytes


@dataclass(frozen=True)
class Copied:
    """A range that was written, or the error that kept it from being so."""

    part: WrittenPart | None = None
    error: PenstockError | None = None
    rescues: tuple[RescueCount, ...] = ()
    position: Position | None = None  # what was read is exactly of this one; None: of the snapshot's
    letters: tuple[DeadLetter, ...] = ()  # rows that processors failed on


def counting(
    batches: Iterable[pa.RecordBatch | pa.Table], told: list[RescueCount], rescues: list[RescueCount]
) -> Iterator[pa.RecordBatch | pa.Table]:
    """Count into `rescues` what is rescued of the batches.

    That may be less than the reader has `told` of: not all of a row is kept.
    """
    for batch in batches:
        if RESCUED in batch.schema.names:
            rescues += counted(whole(batch[RESCUED]), lambda _: told[-1].place)
        yield batch


def copy_range(task: CopyTask) -> Copied:
    told: list[RescueCount] = []
    seen: list[Position] = []
    rescues: list[RescueCount] = []
    batches = task.reader.read(
        task.range,
        max_rows_per_second=task.max_rows_per_second,
        statement_timeout=task.statement_timeout,
        strict=task.feed.strict,
        rescuing=told.extend,
        seen=seen.append,
    )
    feed, source = task.feed, task.reader.schema
    letters = LetterList(feed.name)
    try:
        kept = project_batches(feed.projection, source, batches)
        if task.as_events is not None:
            schema = kept_schema(feed.projection, source)
            kept = read_as_events(task.as_events, source, schema, task.range.number, kept)
        kept = processed_batches(feed, source, kept, events=task.as_events is not None, keep=letters.keep)
        part = at_low_priority(lambda: task.plan.write_rows(counting(kept, told, rescues)))
        return Copied(part, rescues=merged(rescues), position=max(seen, default=None), letters=tuple(letters.letters))
    except PenstockError as error:
        return Copied(error=error)
    except Exception as error:  # noqa: BLE001 - an error is the task's result: the job has other tables' tasks
        return Copied(error=unexpected(task.reader.schema.table, error, "its rows were copied"))


@dataclass(frozen=True)
class RereadTask:
    """The rows of `keys` (the key's columns), as the snapshot sees them."""

    reader: TableReader
    keys: pa.Table
    plan: CopyPlan
    statement_timeout: float
    feed: Feed


def reread(task: RereadTask) -> Copied:
    told: list[RescueCount] = []
    rescues: list[RescueCount] = []
    rows = task.reader.rows_by_key(
        task.keys, statement_timeout=task.statement_timeout, strict=task.feed.strict, rescuing=told.extend
    )
    letters = LetterList(task.feed.name)
    try:
        kept = project_batches(task.feed.projection, task.reader.schema, rows)
        kept = processed_batches(task.feed, task.reader.schema, kept, events=False, keep=letters.keep)
        part = task.plan.write_rows(counting(kept, told, rescues))
        return Copied(part, rescues=merged(rescues), letters=tuple(letters.letters))
    except PenstockError as error:
        return Copied(error=error)
    except Exception as error:  # noqa: BLE001 - an error is the task's result: the job has other tables' tasks
        return Copied(error=unexpected(task.reader.schema.table, error, "its rows were copied"))
