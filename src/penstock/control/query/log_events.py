"""Events out of the change log as lines, without Spark: any tables of one source, in stream order, as they come.

Memory stays flat: one file of the log is rendered at a time. Rows of the initial copy are not in the log; those that an
events table has are read by `events.py`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changelog.log import ChangeLog
from penstock.config.model import Pipeline
from penstock.control.tables.requests import feed_named
from penstock.control.text.positions import parse_time
from penstock.decode.choices import chosen
from penstock.decode.sift import sift
from penstock.decode.undecodable import Undecodable
from penstock.errors import UsageError
from penstock.model.change import RawChanges
from penstock.model.feed import Feed, Mode
from penstock.model.position import Position, parse_order, position_text
from penstock.model.source_events import is_source_event
from penstock.model.table import TableId
from penstock.render.event import Origin
from penstock.render.events import Rendered, in_stream_order, render_changes
from penstock.render.format import EventFormat

_PLACE = re.compile(r"([0-9a-f]{16})/([0-9a-f]{16})(\.[12])?")
LOOK_EVERY = 0.2  # seconds, with --follow
Warn = Callable[[str], None]


@dataclass(frozen=True)
class After:
    """Which events are printed: those behind a change, or committed after a moment (µs).

    `record`: behind the record with this place, which may be the first of its change's two.
    """

    position: Position = 0
    ordinal: int = -1
    moment: int | None = None
    record: str = ""


EVERYTHING = After()


@dataclass(frozen=True)
class LogEvent:
    """An event as it is printed, and its place: what `after` takes to go on behind it."""

    place: str
    text: str


def parse_after(text: str) -> After:
    """Read a place (`place` or `lsn` of an event), a position (`0/16B3748`) or a time (ISO 8601, in UTC by default)."""
    if (place := _PLACE.fullmatch(text.lower())) is not None:
        return After(int(place[1], 16), int(place[2], 16) - 1, record=place[0])
    try:
        return After(*parse_order(text))
    except ValueError:
        pass
    moment = parse_time(text)
    if moment is None:
        raise UsageError(
            f"--after {text} is neither the place of an event nor a time",
            "Give the `place` or `lsn` of a line that `penstock events` has printed, such as 0/16B3740:2; a position "
            "such as 0/16B3740, for what follows the transaction committed there; or a time such as "
            "2026-01-02T03:04:05Z",
        )
    return After(moment=round(moment.timestamp() * 1_000_000))


class LogEvents:
    """Events of one source.

    `feeds` are the tables that were asked for, by their names at the source; None: all that the pipeline follows.
    `warn` is told, in a sentence, of events that cannot be printed.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        feeds: Mapping[TableId, Feed] | None,
        format: EventFormat,
        warn: Warn,
        *,
        everything: bool = False,
    ) -> None:
        """`pipeline` is as the source sees it. `everything`: also events of the source itself that the log has."""
        self._pipeline, self._feeds, self._format, self._warn = pipeline, feeds, format, warn
        self._everything = everything
        self._log = ChangeLog(pipeline.log_uri)
        sid = None if pipeline.sid is None else pipeline.sid.value
        self._origin = Origin.of(pipeline.source, sid, tenant=pipeline.tenant)

    def reaches(self, after: After) -> bool:
        """Whether the log is known to have everything behind a place or moment. UsageError when there is no log yet."""
        start = self._log.start()
        if start is None:
            raise UsageError(
                f"the change log {self._log.uri} is empty", f"Start `penstock run {self._pipeline.file}` first"
            )
        if after.moment is None:
            return after.position >= start
        first = next((one for name in self._log.segments() for one in self._log.read(name)), None)
        return first is None or first.batch.column("commit_time").cast(pa.int64())[0].as_py() <= after.moment

    @property
    def start_text(self) -> str:
        return position_text(self._log.start() or 0)

    def lines(self, after: After, *, follow: bool = False) -> Iterator[str]:
        """Yield the events behind a place; with `follow`, for ever."""
        for one in self.following(after) if follow else self._read(after):
            if one is not None:
                yield one.text

    def events(self, after: After) -> Iterator[LogEvent | None]:
        """Yield the events behind a place that the log has now, with their places."""
        return self._read(after)

    def following(self, after: After) -> Iterator[LogEvent | None]:
        """Yield the events behind a place, for ever; None whenever there is nothing more for now."""
        return self._read(after, follow=True)

    def _read(self, after: After, *, follow: bool = False) -> Iterator[LogEvent | None]:
        reached = after.position
        while True:
            for name in self._log.segments(after=reached):
                yield from self._of_segment(name.text, after)
                reached = name.end
            if not follow:
                return
            yield None
            time.sleep(LOOK_EVERY)

    def _of_segment(self, segment: str, after: After) -> Iterator[LogEvent]:
        header = self._log.header(segment)
        wanted = {
            fingerprint: feed
            for fingerprint, schema in header.schemas.items()
            if (feed := self._feed(schema.table)) is not None
        }
        first = 0
        for slices in (*(part.slices for part in header.parts), header.slices):
            numbers = range(first, first + len(slices))
            first += len(slices)
            changes = self._log.read(segment, wanted, numbers)
            origin = replace(self._origin, log_state=header.state)
            pieces = [piece for one in changes if (piece := self._rendered(one, wanted, after, origin)) is not None]
            if pieces:
                rendered = in_stream_order(pieces)
                for place, value in zip(rendered.places.to_pylist(), rendered.values.to_pylist(), strict=True):
                    yield LogEvent(place, value.decode())

    def _feed(self, table: TableId) -> Feed | None:
        if is_source_event(table):
            asked = self._everything if self._feeds is None else table in self._feeds
            return Feed.clone(table) if asked else None
        if self._feeds is not None:
            return self._feeds.get(table)
        return feed_to_print(self._pipeline, table)

    def _rendered(
        self, changes: RawChanges, feeds: Mapping[str, Feed], after: After, origin: Origin
    ) -> Rendered | None:
        feed = feeds[changes.schema.fingerprint]
        batch = changes.batch.filter(pa.array(_behind(changes.batch, after)))
        if not batch.num_rows:
            return None
        carried = RawChanges(chosen(changes.schema, feed.types, feed.type_map), batch)
        try:
            made = render_changes(carried, feed, origin, self._format)
        except Undecodable:
            sound, bad = sift(carried)
            if not bad:
                raise
            for message in bad:
                self._warn(f"the message at {message.order} of {feed.table} cannot be decoded: {message.reason}")
            made = render_changes(sound, feed, origin, self._format)
        for letter in made.failed:
            self._warn(f"the event at {letter.place} of {feed.table} cannot be written: {letter.reason}")
        if not after.record:
            return made
        # Events of the source itself may have the place of the change that they stand before: all of these again.
        behind = pc.greater_equal if self._everything else pc.greater
        return made.take(np.flatnonzero(np.asarray(behind(made.places, after.record))))


