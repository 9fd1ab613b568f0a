"""Look at the source's catalogue for what the change stream does not tell, and say which tables to copy again.

A look compares what the catalogue says of each table now with what it said in the snapshot that the table was copied
from, which the copier keeps in the state store: its marks (model/table_marks.py) and its partitions
(`partitions`). A table without such a record is copied again, for what happened to it since cannot be known: its
state store was lost, or an older penstock copied it. Structure is not compared here, because a change of it may still
be on its way in the stream: `table_lifecycle` does that once the stream has passed the look's position.

`source_pipeline` looks once at the start, `catalogue` every `copy.discover_every`; `apply/table_lifecycle` acts on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from penstock.config.model import Pipeline
from penstock.errors import SourceLocked
from penstock.model.feed import Feed
from penstock.model.partitions import Partitions
from penstock.model.position import Position
from penstock.model.table import TableId, TableSchema
from penstock.model.table_marks import TableMarks
from penstock.model.table_state import State, TableStatus
from penstock.runtime.apply.followed_table import FollowedTable
from penstock.runtime.watch.source_partitions import PartitionState, SourcePartitions
from penstock.source.contract import Session
from penstock.state.store import CopyRecords, TableStates

LOG = structlog.get_logger("tables")
NOT_RECORDED = "the state store has no record of its copy, so what happened at the source since then is not known"
PUT_BACK = "the source was put back to a state from before its copy, which may have rows of a lost future"

Followed = Mapping[TableId, tuple[FollowedTable, TableSchema]]


@dataclass(frozen=True)
class Look:
    """The source's tables as the catalogue had them at `position`, or before it.

    `copy_again` has the feeds that have to be copied again, and why. `followed` is what the destination followed before
    the catalogue was read, by feed; None: the look was taken before the destination followed anything. `in_doubt`: some
    table cannot be judged before the log has come as far as this; 0: all were.
    """

    schemas: Sequence[TableSchema]
    position: Position
    copy_again: Mapping[TableId, str] = field(default_factory=dict)
    followed: Followed | None = None
    in_doubt: Position = 0


class WatchState(PartitionState, CopyRecords, TableStates, Protocol):
    """What the watch needs of the state store."""


class TableWatch:
    def __init__(self, pipeline: Pipeline, state: WatchState) -> None:
        self._pipeline, self._state = pipeline, state
        self._destination = pipeline.destination.name
        self._partitions = SourcePartitions(pipeline, state)

    def look(self, session: Session, schemas: Sequence[TableSchema], followed: Followed | None = None) -> Look:
        """Compare each of these tables with its record. Without `followed` it is the start of a run."""
        earlier, head = self._state.marks(self._destination), session.head()
        marks, partitions = session.marks(schemas), session.partitions(schemas)
        status = self._state.table_status(self._destination)
        known_marks, known_partitions = self._state.marks(self._destination), self._state.partitions(self._destination)
        copy_again: dict[TableId, str] = {}
        compared: set[TableId] = set()
        for schema in schemas:
            for feed in self._pipeline.feeds(schema.table):
                if not self._is_comparable(feed, status.get(feed.name), starting=followed is None):
                    continue
                before = known_marks.get(feed.name), known_partitions.get(feed.name)
                now = marks[schema.table], partitions.get(schema.table)
                compared.add(feed.name)
                if was_put_back(earlier.get(feed.name), now[0], head):
                    copy_again[feed.name] = PUT_BACK
                elif why := self._compare(session, feed, schema.relation_id, before, now):
                    copy_again[feed.name] = why
        return Look(schemas, session.head(), copy_again, followed, self._partitions.in_doubt(compared))

    def _is_comparable(self, feed: Feed, status: TableStatus | None, *, starting: bool) -> bool:
        """Tell whether the table is one that streams, or that a start will let stream.

        Those that are being copied, or are Errored, are compared when they are Ready again.
        """
        if status is None:
            return starting
        if status.state is State.READY:
            return True
        if not starting or status.is_copying:
            return False
        return self._state.copy_of(self._destination, feed.name) is None

    def _compare(
        self,
        session: Session,
        feed: Feed,
        relation_id: int,
        before: tuple[TableMarks | None, Partitions | None],
        now: tuple[TableMarks, Partitions | None],
    ) -> str:
        marks, partitions = before
        if marks is None or (partitions is None) != (now[1] is None):
            return NOT_RECORDED
        if now[0].taken < marks.taken:
            return ""  # the table was copied after this look
        try:
            why = session.why_copied_again(marks, now[0]) or session.why_unsent(feed.table, marks, now[0])
            why = why or self._renamed(session, feed, marks, now[0], partitioned=now[1] is not None)
            if not why and partitions is not None and now[1] is not None:
                why = self._partitions.compare(session, feed, relation_id, partitions, now[1])
        except SourceLocked as error:
            LOG.info("table not compared", table=str(feed.name), what=error.what)
            return ""
        return why

    def _renamed(self, session: Session, feed: Feed, before: TableMarks, now: TableMarks, *, partitioned: bool) -> str:
        """Judge marks that are new.

        An enum value that was added, used and renamed between two looks has left its first label in the destination.
        Values that were only added are known from then on.
        """
        if why := session.why_renamed(feed.table, before, now, partitioned=partitioned):
            return why
        if (known := session.with_additions(before, now)) != before:
            self._state.set_marks(self._destination, feed.name, known)
        return ""


def was_put_back(earlier: TableMarks | None, now: TableMarks, head: Position) -> bool:
    """Tell whether the source has gone back behind a table's copy, as a server does that is restored from its disk.

    `earlier` is the record as it was before this look, and `head` the end of the source's log then. A server that has
    passed the copy's position has given out every transaction id that the copy saw. Capture compares the transactions
    that it has with those of the server; a server that was put back while nobody wrote to published tables has the
    same ones, and what looks and copies brought from its lost future shows here.
    """
    return (
        earlier is not None and earlier.position is not None and now.taken < earlier.taken and head >= earlier.position
    )
