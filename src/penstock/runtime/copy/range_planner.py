"""Plan the ranges of a table's copy, or take up those that an earlier start has finished.

`copier.py` reads the ranges. What is planned is recorded in the state store, with what the source said of the table
then: finished ranges count only as long as the table is still the one that they were read from.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import structlog

from penstock.config.model import Pipeline
from penstock.decode.dialect import dialect_of
from penstock.destinations.contract import TableDestination
from penstock.errors import RangeVoid, TableError
from penstock.failpoints import reach
from penstock.fold.history import require_key
from penstock.fold.named_columns import renumbered
from penstock.model.feed import Feed, Mode
from penstock.model.record import UnreadableRecord
from penstock.model.table import TableId, TableSchema
from penstock.model.write_counters import WriteCounters
from penstock.runtime.copy.copying_table import CopyingTable, finished_ranges, recorded_ranges
from penstock.runtime.copy.replay import FinishedRange
from penstock.runtime.watch.table_watch import NOT_RECORDED
from penstock.source.contract import Source
from penstock.source.snapshot_contract import CopyRange, Snapshot
from penstock.state.store import CopyFacts, CopyRecords, DeadLetters

LOG = structlog.get_logger("copy")


class PlannerState(CopyRecords, CopyFacts, DeadLetters, Protocol):
    """What planning needs of the state store."""


class RangePlanner:
    """`pipeline` is as the source and the destination see it."""

    def __init__(self, pipeline: Pipeline, source: Source, destination: TableDestination, state: PlannerState) -> None:
        self._pipeline, self._source, self._destination, self._state = pipeline, source, destination, state

    def prepare(self, copying: CopyingTable, snapshot: Snapshot, counters: WriteCounters, history: str | None) -> None:
        """Plan the table's ranges in this snapshot. `counters` were read before it; `history` is the log's."""
        with snapshot.session() as session:
            found = session.describe(self._pipeline, copying.feed.table)
            if found is None:
                raise RangeVoid(f"table {copying.feed.table} is not at the source", "It is looked for again")
            copying.schema = self.structure(copying.feed, found)
            if copying.feed.mode is Mode.HISTORY:
                require_key(copying.schema)
            copying.reader = session.reader(copying.schema)
            copying.estimated_rows = session.estimated_rows(copying.schema)
            planned = session.plan_ranges(copying.schema, range_bytes=self._pipeline.copying.range_bytes)
            partitions = session.partitions([copying.schema]).get(copying.schema.table)
            marks = session.marks([copying.schema])[copying.schema.table]
            before = self._state.marks(self._destination.name).get(copying.name)
            happened = NOT_RECORDED if before is None else session.why_copied_again(before, marks)
        fingerprint = f"{copying.fingerprint}:{history}" if history else copying.fingerprint
        name, void = self._destination.name, self._resume(copying, planned, happened, fingerprint)
        if void is None:
            self._state.note_copy(name, copying.name, "")  # it waits no more
            return
        self._begin(copying, planned, void, fingerprint)
        looked = None if partitions is None else partitions.counted_from(counters)
        self._state.set_partitions(name, copying.name, looked)
        self._state.set_marks(name, copying.name, replace(marks, position=snapshot.position))
        self._state.set_write_counters(name, copying.name, counters)
        copying.replay_from = snapshot.position

    def structure(self, feed: Feed, found: TableSchema) -> TableSchema:
        """Return what the catalogue has as it is copied, with the destination's numbers where the source has none."""
        carried = self._pipeline.carried(found)
        if dialect_of(carried).numbers_columns:
            return carried
        try:
            return renumbered(self._destination.structure(feed.target, self._pipeline.key), carried)
        except TableError:  # it was dropped or restored there: the copy makes another one of it
            return carried

    def _resume(
        self, copying: CopyingTable, planned: Sequence[CopyRange], happened: str, fingerprint: str
    ) -> str | None:
        """Take up finished ranges, if the table is still the one that they were read from.

        Return the reason why not, "" when there are none. `happened` is what the catalogue says of it since then;
        `fingerprint` is of the table's structure, its rule and the log's history: ranges that were read under others
        are void.
        """
        record = self._state.copy_of(self._destination.name, copying.name)
        if record is None:
            return copying.from_zero
        try:
            ranges, finished = recorded_ranges(self._source, record), finished_ranges(record, self._destination)
        except UnreadableRecord as error:
            LOG.warning("record of a copy not readable", table=str(copying.name), why=str(error))
            return f"what an earlier run recorded of its copy cannot be read: {error}"
        unchanged = record.fingerprint == fingerprint
        void = happened or self._why_void(copying, planned, ranges, finished, unchanged=unchanged)
        if void:
            return void if finished else copying.from_zero
        copying.copy, copying.ranges, copying.finished = record.copy, ranges, finished
        copying.rows = sum(item.part.rows for item in finished.values())
        if finished:
            LOG.info("copy resumed", table=str(copying.name), ranges=len(ranges), finished=len(finished))
        return None

    def _why_void(
        self,
        copying: CopyingTable,
        planned: Sequence[CopyRange],
        ranges: dict[int, CopyRange],
        finished: dict[int, FinishedRange],
        *,
        unchanged: bool,
    ) -> str:
        if not copying.spans_snapshots:
            return "it has no key, by which the log could heal what was read from another snapshot"
        if not unchanged:
            return "its structure or its rule in the file changed, or the change log was begun again"
        if void := self._source.why_void(ranges.values(), planned):
            return void
        if not all(self._destination.parts_intact([item.part for item in finished.values()])):
            return "files of its copy are gone"
        return ""

    def _release_letters(self, table: TableId) -> None:
        """Forget dead letters of rows: the copy reads every row again, and finds those that still are."""
        of_table = [one.id for one in self._state.letters(self._destination.name) if one.table == table]
        if of_table:
            LOG.info("dead letters released, rows are read again", table=str(table), letters=len(of_table))
            self._state.release_letters(of_table)

    def _begin(self, copying: CopyingTable, planned: Sequence[CopyRange], void: str, fingerprint: str) -> None:
        """Start from zero.

        `void` says why what was read before does not count, if there was something; operators see it in the state.
        """
        copying.copy = uuid.uuid4().hex
        copying.ranges, copying.finished, copying.rows = {item.number: item for item in planned}, {}, 0
        content = [(item.to_json(), item.bytes) for item in planned]
        self._state.begin_copy(self._destination.name, copying.name, copying.copy, fingerprint, content)
        if copying.feed.mode is not Mode.EVENTS:
            self._release_letters(copying.name)
        if void:
            LOG.info("copy starts from zero", table=str(copying.name), why=void)
            self._state.note_copy(self._destination.name, copying.name, f"started from zero: {void}")
        reach("copy.begun")
