"""Which tables take part: those that appear, those that vanish, those that an operator wants copied or tried again.

The source is looked at elsewhere (`watch/source_watch.py`); what that finds, and what operators ask for through the
state store, is acted on between two batches.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from queue import SimpleQueue

import structlog

from penstock.config.model import Pipeline
from penstock.errors import KeyRequired, LineageLost, NotPublished, OtherLayout, Retry, StateError, TableError
from penstock.fold.layout import Layout, layout_of
from penstock.fold.rule import noted, retyped
from penstock.model.feed import Feed, Mode
from penstock.model.position import Position, position_text
from penstock.model.table import TableId, TableSchema
from penstock.model.table_state import COPYING, GONE, State, TableStatus
from penstock.runtime.apply.copy_reasons import (
    ASKED_FOR,
    AWAY,
    COLUMNS_CAME,
    MADE_AGAIN,
    PUBLISHED_AGAIN,
    has_key,
    is_another,
    key_came,
    mode_refused,
    why_another,
)
from penstock.runtime.apply.followed_table import FollowedTable
from penstock.runtime.apply.loop import ApplyLoop
from penstock.runtime.apply.table_boundary import of_table
from penstock.runtime.apply.target_claims import TargetClaims
from penstock.runtime.copy.copier import Copier
from penstock.runtime.copy.copying_table import unfinished_parts
from penstock.runtime.watch.findings import Findings
from penstock.runtime.watch.rule_changes import RuleChange, compared, hidden_remark, other_layout, refusal
from penstock.runtime.watch.table_watch import Followed, Look
from penstock.state.store import CopyRecord, Request, StateStore

LOG = structlog.get_logger("tables")
REQUESTS_EVERY = 1.0


class TableLifecycle:
    def __init__(
        self,
        pipeline: Pipeline,
        loop: ApplyLoop,
        copier: Copier,
        state: StateStore,
        log_begins: Position,
        owners: TargetClaims,
    ) -> None:
        """`log_begins` is where the log begins, or will begin when capture writes the first of it."""
        self._pipeline, self._loop, self._copier, self._state = pipeline, loop, copier, state
        self._log_begins, self._owners = log_begins, owners
        self._known: dict[TableId, TableSchema] = {}
        self._feeds: dict[TableId, Feed] = {}  # by name
        self._looked: SimpleQueue[Look] = SimpleQueue()
        self._unsettled: Look | None = None  # whose structures are compared when the stream has passed it
        self._in_doubt: Position = 0
        self._asked_at = 0.0
        self._findings: SimpleQueue[Findings] = SimpleQueue()
        self._troubles: Mapping[TableId, TableError] = {}  # by the feed's name, as of the last look
        self._unknown: Mapping[TableId, str] = {}

    def admit(self, schema: TableSchema) -> None:
        """Take the table in, with all of its feeds."""
        self._take_findings()
        schema = self._pipeline.carried(schema)
        self._known[schema.table] = schema
        for feed in self._pipeline.feeds(schema.table):
            self._admit(feed, schema)

    def _admit(self, feed: Feed, schema: TableSchema) -> None:
        """Streams the table if the destination holds it, and copies it first if not, or if its copy was under way."""
        destination = self._loop.destination
        self._feeds[feed.name] = feed
        owner = self._owners.claim(self._pipeline.source.name, feed)
        if owner is not None:
            shared = TableError(
                f"table {feed.name}: {owner} is written to {feed.target} already",
                "Give them different names in `target`, and start again",
            )
            self._loop.track_errored(feed, schema, shared)
            return
        if feed.mode not in destination.capabilities.modes:
            self._loop.track_errored(feed, schema, mode_refused(feed, destination))
            return
        trouble = self._troubles.get(feed.name)
        if isinstance(trouble, NotPublished):
            self._set_aside(feed, schema, trouble)
            return
        record = self._state.copy_of(destination.name, feed.name)
        start = self._loop.log.start()
        keep = unfinished_parts(record, destination)
        try:
            layout = layout_of(feed)
            position = destination.ensure_table(feed.target, schema, self._pipeline.key, None, keep, layout, feed.sid)
            copying = position is None or self._was_copying(feed.name, record, position)
            changed = None if position is None else self._changed_rule(feed, schema, layout)
            follows = None if copying else destination.structure(feed.target, self._pipeline.key)
            history = destination.history(feed.target, self._pipeline.key)
        except Exception as error:  # noqa: BLE001 - `of_table` raises what is not the table's
            self._refuse(feed, schema, error)
            return
        if position is None or follows is None:
            self._copier.add(feed, schema, record, self._why_again(feed.name))
            return
        if why := self._of_another_history(history, position):
            self._loop.tables[feed.name] = tracked = FollowedTable(feed, schema, position)
            self._want_resync(tracked, why)
            return
        if older := self._older_than_its_copy(feed.name, position):
            self._loop.track_errored(feed, schema, older, position)
            return
        if is_another(follows, schema):
            self._copy_again(feed.name, MADE_AGAIN)
            return
        if changed is not None:
            LOG.warning("table queued for resync", table=str(feed.name), why=changed.why)
            self._copy_again(feed.name, changed.why)
            return
        if record is not None:  # it was committed, and then we were killed
            self._state.end_copy(destination.name, feed.name)
        if feed.name in self._unknown:
            self._copy_again(feed.name, self._unknown[feed.name])
            return
        self._state.set_rule(destination.name, feed.name, noted(feed, schema))
        if trouble is not None:
            self._loop.track_errored(feed, follows, trouble, position)
        else:
            self._loop.track(feed, follows, position, self._log_begins if start is None else start)

    def _of_another_history(self, history: str, position: Position) -> str:
        """Say why a table with that history cannot be continued from its position; "" if it can.

        It cannot when the position is of another log than the one there is.
        """
        log = self._loop.log
        end = log.end()
        if log.history() != history:
            return "its position is of another change log than this one"
        if end is None or position > end:
            return f"its position {position_text(position)} lies ahead of the change log's end"
        return ""

    def _older_than_its_copy(self, name: TableId, position: Position) -> LineageLost | None:
        """Say why the destination's table is not what was copied last; None if it is.

        What the source did before that copy, and no change reported, is not in an older table.
        """
        marks = self._state.marks(self._loop.destination.name).get(name)
        if marks is None or marks.position is None or position >= marks.position:
            return None
        return LineageLost(
            f"table {name}: its position {position_text(position)} at the destination lies before its last copy, made "
            f"at {position_text(marks.position)}: somebody put the table back to an earlier state",
            f"penstock resync {self._pipeline.file} {name}; what only the destination keeps is lost",
        )

    def _changed_rule(self, feed: Feed, schema: TableSchema, layout: Layout) -> RuleChange | None:
        """Return how the file differs from when the table's rows were made.

        RuleChanged when a new copy would remove rows that only the destination has.
        """
        destination, key = self._loop.destination, self._pipeline.key
        types = retyped(destination.structure(feed.target, key), schema)
        changed = compared(feed, destination.rule(feed.target, key), layout.rule, types)
        if changed is None:
            return None
        kept = self._loop.kept_partitions(feed.name) if feed.mode is Mode.CLONE else []
        if changed.loses or kept:
            raise refusal(feed, self._pipeline.file, changed)
        if changed.hidden:
            remark = hidden_remark(feed, destination.name, changed.hidden)
            LOG.warning("older snapshots hold hidden values", table=str(feed.name), what=remark)
            self._note("hidden", remark, feed.name)
        return changed

    def _why_again(self, name: TableId) -> str:
        """Return why an earlier start copied a table again."""
        status = self._state.table_status(self._loop.destination.name).get(name)
        return status.reason if status is not None and status.state in COPYING else ""

    def _was_copying(self, table: TableId, record: CopyRecord | None, position: Position) -> bool:
        """Return whether a resync was under way, or had failed.

        Its snapshot is newer than the table that it replaces, and older than its commit.
        """
        status = self._state.table_status(self._loop.destination.name).get(table)
        if status is None or not (status.is_copying or (status.state is State.ERRORED and record is not None)):
            return False
        snapshots = [item.position for item in record.ranges if item.position is not None] if record else []
        return not snapshots or position < max(snapshots)

    @property
    def followed(self) -> int:
        """How many tables the file makes of the source's: one with two modes counts twice, as in `status`."""
        return len(self._feeds)

    def looked(self, look: Look) -> None:
        """Take the source's tables as they are now; acted on between two batches. May be called from any thread."""
        self._looked.put(look)

    def is_settled(self, until: Position) -> bool:
        """Tell whether all that was seen of the source up to this position has been acted on."""
        compared = self._unsettled is None or self._unsettled.position > until
        return self._looked.empty() and compared and not self._in_doubt

    @property
    def wants_look(self) -> bool:
        """Whether a table could not be judged by the last look, and can be by one that is taken now."""
        return self._looked.empty() and 0 < self._in_doubt <= self._loop.processed

    def tend(self) -> None:
        """Between two batches."""
        self._take_findings()
        while not self._looked.empty():
            self._compare(self._looked.get())
        self._compare_structures()
        while not self._loop.resyncs.empty():
            self._copy_again(*self._loop.resyncs.get())
        if time.monotonic() - self._asked_at < REQUESTS_EVERY:
            return
        self._asked_at = time.monotonic()
        try:
            for request in self._state.requests(self._loop.destination.name):
                self._answer(request)
                self._state.drop_request(request.id)
        except StateError as error:
            LOG.warning("requests not read", what=error.what)

    def _compare(self, look: Look) -> None:
        there = {schema.table: schema for schema in look.schemas}
        for table, schema in there.items():
            if table in self._known:
                self._known[table] = self._pipeline.carried(schema)
                self._look_again(schema)
            else:
                LOG.info("table found", table=str(table))
                self._note("found", f"table {table} matches and is copied", table)
                self.admit(schema)
                for feed in self._pipeline.feeds(table):
                    self._resume(feed)
                    if (tracked := self._loop.tables.get(feed.name)) is not None:
                        self._want_resync(tracked, AWAY)
        for table in [table for table in self._known if table not in there]:
            self._vanished(table)
        followed = self.followed_now() if look.followed is None else look.followed
        for name, why in look.copy_again.items():
            tracked = self._loop.tables.get(name)
            if tracked is not None and name in followed and followed[name][0] is tracked:
                self._want_resync(tracked, why)
        self._in_doubt = look.in_doubt
        if self._unsettled is None:
            self._unsettled = replace(look, followed=followed)

    def _compare_structures(self) -> None:
        """Follow structures that no row has shown, and copy again what was altered so that its rows have other values.

        What the stream has shown since the look, or has still to show of the time before it, is left to the stream.
        """
        look = self._unsettled
        if look is None or self._loop.processed < look.position:
            return
        self._unsettled = None
        assert look.followed is not None
        for schema in look.schemas:
            for feed in self._pipeline.feeds(schema.table):
                tracked = self._loop.tables.get(feed.name)
                if tracked is None or tracked.errored or tracked.held or tracked.level is not None:
                    continue
                before, structure = look.followed.get(feed.name, (None, None))
                if before is tracked and structure is tracked.schema:
                    with self._loop.containing(tracked, "its structure was followed"):
                        self._loop.take_structure(tracked, self._pipeline.carried(schema))

    def followed_now(self) -> Followed:
        """Return what is followed at this moment, by feed. May be called from any thread."""
        return {name: (tracked, tracked.schema) for name, tracked in list(self._loop.tables.items())}

    def _want_resync(self, tracked: FollowedTable, why: str) -> None:
        """Have the table copied again, unless it is Errored for something that a copy would not put right."""
        if tracked.errored and not tracked.lost:
            return
        tracked.lost = False
        try:
            self._loop.want_resync(tracked, why)
        except TableError as error:
            self._loop.mark_errored(tracked, error)

    def _look_again(self, schema: TableSchema) -> None:
        """Look at a table's structure again.

        A table that was dropped and made again is seen here, even if no row of it ever changes; and so is the key that
        a table was Errored without.
        """
        for feed in self._pipeline.feeds(schema.table):
            tracked = self._loop.tables.get(feed.name)
            if feed.name in self._troubles:
                continue
            if tracked is None:
                if has_key(schema, feed) and self._copier.lacks_key(feed.name):
                    self._copy_again(feed.name, key_came(schema))
                elif schema.columns and self._copier.lacks_columns(feed.name):
                    self._copy_again(feed.name, COLUMNS_CAME)
            elif why := why_another(tracked, schema):
                try:
                    self._loop.want_resync(tracked, why)
                except TableError as error:
                    self._loop.mark_errored(tracked, error)
                tracked.lacks_key = tracked.lacks_columns = False

    def found(self, findings: Findings) -> None:
        """Take what a look found wrong with single tables, before the look itself. May be called from any thread."""
        self._findings.put(findings)

    def _take_findings(self) -> None:
        while not self._findings.empty():
            self._heed(self._findings.get())

    def _heed(self, findings: Findings) -> None:
        """Make tables Errored that cannot be followed as they are, and copy them when that is over.

        A table in such trouble since before it was taken in is met by `_admit`.
        """
        before, self._troubles, self._unknown = self._troubles, findings.troubles, findings.unknown
        counted = self._state.write_counters(self._loop.destination.name) if findings.compared else {}
        for name, trouble in findings.troubles.items():
            feed, tracked = self._feeds.get(name), self._loop.tables.get(name)
            schema = None if feed is None else self._known.get(feed.table)
            if feed is None or schema is None:
                continue
            if isinstance(trouble, KeyRequired):
                copied_since = counted.get(name) != findings.compared.get(name)
                if tracked is not None and not tracked.errored and not copied_since:
                    self._loop.mark_errored(tracked, trouble)
            elif name not in before or before[name].what != trouble.what:
                self._set_aside(feed, schema, trouble)
        for name, why in findings.unknown.items():
            tracked = self._loop.tables.get(name)
            if tracked is not None and not tracked.errored and counted.get(name) == findings.compared.get(name):
                self._copy_again(name, why)
        for name, trouble in before.items():
            if isinstance(trouble, NotPublished) and not isinstance(findings.troubles.get(name), NotPublished):
                self._copy_again(name, PUBLISHED_AGAIN)

    def _set_aside(self, feed: Feed, schema: TableSchema, trouble: TableError) -> None:
        """Make the table Errored. It is copied when the trouble is over, so nothing of the log is kept for it."""
        self._copier.remove(feed.name)
        self._loop.mark_errored(FollowedTable(feed, schema, 0), trouble)
        self._loop.forget(feed.name)

    @property
    def set_aside(self) -> list[TableId]:
        """Tables that are not published, so that neither the loop nor the copier has them."""
        return [name for name, trouble in self._troubles.items() if isinstance(trouble, NotPublished)]

    def _copy_again(self, name: TableId, why: str) -> None:
        """Readers see the table as it is until its copy replaces it."""
        feed = self._feeds.get(name)
        schema = None if feed is None else self._known.get(feed.table)
        if feed is None or schema is None:
            return  # it has vanished meanwhile
        if isinstance(self._troubles.get(name), NotPublished):
            return  # a copy would miss what changes from then on; it is copied when it is published
        destination = self._loop.destination.name
        self._copier.remove(name)  # first: a copy that is just being handed over joins the loop before this returns
        self._loop.forget(name)
        self._state.end_copy(destination, name)
        self._state.set_marks(destination, name, None)  # until it is copied, whatever becomes of that
        if why != ASKED_FOR:
            self._note("resync", f"table {name} is copied again: {why}", name)
        status = self._state.table_status(destination).get(name)
        if status is not None and status.state not in (State.INIT, State.ERRORED, State.READY):
            before = TableStatus(State.ERRORED, datetime.now(UTC), why, "Nothing: it is copied again", Retry.AT_ONCE)
            self._state.set_table_status(destination, name, before)
        self._copier.add(feed, schema, why=why)

    def note_missing(self) -> None:
        """Note tables that were followed before, that a rule still matches and that the source no longer has.

        To be called after all tables are admitted.
        """
        destination = self._loop.destination.name
        for name, status in self._state.table_status(destination).items():
            feed = self._pipeline.feed(name)
            if feed is None or feed.table in self._known or GONE in status.reason:
                continue
            gone = self._gone(feed.table)
            LOG.warning("table gone at the source", table=str(name), what=gone.what, solution=gone.solution)
            missing = TableStatus(State.ERRORED, datetime.now(UTC), gone.what, gone.solution, gone.retry, gone.code)
            self._state.set_table_status(destination, name, missing)
            self._note("errored", gone.what, name)

    def _gone(self, table: TableId) -> TableError:
        return TableError(
            f"table {table} {GONE}",
            "Its destination is kept as it is; if the table comes back, it is followed again. To have it no longer "
            f"shown: penstock forget {self._pipeline.file} {table}",
        )

    def _vanished(self, table: TableId) -> None:
        schema, gone = self._known.pop(table), self._gone(table)
        for feed in self._pipeline.feeds(table):
            self._copier.remove(feed.name)
            self._loop.mark_errored(self._loop.tables.get(feed.name) or FollowedTable(feed, schema, 0), gone)
            self._loop.forget(feed.name)
            self._state.set_marks(self._loop.destination.name, feed.name, None)  # it is copied if it comes back

    def _answer(self, request: Request) -> None:
        table, feed = request.table, self._feeds.get(request.table)
        schema = None if feed is None else self._known.get(feed.table)
        tracked = self._loop.tables.get(table)
        if feed is None or schema is None:
            LOG.warning("request for a table that is not followed", kind=request.kind, table=str(table))
            return
        LOG.info("request taken up", kind=request.kind, table=str(table))
        self._note(request.kind, f"table {table}: {request.kind} was asked for", table)
        if request.kind == "drop":
            self._drop(feed, schema)
        elif request.kind == "resync":
            may = tracked is None or not tracked.errored or self._may_be_copied(feed, schema)
            if may:
                self._copy_again(table, ASKED_FOR)
        elif tracked is not None and tracked.errored:
            self._loop.forget(table)
            self._admit(feed, schema)
            self._resume(feed)
        elif self._copier.holds(table):
            self._copier.add(feed, schema)

    def _note(self, kind: str, message: str, table: TableId) -> None:
        """Record an event of note."""
        self._state.add_event(kind, message, table, destination=self._loop.destination.name)

    def _drop(self, feed: Feed, schema: TableSchema) -> None:
        """Drop the destination's table with all that it keeps; then it is made again and copied."""
        destination = self._loop.destination
        try:
            destination.drop_table(feed.target, self._pipeline.key)
        except TableError as error:
            LOG.warning("table not dropped", table=str(feed.name), what=error.what, solution=error.solution)
            self._note("drop", f"{error.what}. {error.solution}", feed.name)
            return
        LOG.warning("table dropped at the destination", table=str(feed.name), target=str(feed.target))
        self._copier.remove(feed.name)
        self._loop.forget(feed.name)
        self._state.end_copy(destination.name, feed.name)
        self._admit(feed, schema)

    def _may_be_copied(self, feed: Feed, schema: TableSchema) -> bool:
        """Return whether a copy of an Errored table is possible, and the file's change would lose nothing by it.

        Otherwise the table stays Errored.
        """
        layout = layout_of(feed)
        try:
            self._loop.destination.ensure_table(feed.target, schema, self._pipeline.key, None, (), layout, feed.sid)
            if self._loop.destination.position(feed.target, self._pipeline.key) is not None:
                self._changed_rule(feed, schema, layout)
        except Exception as error:  # noqa: BLE001 - `of_table` raises what is not the table's
            self._refuse(feed, schema, error)
            return False
        return True

    def _refuse(self, feed: Feed, schema: TableSchema, error: Exception) -> None:
        """Mark the table Errored for what kept it from being opened."""
        own = of_table(self._loop.destination, self._pipeline.key, feed, "it was opened", error)
        own = other_layout(feed, self._pipeline.file, own) if isinstance(own, OtherLayout) else own
        self._loop.track_errored(feed, schema, own)

    def _resume(self, feed: Feed) -> None:
        """Let a table that was taken in beside others begin at its own position."""
        tracked = self._loop.tables.get(feed.name)
        if tracked is not None and not tracked.errored:
            self._loop.resume(tracked)
