"""What a read of the change log is made of, without Spark: which segments hold it, and what its rows are.

A range of positions `[begin, end)` is divided into pieces, one per segment that has changes of the wanted tables. Each
piece is read by one task, so every change in the range is read once.

With a table, a row is one change of it: its columns as the table had them at the newest structure, and beside them

| column | holds |
|---|---|
| _op | insert, update, delete, truncate |
| _commit_position, _ordinal | its place: sorted by both, changes are in the order of the stream |
| _commit_time, _transaction | of its transaction |
| _before | the old image, as far as the source sends it |
| _unchanged | columns that are null because an UPDATE left a large value alone and the source did not send it |
| _rescued | texts of values that fit no column |

Without one, a row is one event of any table: place, schema, table, key and value, as streams publish it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changelog.chain import SegmentName
from penstock.changelog.log import ChangeLog
from penstock.config.load import load
from penstock.config.model import Pipeline
from penstock.decode.choices import chosen
from penstock.decode.rescue import RESCUED_TYPE
from penstock.decode.schema import arrow_schema
from penstock.errors import LogDamaged, LogPassed, UsageError
from penstock.fold.batch import within
from penstock.fold.envelope import event_schema, fold_events
from penstock.fold.projection import kept_schema
from penstock.model.change import RawChanges
from penstock.model.feed import Feed
from penstock.model.position import Position, position_text
from penstock.model.source_events import is_source_event
from penstock.model.table import TableId, TableSchema
from penstock.model.type_map import TypeMap
from penstock.render.event import Origin
from penstock.render.events import render_changes
from penstock.state.opening import find_store

EVENT_COLUMNS = ("place", "schema", "table", "key", "value")
ROWS_AT_ONCE = 10_000
SPARK_TYPES = TypeMap(time=False, digits=38, any_number="decimal(38,18)")  # what columns of a data frame can be


@dataclass(frozen=True)
class Piece:
    """Changes of [begin, end) in one segment, under these structures."""

    segment: str
    begin: Position
    end: Position
    feeds: tuple[tuple[str, Feed], ...]  # by fingerprint


@dataclass(frozen=True)
class Reading:
    """What is read of a log: of one table, with its structure and its rule; without a table, events of all.

    Picklable, but for the pipeline, as the source sees it: only planning needs that, and it knows passwords."""

    log: ChangeLog
    origin: Origin
    pipeline: Pipeline | None
    table: TableId | None = None
    schema: TableSchema | None = None
    feed: Feed | None = None
    everything: bool = False  # events of the source itself too

    def __reduce__(self) -> tuple[type[Reading], tuple[object, ...]]:
        return Reading, (self.log, self.origin, None, self.table, self.schema, self.feed, self.everything)

    @classmethod
    def of(
        cls, file: str, *, table: str = "", source: str = "", destination: str = "", everything: bool = False
    ) -> Reading:
        """`file` is the pipeline's; `source` and `destination` are names, needed where it has several that differ."""
        pipeline = load(Path(file)).source_view(source or None).only(destination or None)
        log, origin = ChangeLog(pipeline.log_uri), _origin(pipeline)
        if not table:
            return cls(log, origin, pipeline, everything=everything)
        name = _table_id(table)
        feed = _one_feed(pipeline, name)
        return cls(log, origin, pipeline, name, _newest_schema(log, name), feed)

    def arrow_schema(self) -> pa.Schema:
        """Return what every batch has."""
        if self.schema is None or self.feed is None:
            return pa.schema([(name, pa.string()) for name in EVENT_COLUMNS])
        images = _images(self.schema, self.feed)
        own = {
            "_op": pa.string(),
            "_commit_position": pa.int64(),
            "_ordinal": pa.int64(),
            "_commit_time": pa.timestamp("us", "UTC"),
            "_transaction": pa.int64(),
            "_before": images,
            "_unchanged": pa.list_(pa.string()),
            "_rescued": RESCUED_TYPE,
        }
        clash = next((name for name in own if images.get_field_index(name) >= 0), None)
        if clash is not None:
            raise UsageError(
                f"table {self.table} has a column {clash}, which is a name of penstock's own",
                "Rename it in the table's rule (`columns`), or read events of all tables, without `table`",
            )
        fields = [pa.field(field.name, field.type) for field in images]
        return pa.schema([*fields, *(pa.field(name, type) for name, type in own.items())])

    def bounds(self) -> tuple[Position, Position]:
        """Return where the log begins and ends: both 0 while it is empty."""
        return self.log.start() or 0, self.log.end() or 0

    def history(self) -> str:
        """Return the id of the log: positions of another log mean nothing here."""
        return self.log.history() or ""

    def pieces(self, begin: Position, end: Position) -> list[Piece]:
        """Divide a range. LogPassed when the log no longer reaches back to its beginning."""
        if end <= begin:
            return []
        segments = [name for name in self.log.segments(after=begin) if name.start < end]
        if segments and segments[0].start > begin:
            raise self._passed(begin, segments[0].start)
        found = [Piece(name.text, begin, end, self._feeds(name)) for name in segments]
        return [piece for piece in found if piece.feeds]

    def read(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a piece."""
        feeds = dict(piece.feeds)
        wanted = self.arrow_schema()
        try:
            for changes in self.log.read(piece.segment, feeds):
                feed = feeds[changes.schema.fingerprint]
                batch = within(changes.batch, piece.begin, piece.end)
                if batch.num_rows:
                    made = self._rows(RawChanges(chosen(changes.schema, feed.types, SPARK_TYPES), batch), feed)
                    yield from made.cast(wanted).to_batches(max_chunksize=ROWS_AT_ONCE)
        except LogDamaged:
            start = self.log.start()
            if start is not None and start > piece.begin:
                raise self._passed(piece.begin, start) from None
            raise

    def _feeds(self, name: SegmentName) -> tuple[tuple[str, Feed], ...]:
        if self.pipeline is None:
            raise ValueError("a read is planned where the pipeline is known")
        header = self.log.header(name)
        used = {item.schema for item in header.all_slices}
        found: dict[str, Feed] = {}
        for fingerprint in sorted(used):
            table = header.schemas[fingerprint].table
            if is_source_event(table):
                if self.everything:
                    found[fingerprint] = Feed.clone(table)
            elif self.table in (None, table) and self.pipeline.feeds(table):
                found[fingerprint] = _one_feed(self.pipeline, table)
        return tuple(found.items())

    def _rows(self, changes: RawChanges, feed: Feed) -> pa.Table:
        if self.schema is None:
            return _events(changes, feed, self.origin)
        return _typed(changes, feed, chosen(self.schema, feed.types, SPARK_TYPES))

    def _passed(self, begin: Position, start: Position) -> LogPassed:
        return LogPassed(
            f"changes from {position_text(begin)} on are to be read, and the change log {self.log.uri} begins at "
            f"{position_text(start)}: those in between are gone",
            f"Read from {position_text(start)} on (a stream: with a new checkpoint), and set `log: {{replay: …}}` in "
            "the pipeline file to the longest time that a reader may be away",
        )


def _typed(changes: RawChanges, feed: Feed, schema: TableSchema) -> pa.Table:
    """Return changes of one table as rows of it."""
    net = fold_events([changes], position=0, schema=schema, projection=feed.projection, strict=feed.strict)
    made = net.upserts.combine_chunks()
    after, before = (_whole(made[name]) for name in ("after", "before"))
    rows = np.arange(made.num_rows)
    taken = np.where(np.asarray(after.is_valid()), rows, made.num_rows + rows)
    image = pa.concat_arrays([after, before]).take(pa.array(taken))
    columns: dict[str, pa.Array] = {field.name: pc.struct_field(image, field.name) for field in image.type}
    rescued = net.rescued if net.rescued is not None else pa.nulls(made.num_rows, RESCUED_TYPE)
    columns |= {
        "_op": made["op"],
        "_commit_position": made["commit_position"],
        "_ordinal": made["ordinal"],
        "_commit_time": made["commit_time"],
        "_transaction": made["transaction"],
        "_before": before,
        "_unchanged": made["unchanged"],
        "_rescued": rescued,
    }
    return pa.table(columns)


def _events(changes: RawChanges, feed: Feed, origin: Origin) -> pa.Table:
    """Return changes of any table as streams publish them."""
    rendered = render_changes(changes, feed, origin)
    table = changes.schema.table
    return pa.table(
        {
            "place": rendered.places,
            "schema": pa.repeat(table.schema, len(rendered)),
            "table": pa.repeat(table.name, len(rendered)),
            "key": rendered.keys.cast(pa.string()),
            "value": rendered.values.cast(pa.string()),
        }
    )


def _origin(pipeline: Pipeline) -> Origin:
    """Return what events say of their source.

    Numbers of structures are in the state store; events go without, where that is a file of another machine.
    """
    versions: dict[str, tuple[int, int]] = {}
    store = find_store(pipeline.state_url)
    if store is not None:
        try:
            known = store.of_source(pipeline.scope).schema_versions()
            versions = {one.fingerprint: (one.version, one.sequence) for one in known}
        finally:
            store.close()
    sid = None if pipeline.sid is None else pipeline.sid.value
    return Origin.of(pipeline.source, sid, versions, pipeline.tenant)


def _whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _images(schema: TableSchema, feed: Feed) -> pa.StructType:
    """Return the columns of the table as its rule keeps them."""
    kept = kept_schema(feed.projection, chosen(schema, feed.types, SPARK_TYPES))
    return arrow_schema(event_schema(kept)).field("after").type


def _one_feed(pipeline: Pipeline, table: TableId) -> Feed:
    """Return what the rules make of a table: a table's modes and target do not matter here."""
    feeds = reversed(pipeline.feeds(table))
    found = list({(feed.projection, feed.types, feed.strict): feed for feed in feeds}.values())
    if not found:
        raise UsageError(f"no rule of pipeline {pipeline.name} matches table {table}", "Add it to `tables:`")
    if len(found) > 1:
        names = ", ".join(destination.name for destination in pipeline.destinations)
        raise UsageError(
            f"the destinations of pipeline {pipeline.name} have different rules for table {table}",
            f"Name the one whose rule counts with the option `destination`: {names}",
        )
    return found[0]


def _newest_schema(log: ChangeLog, table: TableId) -> TableSchema:
    """Return the structure of a table's last change in the log."""
    for name in reversed(log.segments()):
        header = log.header(name)
        own = [item for item in header.all_slices if header.schemas[item.schema].table == table]
        if own:
            return header.schemas[max(own, key=lambda item: (item.last_commit, item.index)).schema]
    raise UsageError(
        f"the change log {log.uri} has no change of table {table}, so its columns are not known",
        "Read it when the table has changed, or read events of all tables, without `table`",
    )


def _table_id(text: str) -> TableId:
    schema, dot, name = text.partition(".")
    if not dot or not schema or not name:
        raise UsageError(f"table {text} is not named in full", "Name it as `schema.table`, such as public.orders")
    return TableId(schema, name)
