"""Where a source's capture puts what it has read. The runtime joins it to the change log's writer.

Capture knows no log, and the log knows no source: this is all that they agree on. Everything here is durable when
it returns. LogFull and LogUnreachable mean that nothing happened and that the same call may be made again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from penstock.model.position import Position
from penstock.model.table import TableSchema


@dataclass(frozen=True)
class CapturedSlice:
    """Raw changes of one table under one schema, in stream order; a batch of RAW_SCHEMA.

    `moved_keys` counts updates that may have changed their row's key.
    """

    schema: TableSchema
    batch: pa.RecordBatch
    moved_keys: int


@dataclass(frozen=True)
class Origin:
    """Whose stream it is, in the source's own words: nobody else reads them.

    `stream` names the stream and stays the same while it lasts; positions mean the same in streams that the source
    recognises. `state` is what else the source has to know in order to go on from a position.
    """

    stream: str
    state: str = ""


@dataclass(frozen=True)
class LastCommit:
    """The last transaction that was captured with a change in it; a position of 0: there was none yet."""

    position: Position  # commit_position
    time: int  # µs since 1970


class SegmentSink(Protocol):
    @property
    def end(self) -> Position | None:
        """Everything before it is contained; None while nothing ever was."""

    @property
    def origin(self) -> Origin | None:
        """Of what is at the end."""

    @property
    def last_commit(self) -> LastCommit | None:
        """Of what is contained, or was before it was removed as no longer needed; None when that is not known."""

    def structure_of(self, relation_id: int) -> TableSchema | None:
        """Return the structure of the relation's last change that is contained; None when there is none any more."""

    def begin(self, position: Position, origin: Origin) -> None:
        """Begin a stream at `position`, which is the end unless there is none; unfinished parts are void."""

    def append(self, end: Position, slices: Sequence[CapturedSlice], state: str | None = None) -> None:
        """Seal everything up to `end`: whole transactions, or what remains of the one whose parts were written.

        `state` is `Origin.state` from `end` on; None: it stays.
        """

    def advance(self, end: Position, state: str | None = None) -> None:
        """Note that nothing happened up to `end`."""

    def write_part(self, commit_position: Position, slices: Sequence[CapturedSlice]) -> None:
        """Write an earlier part of one transaction that is too large for memory."""
