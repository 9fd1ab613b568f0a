"""Which tables of the source are published to a stream: those of the catalogue, as it is looked at again and again.

A stream has no copy to put a table right, so events that were never captured are missing for good: a table that was not
published at the source for a while goes on with what comes next, and that is noted. Used by `stream_pipeline.py`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from queue import SimpleQueue

import structlog

from penstock.config.model import Pipeline
from penstock.errors import StateError, TableError
from penstock.model.feed import Feed, Mode
from penstock.model.table import TableId
from penstock.model.table_state import GONE, State, TableStatus
from penstock.runtime.publish.loop import PublishedTable, PublishLoop
from penstock.runtime.watch.catalogue import Catalogue
from penstock.state.store import Request, StateStore

LOG = structlog.get_logger("tables")
REQUESTS_EVERY = 1.0


def stream_feed(pipeline: Pipeline, table: TableId) -> Feed | None:
    """Return what is published of a source table: every change, as its rule projects it. None: nothing is."""
    feeds = pipeline.feeds(table)
    return replace(feeds[0], name=table, target=table, mode=Mode.EVENTS) if feeds else None


class StreamTables:
    def __init__(self, pipeline: Pipeline, loop: PublishLoop, state: StateStore) -> None:
        """`pipeline` is as the source and the destination see it."""
        self._pipeline, self._loop, self._state = pipeline, loop, state
        self._looked: SimpleQueue[Catalogue] = SimpleQueue()
        self._troubles: Mapping[TableId, TableError] = {}
        self._asked_at = 0.0

    @property
    def followed(self) -> int:
        return len(self._loop.tables)

    @property
    def is_settled(self) -> bool:
        """Whether every look has been acted on."""
        return self._looked.empty()

    def looked(self, catalogue: Catalogue) -> None:
        """Take the source's tables as they are now: acted on between two batches. May be called from any thread."""
        self._looked.put(catalogue)

    def tend(self) -> None:
        """Act on what was looked at and asked for. Between two batches."""
        while not self._looked.empty():
            self._compare(self._looked.get())
        if time.monotonic() - self._asked_at < REQUESTS_EVERY:
            return
        self._asked_at = time.monotonic()
        try:
            for request in self._state.requests(self._pipeline.destination.name):
                self._answer(request)
                self._state.drop_request(request.id)
        except StateError as error:
            LOG.warning("requests not read", what=error.what)

    def _compare(self, catalogue: Catalogue) -> None:
        there = {schema.table for schema in catalogue.schemas}
        for schema in catalogue.schemas:
            feed = stream_feed(self._pipeline, schema.table)
            if feed is None:
                continue
            known = self._loop.tables.get(feed.name)
            table = self._loop.follow(feed)
            if known is None:
                LOG.info("table is published", table=str(feed.name))
            self._take_trouble(table, catalogue.troubles.get(schema.table))
        self._troubles = catalogue.troubles
        for name in [name for name in self._loop.tables if name not in there]:
            self._vanished(self._loop.tables[name])
        self._note_missing(there)

    def _take_trouble(self, table: PublishedTable, trouble: TableError | None) -> None:
        """Make a table Errored that cannot be captured as it is, and try it again when that is over."""
        before = self._troubles.get(table.name)
        if trouble is not None and (before is None or before.what != trouble.what):
            self._loop.mark_errored(table, trouble)
        elif trouble is None and before is not None and table.errored:
            what = f"table {table.name} is captured again; events from the time in between may be missing"
            self._note("resumed", what, table.name)
            LOG.warning("table is captured again", table=str(table.name))
            self._loop.retry(table)

    def _vanished(self, table: PublishedTable) -> None:
        self._loop.mark_errored(table, self._gone(table.name))
        self._loop.forget(table.name)

    def _note_missing(self, there: set[TableId]) -> None:
        """Show tables as Errored that were published before this start and that the source no longer has."""
        destination = self._pipeline.destination.name
        for name, status in self._state.table_status(destination).items():
            if name in there or GONE in status.reason or stream_feed(self._pipeline, name) is None:
                continue
            gone = self._gone(name)
            missing = TableStatus(State.ERRORED, datetime.now(UTC), gone.what, gone.solution, gone.retry)
            self._state.set_table_status(destination, name, missing)
            self._note("errored", gone.what, name)

    def _gone(self, table: TableId) -> TableError:
        return TableError(
            f"table {table} {GONE}",
            "What is published of it stays; if the table comes back, it is published again. To have it no longer "
            f"shown: penstock forget {self._pipeline.file} {table}",
        )

    def _answer(self, request: Request) -> None:
        table = self._loop.tables.get(request.table)
        if table is None:
            LOG.warning("request for a table that is not followed", kind=request.kind, table=str(request.table))
            return
        LOG.info("asked for", kind=request.kind, table=str(request.table))
        self._note(request.kind, f"table {request.table}: {request.kind} was asked for", request.table)
        if request.kind == "drop":
            LOG.warning("not dropped: events that are published stay", table=str(request.table))
        elif request.kind == "resync":
            self._loop.skip(table)
        elif table.errored and request.table not in self._troubles:
            self._loop.retry(table)

    def _note(self, kind: str, message: str, table: TableId) -> None:
        self._state.add_event(kind, message, table, destination=self._pipeline.destination.name)