def asked(pipeline: Pipeline, names: Sequence[str]) -> tuple[Pipeline, dict[TableId, Feed] | None]:
    """Return the source that tables are of, and their feeds by their names there; None when none are named."""
    if not names:
        return pipeline.source_view(None), None
    found: dict[TableId, Feed] = {}
    views: list[Pipeline] = []
    for name in names:
        feed = feed_named(pipeline, name, "print")
        view = next(one for one in pipeline.source_views if feed in one.feeds(feed.table))
        own = feed if feed.mode is Mode.EVENTS else feed_to_print(view, feed.table)
        found[feed.table] = feed if own is None else own
        views.append(view)
    if len({view.source.name for view in views}) > 1:
        raise UsageError(
            "the tables are of several sources, whose events have no common order",
            "Ask for the tables of one source at a time",
        )
    return views[0], found


def events_table(pipeline: Pipeline, feeds: Mapping[TableId, Feed] | None) -> Feed | None:
    """Return the feed of the events table, when one table was asked for that has one."""
    if feeds is None or len(feeds) != 1 or not pipeline.lakes:
        return None
    (feed,) = feeds.values()
    return feed if feed.mode is Mode.EVENTS else None


def feed_to_print(pipeline: Pipeline, table: TableId) -> Feed | None:
    """Return the feed by whose rule a table's events are printed: that of its events, if it has one."""
    feeds = [feed for view in pipeline.destination_views for feed in view.feeds(table)]
    return next((feed for feed in feeds if feed.mode is Mode.EVENTS), feeds[0] if feeds else None)


def _behind(batch: pa.RecordBatch, after: After) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    if after.moment is not None:
        later = pc.greater(batch.column("commit_time").cast(pa.int64()), after.moment)
        return np.asarray(later, np.bool_)
    commit = np.asarray(batch.column("commit_position")).astype(np.int64)
    ordinal = np.asarray(batch.column("ordinal")).astype(np.int64)
    behind: np.ndarray[tuple[int], np.dtype[np.bool_]] = (commit > after.position) | (
        (commit == after.position) & (ordinal > after.ordinal)
    )
    return behind
