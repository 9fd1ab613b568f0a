"""Which tables of the source are published to a stream: those of the catalogue, as it is looked at again and again.

A stream is not put right by itself: events that were never captured are missing for good. So a table of which events
may be missing is Errored until an operator lets it go on without them (`penstock resync`), or has its rows sent again,
where rows are published (`copies`). What the catalogue
said when a table was first published is kept as its baseline, and later looks are compared with it (`stream_watch.py`).
Used by `stream_pipeline.py`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from queue import SimpleQueue

import structlog

from penstock.config.model import Pipeline
from penstock.errors import EventsMissing, KeyRequired, NotPublished, SourceError, StateError, TableError
from penstock.fold.rule import changes, rule_text
from penstock.fold.rule import noted as noted_rule
from penstock.model.feed import Feed
from penstock.model.position import Position
from penstock.model.source_events import SOURCE_EVENTS, is_source_event
from penstock.model.table import TableId, TableSchema
from penstock.model.table_marks import TableMarks
from penstock.model.table_state import GONE, State, TableStatus
from penstock.runtime.publish.loop import PublishLoop
from penstock.runtime.publish.published_table import PublishedTable
from penstock.runtime.publish.stream_watch import StreamLook, TableFacts, stream_feed
from penstock.state.store import Request, StateStore

LOG = structlog.get_logger("tables")
REQUESTS_EVERY = 1.0
NOT_CAPTURED = frozenset({NotPublished.code, KeyRequired.code})
NOT_RECORDED = (
    "the state store does not say since when it is published: no rule matched it for a while, or its record is lost"
)


class StreamTables:
    def __init__(
        self,
        pipeline: Pipeline,
        loop: PublishLoop,
        state: StateStore,
        look: Callable[[Collection[TableId]], StreamLook],
        *,
        copies: bool = False,
        holds_rows: bool = False,
    ) -> None:
        """`pipeline` is as the source and the destination see it.

        `look` looks at the source now, for tables that get a new baseline. `copies`: the rows of a table come first.
        `holds_rows`: so they must be right as long as they are held, and are copied again where they may not be.
        """
        self._pipeline, self._loop, self._state, self._look_now = pipeline, loop, state, look
        self._destination, self._copies = pipeline.destination.name, copies
        self._holds_rows = copies and holds_rows
        self._schemas: dict[TableId, TableSchema] = {}
        self._looked: SimpleQueue[StreamLook] = SimpleQueue()
        self._in_doubt: Position = 0
        self._asked_at = 0.0

    @property
    def followed(self) -> int:
        return len(self._loop.tables)

    @property
    def is_settled(self) -> bool:
        """Whether every look has been acted on, and the last one judged every table."""
        return self._looked.empty() and not self._in_doubt

    @property
    def wants_look(self) -> bool:
        """Whether a table could not be judged by the last look, and can be by one that is taken now."""
        return self._looked.empty() and 0 < self._in_doubt <= self._loop.processed

    def looked(self, look: StreamLook) -> None:
        """Take the source's tables as they are now: acted on between two batches. May be called from any thread."""
        self._looked.put(look)

    def tend(self) -> None:
        """Act on what was looked at and asked for. Between two batches."""
        while not self._looked.empty():
            self._compare(self._looked.get())
        if time.monotonic() - self._asked_at < REQUESTS_EVERY:
            return
        self._asked_at = time.monotonic()
        try:
            for table in [one for one in self._loop.tables.values() if one.outdated]:
                self._go_on(table)
                table.outdated = False
            for request in self._state.requests(self._destination):
                self._answer(request)
                self._state.drop_request(request.id)
        except (StateError, SourceError) as error:
            LOG.warning("requests not answered yet", what=error.what)

    def _compare(self, look: StreamLook) -> None:
        self._in_doubt = look.in_doubt
        there = {schema.table for schema in look.catalogue.schemas}
        status, baselines = self._state.table_status(self._destination), self._state.marks(self._destination)
        for schema in look.catalogue.schemas:
            feed = stream_feed(self._pipeline, schema.table)
            if feed is not None:
                self._schemas[feed.name] = schema
                self._take(feed, look, status.get(feed.name), baselines.get(feed.name))
        self._follow_source_events(status)
        vanished = [name for name in self._loop.tables if name not in there and not is_source_event(name)]
        for name in vanished:
            self._vanished(self._loop.tables[name])
        self._note_missing({*there, *vanished, *SOURCE_EVENTS}, status)
        self._loop.note_recorded()

    def _follow_source_events(self, statuses: Mapping[TableId, TableStatus]) -> None:
        """Take in events of the source itself: nothing of the catalogue concerns them."""
        for table in SOURCE_EVENTS:
            feed = stream_feed(self._pipeline, table)
            if feed is not None and table not in self._loop.tables:
                status = statuses.get(table)
                self._loop.follow(feed, errored=status is not None and status.state is State.ERRORED)

    def _take(self, feed: Feed, look: StreamLook, status: TableStatus | None, baseline: TableMarks | None) -> None:
        """Follow a table, make it Errored if it lacks events or cannot be captured, and keep its baseline."""
        error = self._trouble(feed.name, look, status, baseline)
        known = self._loop.tables.get(feed.name)
        if known is None:
            LOG.info("table is published", table=str(feed.name))
        before = status.reason if status is not None and status.state is State.ERRORED else ""
        waits = known is not None and known.errored and not known.incomplete  # for an operator
        outdated = "" if error is not None or waits else self._outdated(feed.name, look, baseline)
        copying = error is None and not waits and (bool(outdated) or self._is_to_be_copied(feed.name, baseline))
        table = self._loop.follow(feed, errored=error is not None, copying=copying)
        table.relation_id = self._schemas[feed.name].relation_id
        if error is not None:
            if not table.errored or before != error.what:
                self._loop.mark_errored(table, error)
            table.errored, table.incomplete = True, True
            return
        if copying:
            if known is None or not known.copying or known.errored:
                self._copy(table, outdated)
            return
        facts = look.facts.get(feed.name)
        if facts is not None and baseline is None and not waits:
            self._keep_baseline(feed.name, facts)
        elif facts is not None and baseline is not None and look.compared.get(feed.name) == baseline:
            self._keep_additions(feed.name, baseline, look)
        if table.incomplete:
            table.incomplete = False
            self._loop.retry(table)

    def _outdated(self, table: TableId, look: StreamLook, baseline: TableMarks | None) -> str:
        """Say why rows that the destination holds may be wrong; "" when they are right, or when it holds none."""
        if not self._holds_rows or baseline is None or look.compared.get(table) != baseline:
            return ""
        noted = self._state.rules(self._destination).get(table)
        if noted is None:
            return "it is not known under which rule its rows were copied"
        changed = changes(json.loads(noted)["rule"], rule_text(self._pipeline.feeds(table)[0]))
        return "; ".join(changed) or look.outdated.get(table, "")

    def _copy(self, table: PublishedTable, why: str = "") -> None:
        """Have a table's rows published, all of them, and note under which rule, for a later start."""
        if why:
            LOG.info("table is copied again", table=str(table.name), what=why)
            self._note("resync", f"table {table.name} is copied again: {why}", table.name)
        schema = self._schemas[table.name]
        self._loop.copy(table, schema)
        if self._holds_rows:
            feed = self._pipeline.feeds(table.name)[0]
            self._state.set_rule(self._destination, table.name, noted_rule(feed, schema))

    def _is_to_be_copied(self, table: TableId, baseline: TableMarks | None) -> bool:
        """Whether the rows of a table come first: it is new, or an earlier copy did not end."""
        return self._copies and (baseline is None or self._state.copy_of(self._destination, table) is not None)

    def _trouble(
        self, table: TableId, look: StreamLook, status: TableStatus | None, baseline: TableMarks | None
    ) -> TableError | None:
        """Say why a table cannot be Ready: it cannot be captured as it is, or events of it may be missing."""
        if trouble := look.troubles.get(table):
            return trouble
        errored = status is not None and status.state is State.ERRORED
        code = status.code if status is not None and errored else ""
        if status is not None and code == EventsMissing.code:
            return EventsMissing(status.reason, status.solution)
        if self._loop.is_unrecorded:
            return self._missing(table, "the state store has no record of this stream, so what happened is not known")
        if self._copies and self._state.copy_of(self._destination, table) is not None:
            return None  # its copy makes up for what was missed
        if baseline is None:
            if status is None or code in NOT_CAPTURED:
                return None  # nothing of it was published before
            return self._missing(table, NOT_RECORDED)
        if status is not None and code in NOT_CAPTURED:
            return self._missing(table, f"it was not captured for a while: {status.reason}")
        if status is not None and errored and GONE in status.reason:
            return self._missing(table, "it was gone from the source for a while, or made again")
        if table in look.missing and look.compared.get(table) == baseline:
            return self._missing(table, look.missing[table])
        return None

    def _missing(self, table: TableId, why: str) -> EventsMissing:
        return EventsMissing(f"table {table}: events may be missing, because {why}", self._way_out(table))

    def _way_out(self, table: TableId) -> str:
        doing = "send its rows again, and then what follows" if self._copies else "go on without these events"
        return f"To {doing}: penstock resync {self._pipeline.file.name} {table}"

    def _keep_baseline(self, table: TableId, facts: TableFacts) -> None:
        self._state.set_partitions(self._destination, table, facts.partitions)
        if facts.counters is not None:
            self._state.set_write_counters(self._destination, table, facts.counters)
        self._state.set_marks(self._destination, table, facts.marks)  # last: with them, the baseline is complete

    def _keep_additions(self, table: TableId, baseline: TableMarks, look: StreamLook) -> None:
        wider = look.wider.get(table, baseline)
        if wider != baseline:
            self._state.set_marks(self._destination, table, wider)

    def _vanished(self, table: PublishedTable) -> None:
        self._loop.mark_errored(table, self._gone(table.name))
        self._loop.forget(table.name)

    def _note_missing(self, there: set[TableId], statuses: Mapping[TableId, TableStatus]) -> None:
        """Show tables as Errored that were published before this start and that the source no longer has.

        Of tables that no rule matches any more, forget the baseline: their events are not published.
        """
        for name, status in statuses.items():
            if stream_feed(self._pipeline, name) is None:
                self._state.set_marks(self._destination, name, None)
                continue
            if name in there or GONE in status.reason:
                continue
            gone = self._gone(name)
            missing = TableStatus(State.ERRORED, datetime.now(UTC), gone.what, gone.solution, gone.retry, gone.code)
            self._state.set_table_status(self._destination, name, missing)
            self._note("errored", gone.what, name)

    def _gone(self, table: TableId) -> TableError:
        return TableError(
            f"table {table} {GONE}",
            "What is published of it stays. To have it no longer shown: "
            f"penstock forget {self._pipeline.file.name} {table}",
        )

    def _answer(self, request: Request) -> None:
        table = self._loop.tables.get(request.table)
        if table is None:
            LOG.warning("request for a table that is not followed", kind=request.kind, table=str(request.table))
            return
        LOG.info("request taken up", kind=request.kind, table=str(request.table))
        self._note(request.kind, f"table {request.table}: {request.kind} was asked for", request.table)
        if request.kind == "drop":
            LOG.warning("not dropped: events that are published stay", table=str(request.table))
        elif request.kind == "resync":
            self._go_on(table)
        elif table.errored and not table.incomplete:
            if self._copies and self._state.copy_of(self._destination, table.name) is not None:
                self._copy(table)
            else:
                self._loop.retry(table)

    def _go_on(self, table: PublishedTable) -> None:
        """Publish a table from now on, without the events that it lacks or from its rows on. It gets a new baseline."""
        if is_source_event(table.name):
            self._loop.skip(table)
            return
        look = self._look_now([table.name])
        trouble, facts = look.troubles.get(table.name), look.facts.get(table.name)
        if trouble is not None or facts is None:
            LOG.warning("table still cannot be captured", table=str(table.name), what=trouble.what if trouble else GONE)
            return
        while not self._looked.empty():
            self._looked.get()  # older than this one
        self._looked.put(look)
        if self._copies:
            self._copy(table)
            return
        self._keep_baseline(table.name, facts)
        table.incomplete = False
        self._loop.skip(table, look.position)

    def _note(self, kind: str, message: str, table: TableId) -> None:
        self._state.add_event(kind, message, table, destination=self._destination)
