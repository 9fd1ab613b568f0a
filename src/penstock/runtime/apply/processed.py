"""Processors of a table's rows and events, in batches and in copies alike (`processors/rows.py`).

A row that processors leave out or fail on is no row: its key is one that was touched and has no row any more. So a
table never keeps the row as it was before a change that they failed on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from penstock.decode.dialect import dialect_of
from penstock.decode.rescue import RESCUED, RESCUED_TYPE, counted, renamed, whole
from penstock.decode.schema import arrow_schema
from penstock.errors import ProcessorFailed, RowIncomplete
from penstock.fold.envelope import event_schema
from penstock.fold.net_effect import NetEffect, narrowed
from penstock.fold.projection import kept_schema
from penstock.model.dead_letter import DeadLetter
from penstock.model.feed import Feed, Mode
from penstock.model.position import position_text
from penstock.model.processor import ProcessorSpec
from penstock.model.rescue import RescueCount
from penstock.model.table import TableId, TableSchema
from penstock.processors.chain import Failure
from penstock.processors.rows import needed_columns, not_fitting, process_events, process_rows
from penstock.processors.writes import written_columns
from penstock.render.processed import check_processors

MOST_LETTERS = 10_000  # of one task
MOST_SHOWN = 4_000  # characters of a row that is kept with its dead letter
Specs = Sequence[ProcessorSpec]
Keep = Callable[[Sequence[DeadLetter]], None]


def processed_effect(feed: Feed, schema: TableSchema, net: NetEffect, *, events: bool, keep: Keep) -> NetEffect:
    """Return what a feed's processors make of a net effect.

    `schema` is the source's table; `keep` is given dead letters.

    RowIncomplete when they need a value that was not sent; ProcessorFailed when the table must stop.
    """
    specs, kept = feed.processors, kept_schema(feed.projection, schema)
    if events:
        done = process_events(specs, kept, net.upserts)
        keep(_letters(feed.name, kept, net.upserts, done.failed, events=True))
        cells = None if net.rescued is None else net.rescued.take(pa.array(done.origin))
        cells = _without(specs, cells, [f"{side}.{one.name}" for side in ("before", "after") for one in kept.columns])
        return replace(net, upserts=done.rows, rescued=cells, rescues=_recounted(net, cells))
    require_key(feed, schema)
    needed = needed_columns(specs)
    lacking = sorted({one.column for one in net.fetches if needed is None or one.column in needed})
    if lacking:
        advice = dialect_of(schema).unsent_value(schema.table)
        raise RowIncomplete(
            f"table {schema.table}: a processor needs column {lacking[0]}, whose value {advice.what}",
            f"{advice.solution}; then `penstock resync`",
        )
    done = process_rows(specs, kept, net.upserts)
    keep(_letters(feed.name, kept, net.upserts, done.failed, events=False))
    left = np.zeros(net.upserts.num_rows, np.bool_)
    left[done.origin] = True
    written = written_columns(specs)
    net = narrowed(replace(net, fetches=tuple(one for one in net.fetches if one.column not in written)), left)
    cells = _without(specs, net.rescued, [one.name for one in kept.columns])
    return replace(net, upserts=done.rows, rescued=cells, rescues=_recounted(net, cells))


def processed_batches(
    feed: Feed, schema: TableSchema, batches: Iterable[pa.RecordBatch | pa.Table], *, events: bool, keep: Keep
) -> Iterable[pa.RecordBatch | pa.Table]:
    """Return what a feed's processors make of the rows of a copy, or of the events that these are."""
    if not feed.processors:
        return batches
    if not events:
        require_key(feed, schema)
    return _processed(feed, kept_schema(feed.projection, schema), batches, events=events, keep=keep)


