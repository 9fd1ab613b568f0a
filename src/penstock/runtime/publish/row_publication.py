"""Publish copied rows between two batches, piece by piece: the destination's half of `snapshot: true`.

A table whose rows are copied stands behind until every shard has all of them, and then goes on from the position of the
snapshot (`destinations/stream_contract.py`, "Copied rows"). The state store has a record of the copy while it is under
way, so that the next start knows that the table still needs one. Neighbours: `row_copier.py` reads the rows, `loop.py`
calls `step`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Protocol

import structlog

from penstock.decode.choices import unchosen
from penstock.destinations.contract import Task
from penstock.destinations.stream_contract import Layout, Publisher
from penstock.errors import PenstockError
from penstock.failpoints import reach
from penstock.model.position import Position, position_text
from penstock.model.table import TableId, TableSchema
from penstock.model.table_state import State, TableStatus
from penstock.render.event import Origin
from penstock.render.format import EventFormat
from penstock.runtime.publish.copied_rows import RowsTask, publish_rows
from penstock.runtime.publish.published_table import PublishedTable
from penstock.runtime.publish.row_copier import Begun, Piece, RowCopier
from penstock.runtime.publish.task import ShardOutcome
from penstock.state.store import StateStore

LOG = structlog.get_logger("publish")
NOT_BEGUN = ""  # in place of a snapshot's id
UNPLANNED = ("", 0)  # in place of ranges: nothing is done yet
ROWS_AT_ONCE = 64 * 2**20  # bytes: other tables wait as long as these take


class ShardRunner(Protocol):
    """What it needs of the publish loop."""

    layout: Layout

    @property
    def tables(self) -> Mapping[TableId, PublishedTable]: ...

    def publisher(self, shard: int) -> Publisher: ...

    def run_shards(
        self, function: Callable[[Task], ShardOutcome], tasks: Callable[[], Sequence[Task]]
    ) -> list[ShardOutcome]: ...

    def mark_errored(self, table: PublishedTable, error: PenstockError) -> None: ...


class RowPublication:
    def __init__(
        self,
        loop: ShardRunner,
        copier: RowCopier | None,
        origin: Origin,
        format: EventFormat,
        destination: str,
        most_bytes: int,
        state: StateStore,
    ) -> None:
        """`copier`: None for a stream that has no copied rows."""
        self._loop, self._copier, self._destination = loop, copier, destination
        self._origin, self._format = origin, format
        self._most_bytes, self._state = most_bytes, state

    @property
    def is_possible(self) -> bool:
        """Whether the stream has copied rows."""
        return self._copier is not None

    def add(self, table: PublishedTable, schema: TableSchema) -> None:
        """Copy a table, from its beginning if it is being copied."""
        if self._copier is None:
            raise ValueError(f"stream {self._destination} has no copied rows")
        self._state.begin_copy(self._destination, table.name, NOT_BEGUN, "", [UNPLANNED])
        self._set_state(table.name, State.INIT)
        self._copier.add(table.feed, schema)

    def remove(self, table: TableId) -> None:
        if self._copier is not None:
            self._copier.remove(table)

    def needed_from(self) -> Position | None:
        return None if self._copier is None else self._copier.needed_from()

    def step(self) -> bool:
        """Publish the next pieces. False when there are none."""
        if self._copier is None:
            return False
        for begun in self._copier.begun():
            self._begin(begun)
        for name, error in self._copier.failed():
            if name in self._loop.tables:
                self._loop.mark_errored(self._loop.tables[name], error)
        pieces = self._copier.take(min(self._most_bytes, ROWS_AT_ONCE))
        if not pieces:
            return False
        self._publish(self._copier, self._loop.tables[pieces[0].copy.feed.name], pieces)
        return True

    def _begin(self, begun: Begun) -> None:
        """Record a copy, and what its snapshot saw as the table's baseline (`stream_watch.py`)."""
        name, facts = begun.copy.feed.name, begun.facts
        ranges = [(one.to_json(), one.bytes) for one in begun.ranges]
        self._state.begin_copy(self._destination, name, begun.copy.snapshot, begun.copy.schema.fingerprint, ranges)
        self._state.set_partitions(self._destination, name, facts.partitions)
        if facts.counters is not None:
            self._state.set_write_counters(self._destination, name, facts.counters)
        self._state.set_marks(self._destination, name, facts.marks)
        self._state.record_schemas([(name, unchosen(begun.copy.schema), begun.copy.position)])
        self._set_state(name, State.DATA_SYNC)

    def _publish(self, copier: RowCopier, table: PublishedTable, pieces: Sequence[Piece]) -> None:
        copy = pieces[0].copy
        known = [one for one in self._state.schema_versions() if one.table == table.name]
        origin = replace(self._origin, versions={one.fingerprint: (one.version, one.sequence) for one in known})

        def tasks() -> list[RowsTask]:
            if table.errored:
                return []
            return [
                RowsTask(
                    publisher=self._loop.publisher(shard),
                    origin=origin,
                    format=self._format,
                    shard=shard,
                    layout=self._loop.layout,
                    copy=copy,
                    scratch=copier.scratch,
                    pieces=tuple((piece.number, piece.file) for piece in pieces),
                    last=pieces[-1].last,
                    letters=frozenset(table.letters),
                    weight=sum(piece.bytes for piece in pieces),
                )
                for shard in range(self._loop.layout.shards)
            ]

        self._loop.run_shards(publish_rows, tasks)
        table.letters.clear()
        if table.errored:
            copier.remove(table.name)
            return
        copier.published(pieces)
        for piece in pieces:
            if piece.bytes or piece.rows:
                self._state.finish_range(
                    self._destination, table.name, copy.snapshot, piece.number, copy.position, "", piece.rows
                )
            self._state.add_rescued(self._destination, table.name, piece.rescues)
        if pieces[-1].last:
            self._complete(copier, table, copy.position)

    def _complete(self, copier: RowCopier, table: PublishedTable, position: Position) -> None:
        """Let the table go on from its snapshot: every shard has its rows."""
        reach("publish.rows_complete")
        self._set_state(table.name, State.FINISHED_COPY)
        self._state.end_copy(self._destination, table.name)
        self._set_state(table.name, State.SYNC_WAIT)
        self._set_state(table.name, State.CATCHUP)
        table.copying = False
        copier.remove(table.name)
        LOG.info("rows published", table=str(table.name), position=position_text(position))

    def _set_state(self, table: TableId, state: State) -> None:
        present = self._state.table_status(self._destination).get(table)
        if present is not None and state is State.INIT and present.state in (State.SYNC_WAIT, State.CATCHUP):
            self._set_state(table, State.FINISHED_COPY)  # from there a copy can begin again
        self._state.set_table_status(self._destination, table, TableStatus(state, datetime.now(UTC)))
