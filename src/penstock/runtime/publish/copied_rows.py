"""Copied rows as records, on executors: a range of a table is staged as a file of events, then published by shards.

A range is read from the source once, whatever the number of shards, and put into a scratch file beside the change log
(`stage_range`). Every shard then takes its share of it (`publish_rows`). A piece is what one range gave. Pieces of a
copy are published in the order of their numbers, and the shard's place says how many it has: a task that is run again
finds there what it has to do, if anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from penstock.changelog.scratch import Scratch
from penstock.decode.rescue import RESCUED, RESCUED_TYPE, whole
from penstock.decode.verbatim import is_verbatim, typed_values
from penstock.destinations.stream_contract import CopyPlace, Layout, Publisher, Records, ShardPlace
from penstock.errors import (
    EventsMissing,
    PenstockError,
    RecordRefused,
    TableError,
    TablesRefused,
    UnknownTopics,
    ValueDoesNotFit,
)
from penstock.failpoints import reach
from penstock.fold.projection import kept_schema, project_batches
from penstock.model.feed import Feed
from penstock.model.place import place_at
from penstock.model.position import Position
from penstock.model.rescue import RescueCount, merged
from penstock.model.table import TableId, TableSchema
from penstock.render.event import Origin
from penstock.render.events import Rendered, render_events
from penstock.render.format import EventFormat
from penstock.runtime.apply.table_boundary import unexpected
from penstock.runtime.copy.low_priority import at_low_priority
from penstock.runtime.copy.task import AsEvents, counting, read_as_events
from penstock.runtime.publish.task import (
    MOST_LETTERS,
    RENDERING,
    MustStay,
    ShardOutcome,
    TableOutcome,
    place_name,
    records_of,
    without_letters,
)
from penstock.source.snapshot_contract import CopyRange, TableReader

DOING = "its rows were copied"


@dataclass(frozen=True)
class RowCopy:
    """One copy of a table: under which snapshot, and how its rows were read."""

    snapshot: str  # id: no two copies have the same
    feed: Feed
    schema: TableSchema
    position: Position  # of the snapshot: changes from here on follow the rows

    @property
    def name(self) -> str:
        return place_name(self.feed.name)


@dataclass(frozen=True)
class StageTask:
    """Read one range into a new file of `scratch`."""

    reader: TableReader
    range: CopyRange
    copy: RowCopy
    moment: int
    scratch: Scratch
    statement_timeout: float
    max_rows_per_second: float | None

    @property
    def weight(self) -> int:
        return self.range.bytes


@dataclass(frozen=True)
class Staged:
    """A range that was read, or the error that kept it from being so. `file` is empty when there are no rows."""

    file: str = ""
    rows: int = 0
    rescues: tuple[RescueCount, ...] = ()
    error: PenstockError | None = None


def stage_range(task: StageTask) -> Staged:
    try:
        return at_low_priority(lambda: _stage(task))
    except PenstockError as error:
        return Staged(error=error)
    except Exception as error:  # noqa: BLE001 - an error is the task's result: the job has other tables' tasks
        return Staged(error=unexpected(task.copy.feed.name, error, DOING))


def _stage(task: StageTask) -> Staged:
    told: list[RescueCount] = []
    rescues: list[RescueCount] = []
    feed, schema = task.copy.feed, task.reader.schema
    batches = task.reader.read(
        task.range,
        max_rows_per_second=task.max_rows_per_second,
        statement_timeout=task.statement_timeout,
        strict=feed.strict,
        rescuing=told.extend,
    )
    if feed.strict:
        batches = _fitting(schema, batches)
    kept = counting(project_batches(feed.projection, schema, batches), told, rescues)
    snapshot = AsEvents(task.copy.position, task.moment)
    events = read_as_events(snapshot, schema, kept_schema(feed.projection, schema), task.range.number, kept)
    rows = 0
    first = next(events, None)
    if first is None:
        return Staged()
    uniform = _with_rescued(first)
    with task.scratch.writing(uniform.schema) as (name, append):
        while True:
            for batch in uniform.combine_chunks().to_batches():
                append(batch)
            rows += uniform.num_rows
            following = next(events, None)
            if following is None:
                break
            uniform = _with_rescued(following)
    return Staged(name, rows, merged(rescues))


def _fitting(schema: TableSchema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches. A value that does not fit its column's type is an error, though a text has room for it."""
    for batch in batches:
        for column in schema.columns:
            if not is_verbatim(column.type):
                continue
            texts = batch.column(column.name)
            _, unfit = typed_values(schema, column.type, texts)
            if unfit.any():
                value = texts.filter(pa.array(unfit))[0].as_py()
                raise ValueDoesNotFit(
                    f"table {schema.table}: {value!r} does not fit column {column.name}",
                    "Correct the value, choose another type for the column, or run without --strict",
                )
        yield batch


def _with_rescued(events: pa.Table) -> pa.Table:
    if RESCUED in events.column_names:
        return events
    return events.append_column(pa.field(RESCUED, RESCUED_TYPE), pa.nulls(events.num_rows, RESCUED_TYPE))


