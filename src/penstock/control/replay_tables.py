"""Put a stretch of the change log into tables of events, beside the run or without one.

Each table is a new one, which nobody else writes: it is made empty at the stretch's beginning and filled by the apply
loop up to its end, with the events that a table of mode `events` has. It keeps its own position, so a replay that was
killed goes on where it stopped, each event once. A table that the pipeline follows is never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from penstock.changelog.log import ChangeLog
from penstock.config.model import Pipeline
from penstock.destinations.contract import TableDestination
from penstock.errors import CheckFailed, TableError, UsageError
from penstock.fold.layout import layout_of
from penstock.model.feed import Feed, Mode
from penstock.model.position import Position, position_text
from penstock.model.table import TableId, TableSchema
from penstock.runtime.apply.loop import ApplyLoop
from penstock.runtime.tables_beside import tables_beside
from penstock.state.memory import MemoryStateStore

Say = Callable[[str], None]


def event_feeds(view: Pipeline, feeds: Mapping[TableId, Feed], into: str) -> list[Feed]:
    """Return what is to be filled: for each table a feed of events into a table that `into` names.

    UsageError when a name is none, stands for two tables, or is a table that the pipeline follows.
    """
    found: dict[TableId, Feed] = {}
    taken = {feed.target for one in view.destination_views for feed in feeds.values() for feed in one.feeds(feed.table)}
    for table in sorted({feed.table for feed in feeds.values()}):
        try:
            schema, dot, name = into.format(schema=table.schema, table=table.name).partition(".")
        except (KeyError, IndexError, ValueError):
            schema, dot, name = "", "", ""
        if not (schema and dot and name):
            raise UsageError(f"--into {into} names no table", "Such as audit.{table}, with {schema} and {table}")
        target = TableId(schema, name)
        if target in found or target in taken:
            why = "stands for several tables" if target in found else "is a table that the pipeline follows"
            raise UsageError(f"--into {into}: {target} {why}", "Name tables of their own: audit.{schema}_{table}")
        feed = next(feed for feed in feeds.values() if feed.table == table)
        found[target] = replace(feed, name=table, target=target, mode=Mode.EVENTS, anomalies=False, processors=())
    return list(found.values())


def fill(
    view: Pipeline, log: ChangeLog, feeds: list[Feed], first: Position, last: Position, *, name: str, say: Say
) -> int:
    """Fill the tables and return how many events that were. `name` is the replay's: positions are kept under it.

    CheckFailed when a table could not be filled to the end.
    """
    notes = MemoryStateStore()
    structures = _structures(log, first, last)
    with tables_beside(view, view.destination) as (destination, runner):
        loop = ApplyLoop(name, destination, runner, log, view.batch, notes, bound=lambda _segments: last)
        try:
            _begin(loop, view, feeds, structures, first, destination)
            _apply(loop, last, say)
        finally:
            loop.close()
    failed = [f"{one.target}: {notes.table_status(destination.name)[one.name].reason}" for one in _errored(loop)]
    if failed:
        raise CheckFailed(
            f"{len(failed)} tables could not be filled to the end; {failed[0]}",
            "Do what it says, then give the same command again: it goes on where each table stopped",
        )
    return sum(one.changes for one in loop.tables.values())


def _begin(
    loop: ApplyLoop,
    view: Pipeline,
    feeds: list[Feed],
    structures: Mapping[TableId, TableSchema],
    first: Position,
    destination: TableDestination,
) -> None:
    for feed in feeds:
        schema = view.carried(structures[feed.table])
        if feed.mode not in destination.capabilities.modes:
            raise UsageError(f"destination {destination.name} has no tables of events", "Replay into another one")
        try:
            position = destination.ensure_table(feed.target, schema, loop.source, first, (), layout_of(feed), feed.sid)
        except TableError as error:
            raise UsageError(f"{feed.target}: {error.what}", "Name another table with --into") from error
        loop.track(feed, destination.structure(feed.target, loop.source), position or first, first)
    loop.begin(first)


def _apply(loop: ApplyLoop, last: Position, say: Say) -> None:
    shown = loop.processed
    while loop.processed < last or not loop.level:
        before = loop.processed
        worked = loop.step(now=True)
        if not worked and loop.processed == before and loop.level:
            return
        if loop.processed > shown and (loop.processed - shown >= 64 * 2**20 or loop.processed >= last):
            shown = loop.processed
            say(f"filled up to {position_text(shown)}")


def _errored(loop: ApplyLoop) -> list[Feed]:
    return [one.feed for one in loop.tables.values() if one.errored]


def _structures(log: ChangeLog, first: Position, last: Position) -> dict[TableId, TableSchema]:
    """Return the structure that each table has at its first change of the stretch."""
    found: dict[TableId, TableSchema] = {}
    for name in log.segments(after=first):
        if name.start >= last:
            break
        for part in log.slices(name):
            found.setdefault(part.table_schema.table, part.table_schema)
    return found
