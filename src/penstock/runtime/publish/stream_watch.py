"""Look at the source's catalogue for what may have cost a stream events, and say of which tables.

A stream must have every event of a table from the look on at which the table was first published: its baseline. A
table that left the publication has lost what happened meanwhile, even when it is back. So the baseline has what the
catalogue said then (`TableFacts`), kept in the state store, and every look is compared with it:

| found                                                              | events that may be missing          |
|--------------------------------------------------------------------|-------------------------------------|
| it left the publication and came back; its row filter, column list | those of the time in between        |
| or what the publication sends was altered; it changed its schema   |                                     |
| updates or deletes of a table that is published for inserts only   | these                               |
| a partition was attached with rows, truncated alone or replaced    | those of its rows                   |
| a composite type was altered                                       | values may be read under old names  |

Renamed enum values cost nothing: every event has the label of its time. But a destination that makes rows of the events
(`holds_rows`) has the table copied again. `stream_tables.py` acts on what is found. It is
to streams what `runtime/watch/table_watch.py` and `watch/unsent_writes.py` are to tables.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import structlog

from penstock.config.model import Pipeline
from penstock.errors import EventsMissing, KeyRequired, SourceLocked, TableError
from penstock.model.feed import Feed, Mode
from penstock.model.partitions import Partitions
from penstock.model.position import Position
from penstock.model.table import TableId, TableSchema
from penstock.model.table_marks import TableMarks
from penstock.model.write_counters import WriteCounters
from penstock.runtime.watch.catalogue import Catalogue
from penstock.runtime.watch.source_partitions import SourcePartitions
from penstock.runtime.watch.unsent_writes import rows_written
from penstock.source.contract import Session
from penstock.source.factory import source_of
from penstock.state.store import StateStore

LOG = structlog.get_logger("tables")
UNSENT = "it has no replica identity, so its updates and deletes are not sent"
UNKNOWN = f"{UNSENT}; whether rows were updated or deleted is unknown, for the source's counters were reset"
UNCOUNTED = "and this server does not count them (it is a replica, or track_counts is off), so nobody would notice"


@dataclass(frozen=True)
class TableFacts:
    """What the catalogue said of one table. Without `counters` they were not asked for."""

    marks: TableMarks
    partitions: Partitions | None = None
    counters: WriteCounters | None = None


@dataclass(frozen=True)
class StreamLook:
    """One look.

    `troubles` are of tables that cannot be published as they are. `missing` says of which tables events may be missing,
    and why, in comparison with the baselines that had the marks `compared`; `wider` are those with what is only new.
    `outdated` says why rows from before may be wrong, for destinations that hold rows. `position` is where the source
    was after the look. `in_doubt`: some table cannot be judged before the log has come as far as this; 0: all were.
    """

    catalogue: Catalogue
    troubles: Mapping[TableId, TableError] = field(default_factory=dict)
    facts: Mapping[TableId, TableFacts] = field(default_factory=dict)
    missing: Mapping[TableId, str] = field(default_factory=dict)
    compared: Mapping[TableId, TableMarks] = field(default_factory=dict)
    wider: Mapping[TableId, TableMarks] = field(default_factory=dict)
    outdated: Mapping[TableId, str] = field(default_factory=dict)
    position: Position = 0
    in_doubt: Position = 0


def stream_feed(pipeline: Pipeline, table: TableId) -> Feed | None:
    """Return what is published of a source table: every change, as its rule projects it. None: nothing is."""
    feeds = pipeline.feeds(table)
    return replace(feeds[0], name=table, target=table, mode=Mode.EVENTS) if feeds else None


class StreamWatch:
    def __init__(self, pipeline: Pipeline, state: StateStore) -> None:
        """`pipeline` is as the source and the destination see it."""
        self._pipeline, self._state = pipeline, state
        self._destination = pipeline.destination.name
        self._partitions = SourcePartitions(pipeline, state, acts_on_events=True)

    def look(self, session: Session, catalogue: Catalogue, fresh: Collection[TableId] = ()) -> StreamLook:
        """Compare each published table with its baseline. `fresh` are tables that get a new one."""
        schemas = [schema for schema in catalogue.schemas if stream_feed(self._pipeline, schema.table) is not None]
        baselines, counted = self._state.marks(self._destination), self._state.write_counters(self._destination)
        status = self._state.table_status(self._destination)
        uncounted = [one for one in schemas if one.table not in baselines or one.table in fresh]
        watched = [one for one in schemas if one.table in catalogue.inserts_only and one not in uncounted]
        counters = session.counters([*uncounted, *watched]) if uncounted or watched else {}
        counts = session.counts_writes() if catalogue.inserts_only else True
        marks, partitions = session.marks(schemas), session.partitions(schemas)
        known_partitions = self._state.partitions(self._destination)
        facts: dict[TableId, TableFacts] = {}
        missing: dict[TableId, str] = {}
        compared: set[TableId] = set()
        wider: dict[TableId, TableMarks] = {}
        outdated: dict[TableId, str] = {}
        troubles: dict[TableId, TableError] = dict(catalogue.troubles)
        for schema in schemas:
            name = schema.table
            now = TableFacts(marks[name], partitions.get(name), counters.get(name))
            facts[name] = now
            if name in catalogue.inserts_only and not counts:
                way_out = source_of(self._pipeline.source).advice.identity(name)
                troubles.setdefault(name, KeyRequired(f"table {name}: {UNSENT}, {UNCOUNTED}", way_out))
            known, before = status.get(name), baselines.get(name)
            if before is None or name in fresh or (known is not None and known.code == EventsMissing.code):
                continue
            earlier = TableFacts(before, known_partitions.get(name), counted.get(name))
            inserts_only = name in catalogue.inserts_only
            compared.add(name)
            wider[name] = session.with_additions(before, now.marks)
            outdated[name] = session.why_copied_again(before, now.marks)
            try:
                if why := self._compare(session, schema, earlier, now, inserts_only=inserts_only):
                    missing[name] = why
            except SourceLocked as error:
                LOG.info("table not compared", table=str(name), what=error.what)
                del facts[name]  # what it is now is not known to be fine
        in_doubt = self._partitions.in_doubt(compared)
        return StreamLook(
            catalogue,
            troubles=troubles,
            facts=facts,
            missing=missing,
            compared=baselines,
            wider=wider,
            outdated=outdated,
            position=session.head(),
            in_doubt=in_doubt,
        )

    def _compare(
        self, session: Session, schema: TableSchema, before: TableFacts, now: TableFacts, *, inserts_only: bool
    ) -> str:
        if why := session.why_events_missing(before.marks, now.marks):
            return why
        if (before.partitions is None) != (now.partitions is None):
            return "it was made a partitioned table, or is none any more"
        if inserts_only and now.counters is not None:
            moved = now.counters.since(before.counters)
            if moved is None or moved:
                return UNKNOWN if moved is None else f"{UNSENT}; {rows_written(moved)}"
        if why := session.why_unsent(schema.table, before.marks, now.marks):
            return why
        feed = stream_feed(self._pipeline, schema.table)
        if feed is None or before.partitions is None or now.partitions is None:
            return ""
        return self._partitions.compare(session, feed, schema.relation_id, before.partitions, now.partitions)