@dataclass(frozen=True)
class RowsTask:
    """One shard's part of some pieces of a copy.

    `pieces` are numbers and files, in order; `last`: with these the copy is complete. `letters` are records that are
    kept as dead letters already.
    """

    publisher: Publisher
    origin: Origin
    format: EventFormat
    shard: int
    layout: Layout
    copy: RowCopy
    scratch: Scratch
    pieces: tuple[tuple[int, str], ...]
    last: bool
    letters: frozenset[str] = frozenset()
    weight: int = 0


def rows_lost(table: TableId) -> EventsMissing:
    """Return the error of a table whose copied rows the destination acknowledged and then lost."""
    return EventsMissing(
        f"table {table}: the destination has lost rows of its copy that it had acknowledged: it was restored, or does "
        "not write to disk before it answers",
        f"Have the server keep what it acknowledges; then send the rows again: penstock resync FILE {table}",
    )


def publish_rows(task: RowsTask) -> ShardOutcome:
    """Publish what the shard lacks of the pieces, and return how far it is."""
    at = task.publisher.open()
    done = _pieces_done(task, at)
    if done is None:
        return ShardOutcome(at)
    if done < task.pieces[0][0]:  # pieces before these were acknowledged, and are there no more
        own = task.copy.feed.name
        return ShardOutcome(at, {own: TableOutcome(error=rows_lost(own))}, stays=True)
    work = _Rows(task, done)
    upto = replace(
        at,
        behind={**at.behind, task.copy.name: place_at(task.copy.position)},
        copies={**at.copies, task.copy.name: CopyPlace(task.copy.snapshot, task.pieces[-1][0] + 1, task.last)},
    )
    try:
        task.publisher.publish(work.records(), lambda: upto)
    except MustStay:
        return ShardOutcome(at, work.outcomes, stays=True)
    except RecordRefused as refused:
        return _refused(task, at, done, refused)
    except TablesRefused as refused:
        own = task.copy.feed.name
        error = refused.errors.get((own.schema, own.name))
        if error is None:
            raise
        return ShardOutcome(at, {own: TableOutcome(error=error)}, stays=True)
    reach("publish.rows_published")
    return ShardOutcome(upto, work.outcomes)


def _pieces_done(task: RowsTask, at: ShardPlace) -> int | None:
    """Return how many pieces of this copy the shard has; None when it has all of these."""
    known = at.copies.get(task.copy.name)
    if known is None or known.snapshot != task.copy.snapshot:
        return 0
    return None if known.complete or known.pieces > task.pieces[-1][0] else known.pieces


def _refused(task: RowsTask, at: ShardPlace, done: int, refused: RecordRefused) -> ShardOutcome:
    work = _Rows(task, done, refused)
    try:
        for _ in work.records():
            pass
    except MustStay:
        return ShardOutcome(at, work.outcomes, stays=True)
    raise refused  # none of them is ours: the same would happen again


class _Rows:
    """What one shard lacks of some pieces."""

    def __init__(self, task: RowsTask, done: int, refused: RecordRefused | None = None) -> None:
        self._task, self._done, self._refused = task, done, refused
        self._outcome = TableOutcome()

    @property
    def outcomes(self) -> dict[TableId, TableOutcome]:
        return {self._task.copy.feed.name: self._outcome}

    def records(self) -> Iterator[Records]:
        """Yield the shard's records.

        MustStay when letters are to be kept, topics to be looked up, or the rows cannot be rendered at all.
        """
        task = self._task
        for number, file in task.pieces:
            if number < self._done or not file:
                continue
            for batch in task.scratch.read_all(file):
                piece = self._rendered(pa.Table.from_batches([batch]))
                if piece is not None and len(piece):
                    yield records_of(piece)
        if self._outcome.letters or self._outcome.unknown_topics:
            raise MustStay

    def _rendered(self, events: pa.Table) -> Rendered | None:
        task = self._task
        rescued = whole(events[RESCUED])
        try:
            made = render_events(
                events.drop_columns([RESCUED]),
                task.copy.schema,
                task.copy.feed.projection,
                task.origin,
                task.format,
                select=partial(task.layout.select, task.shard),
                rescued=rescued,
                processors=task.copy.feed.processors,
            )
        except UnknownTopics as found:
            self._outcome.unknown_topics |= found.names
            return None
        except TableError as error:
            self._outcome.error = error
        except PenstockError:
            raise
        except Exception as error:  # noqa: BLE001 - it is the table's
            self._outcome.error = unexpected(task.copy.feed.name, error, RENDERING)
        else:
            piece, letters = without_letters(made, task.copy.feed.name, task.shard, task.letters, self._refused)
            self._outcome.letters += tuple(replace(letter, op="read") for letter in letters)
            if len(self._outcome.letters) > MOST_LETTERS:
                raise MustStay  # these first: the others are found the next time
            self._outcome.events += len(piece)
            return piece
        raise MustStay
