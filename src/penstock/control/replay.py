"""Publish a stretch of the change log once more, beside the run or without one: to a stream, or into new tables.

A replay is a stream of its own in the destination: it has its own places under the name `{source}_replay_{id}`, so it
never touches how far the pipeline's own stream is, and one that was killed goes on where it stopped. Events are those
that the run made, with the same ids, under the rules that the file has now. They come behind what the destination has
by then, beside what the run publishes meanwhile. `replay_tables` has what becomes of tables.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from penstock.changelog.log import ChangeLog
from penstock.changelog.transactions import first_after
from penstock.config.destinations import StreamSection
from penstock.config.model import Pipeline
from penstock.control.found_store import found_store
from penstock.control.replay_tables import event_feeds, fill
from penstock.destinations.contract import InProcessRunner
from penstock.destinations.factory import close_stream, make_stream
from penstock.errors import CheckFailed, UsageError
from penstock.model.feed import Feed
from penstock.model.position import Position, position_text
from penstock.model.schema_version import SchemaVersion
from penstock.model.source_events import is_source_event
from penstock.model.table import TableId
from penstock.render.event import Origin
from penstock.runtime.publish.loop import PublishLoop
from penstock.state.memory import MemoryStateStore

Say = Callable[[str], None]


@dataclass(frozen=True)
class Replayed:
    """What was published, of changes in `[first, last)`. `left_out` says which events were not, and why."""

    events: int
    first: Position
    last: Position
    left_out: tuple[str, ...]


class _Notes(MemoryStateStore):
    """What a replay has to remember while it goes on, with the schema versions that the pipeline knows."""

    def __init__(self, versions: Sequence[SchemaVersion]) -> None:
        super().__init__()
        self._versions = list(versions)

    def schema_versions(self) -> list[SchemaVersion]:
        return self._versions


def replay(
    pipeline: Pipeline,
    *,
    source: str | None,
    destination: str,
    tables: Sequence[str],
    since: Position | datetime,
    until: Position | datetime | None,
    into: str | None = None,
    say: Say,
) -> Replayed:
    """Publish the changes from a position or moment on, up to another (None: to the log's end now).

    Into a stream, or into new tables of events that `into` names by the source's (`audit.{table}`).

    UsageError when the destination takes no such replay or the log does not reach back; CheckFailed when a table could
    not be replayed to the end."""
    view = pipeline.source_view(source).destination_view(destination)
    section = view.destination
    if isinstance(section, StreamSection) == (into is not None):
        raise UsageError(
            f"destination {destination} is a stream, and takes no --into"
            if into is not None
            else f"destination {destination} holds tables, and a table is never made older than it is",
            "Leave it out" if into is not None else "Name new tables, which get the events: --into 'audit.{table}'",
        )
    log = ChangeLog(view.log_uri)
    first, last = _range(log, view, since, until)
    feeds = _feeds(log, view, tables, first, last)
    key = _key(view, f"{destination} {into or ''}".rstrip(), feeds, first, last)
    memory = view.home / "replays" / f"{key}.json"
    name = f"{view.source.name}_replay_{_id(memory)}"
    if not isinstance(section, StreamSection):
        events = fill(view, log, event_feeds(view, feeds, into or ""), first, last, name=name, say=say)
        memory.unlink(missing_ok=True)
        return Replayed(events, first, last, ())
    stream = make_stream(section, places=view.places_uri)
    with found_store(pipeline) as store:
        versions = [] if store is None else store.of_source(view.scope).schema_versions()
    notes = _Notes(versions)
    sid = None if view.sid is None else view.sid.value
    try:
        loop = PublishLoop(
            name,
            stream,
            InProcessRunner(),
            log,
            view.batch.of_streams,
            notes,
            start=first,
            dlq=section.dlq,
            origin=Origin(view.source.name, view.source.database, sid, tenant=view.tenant or ""),
            format=section.record_format,
            bound=lambda _segments: last,
        )
        loop.begin()
        for feed in feeds.values():
            loop.follow(feed)
        _publish(loop, last, say)
        loop.close()
    finally:
        close_stream(stream)
    failed = [
        f"{one.name}: {notes.table_status(destination)[one.name].reason}" for one in loop.tables.values() if one.errored
    ]
    if failed:
        raise CheckFailed(
            f"{len(failed)} tables could not be replayed to the end; {failed[0]}",
            "Do what it says, then give the same command again: it goes on where each table stopped",
        )
    memory.unlink(missing_ok=True)
    events = sum(one.changes for one in notes.progress(destination).values())
    letters = [one.letter for one in notes.letters(destination)]
    return Replayed(events, first, last, tuple(f"{one.table} at {one.place}: {one.reason}" for one in letters))


def _publish(loop: PublishLoop, last: Position, say: Say) -> None:
    shown = loop.processed
    while loop.processed < last or not loop.is_level:
        before = loop.processed
        worked = loop.step(now=True)
        if not worked and loop.processed == before and loop.is_level:
            return
        if loop.processed - shown >= 64 * 2**20 or (loop.processed >= last and shown < last):
            shown = loop.processed
            say(f"published up to {position_text(shown)}")


def _range(
    log: ChangeLog, view: Pipeline, since: Position | datetime, until: Position | datetime | None
) -> tuple[Position, Position]:
    start, end = log.start(), log.end()
    if start is None or end is None:
        raise UsageError(f"the change log {log.uri} is empty", f"Start `penstock run {view.file}` first")
    first = since if isinstance(since, int) else _at(log, since, end, before=True)
    last = end if until is None else until if isinstance(until, int) else _at(log, until, end, before=False)
    if isinstance(since, datetime) and not _has_before(log, since):
        raise _passed(log, start, f"not everything from {since.isoformat()} on is certain to be in it")
    if first < start:
        raise _passed(log, start, f"{position_text(first)} is not in it any more")
    if last > end:
        raise UsageError(f"the change log ends at {position_text(end)}", "Leave --to out: it is replayed to its end")
    if last <= first:
        raise UsageError(
            f"there is no change from {position_text(first)} to {position_text(last)}", "Give --from before --to"
        )
    return first, last


def _at(log: ChangeLog, moment: datetime, end: Position, *, before: bool) -> Position:
    """Return where the first transaction at the moment or later committed; not `before`: later than the moment."""
    found = first_after(log, round(moment.timestamp() * 1_000_000) - before)
    return end if found is None else found


def _has_before(log: ChangeLog, moment: datetime) -> bool:
    """Whether the log has a change of before that moment, which proves that it has everything of it and later."""
    micros = round(moment.timestamp() * 1_000_000)
    first = next((one for name in log.segments() for one in log.read(name)), None)
    return first is not None and int(first.batch.column("commit_time")[0].value) < micros


def _passed(log: ChangeLog, start: Position, why: str) -> UsageError:
    return UsageError(
        f"the change log {log.uri} begins at {position_text(start)}: {why}",
        f"Give --from {position_text(start)} or later; `log.replay` in the file keeps more of it from now on",
    )


def _feeds(
    log: ChangeLog, view: Pipeline, tables: Sequence[str], first: Position, last: Position
) -> dict[TableId, Feed]:
    """Return the feed of each table that has changes there."""
    found: dict[TableId, Feed] = {}
    for name in log.segments(after=first):
        if name.start >= last:
            break
        for part in log.slices(name):
            if not is_source_event(part.table_schema.table):
                found |= {feed.name: feed for feed in view.feeds(part.table_schema.table)}
    known = {str(name): feed for name, feed in found.items()}
    unknown = next((name for name in tables if name not in known), None)
    if unknown is not None:
        raise UsageError(
            f"the change log has no change of table {unknown} there, or the stream does not follow it",
            f"It has changes of {', '.join(sorted(known)[:10]) or 'none that it follows'}",
        )
    return {feed.name: feed for name, feed in known.items() if not tables or name in tables}


def _key(view: Pipeline, destination: str, feeds: dict[TableId, Feed], first: Position, last: Position) -> str:
    """Return the same for the same replay, so that one that was killed is found again."""
    text = json.dumps([view.key, destination, sorted(map(str, feeds)), first, last])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _id(memory: Path) -> str:
    """Return the id of a replay that was begun, or of a new one."""
    try:
        return str(json.loads(memory.read_text())["id"])
    except (FileNotFoundError, ValueError, KeyError):
        made = secrets.token_hex(4)
    memory.parent.mkdir(parents=True, exist_ok=True)
    fresh = memory.with_suffix(".new")
    fresh.write_text(json.dumps({"id": made}))
    fresh.replace(memory)
    return made