def _processed(
    feed: Feed, kept: TableSchema, batches: Iterable[pa.RecordBatch | pa.Table], *, events: bool, keep: Keep
) -> Iterator[pa.Table]:
    sides = [f"{side}." for side in ("before", "after")] if events else [""]
    for batch in batches:
        table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        rescued = whole(table[RESCUED]) if RESCUED in table.column_names else None
        rows = table.drop_columns([RESCUED]) if RESCUED in table.column_names else table
        done = (process_events if events else process_rows)(feed.processors, kept, rows)
        keep(_letters(feed.name, kept, rows, done.failed, events=events))
        cells = None if rescued is None else rescued.take(pa.array(done.origin))
        cells = _without(feed.processors, cells, [f"{side}{one.name}" for side in sides for one in kept.columns])
        yield done.rows if cells is None else done.rows.append_column(pa.field(RESCUED, RESCUED_TYPE), cells)


class LetterList:
    """Dead letters of one task. ProcessorFailed when they are too many."""

    def __init__(self, table: TableId) -> None:
        self._table = table
        self.letters: list[DeadLetter] = []

    def keep(self, letters: Sequence[DeadLetter]) -> None:
        self.letters += letters
        if len(self.letters) > MOST_LETTERS:
            raise ProcessorFailed(
                f"table {self._table}: processors fail on more than {MOST_LETTERS:,} rows at once; the last one: "
                f"{letters[-1].reason}",
                f"Correct the processor, start again, and `penstock retry FILE {self._table}`",
            )


def require_key(feed: Feed, schema: TableSchema) -> None:
    """Raise where rows are told apart by all that is in them, which processors would change."""
    if feed.processors and schema.by_row and feed.mode is Mode.CLONE:
        raise ProcessorFailed(
            f"table {schema.table} has no key and is followed by its whole row: processors cannot act on it",
            "Give it a primary key, or take it out of the processor's `tables`",
        )


def check_table_processors(feed: Feed, schema: TableSchema) -> str | None:
    """Say in words why a feed's processors cannot work on its table at a destination of tables."""
    found = check_processors(feed.processors, schema, feed.projection)
    if found is not None:
        return found
    try:
        require_key(feed, schema)
    except ProcessorFailed as error:
        return error.what.partition(f"table {schema.table} ")[2]
    kept = kept_schema(feed.projection, schema)
    wanted = arrow_schema(event_schema(kept) if feed.mode is Mode.EVENTS else kept)
    return not_fitting(feed.processors, kept, wanted.empty_table(), events=feed.mode is Mode.EVENTS)


def _letters(
    table: TableId, kept: TableSchema, given: pa.Table, failed: dict[int, Failure], *, events: bool
) -> list[DeadLetter]:
    """Return the rows or events that processors failed on. Those of a row are told apart by its key."""
    if not failed:
        return []
    numbers = sorted(failed)
    letters = []
    for number, row in zip(numbers, given.take(pa.array(numbers)).to_pylist(), strict=True):
        image = (row["after"] or row["before"]) if events else row
        key = _text({name: image.get(name) for name in kept.key}) if kept.key and image else ""
        shown = _text(image)[:MOST_SHOWN]
        if events:
            place = f"{position_text(row['commit_position'])}.{row['ordinal']}"
        else:
            place = key or hashlib.sha256(_text(row).encode()).hexdigest()
        failure = failed[number]
        op = row["op"] if events else "row"
        letters.append(DeadLetter(table, place, key.encode() or None, shown.encode(), failure.code, failure.reason, op))
    return letters


def _text(values: object) -> str:
    return json.dumps(values, default=str, ensure_ascii=False)


def _without(specs: Specs, rescued: pa.Array | None, names: Sequence[str]) -> pa.Array | None:
    """Return what was rescued, without cells that processors write."""
    written = written_columns(specs)
    return (
        None if rescued is None else renamed(rescued, {one: one for one in names if one.split(".")[-1] not in written})
    )


def _recounted(net: NetEffect, cells: pa.Array | None) -> tuple[RescueCount, ...]:
    places = {one.column: one.place for one in net.rescues}
    return counted(cells, places.__getitem__)
