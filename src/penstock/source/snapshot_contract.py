"""What penstock asks of a snapshot of a source: its tables, their ranges, and readers of those.

A part of the source's contract (`contract.py`), whose opening text says what a snapshot promises.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol, Self

import pyarrow as pa

from penstock.model.partitions import Partitions
from penstock.model.position import Position
from penstock.model.rescue import RescueCount
from penstock.model.row_digest import Side
from penstock.model.table import TableId, TableSchema
from penstock.model.table_marks import TableMarks

Rescuing = Callable[[tuple[RescueCount, ...]], None]
Seeing = Callable[[Position], None]
OwnRange = Any  # a CopyRange that the same source has planned: no other class of range ever reaches it


class WantedTables(Protocol):
    """Which tables are wanted, and how. A pipeline as one source sees it is one (`config.model.Pipeline`)."""

    @property
    def name(self) -> str:
        """The pipeline's name, by which the source knows who manages what was made there."""
        ...

    def wants(self, table: TableId) -> bool: ...

    def by_publication(self, table: TableId) -> bool:
        """Return whether the table is wanted only while the source publishes it; nobody alters that then."""
        ...

    def each_partition(self, table: TableId) -> bool:
        """Return whether a partition of that name is a table of its own, and a partitioned table is not."""
        ...

    def modes(self, table: TableId) -> Collection[str]: ...


class CatalogueReader(Protocol):
    """What the source's catalogue says of tables now, or as a snapshot sees them."""

    def marks(self, schemas: Sequence[TableSchema]) -> dict[TableId, TableMarks]:
        """Return what shows that something happened to a table which its changes do not say."""
        ...

    def why_copied_again(self, before: TableMarks, now: TableMarks) -> str:
        """Say why a table with the marks `before` has to be copied again, now that it has others; "" when it has not.

        A look that is older than `before` says nothing.
        """
        ...

    def partitions(self, schemas: Sequence[TableSchema]) -> dict[TableId, Partitions]:
        """Return the partitions of those tables that have some."""
        ...


class CopyRange(Protocol):
    """A part of a table that one task reads."""

    @property
    def number(self) -> int: ...

    @property
    def bytes(self) -> int:
        """About how much is to be read."""
        ...

    def to_json(self) -> str: ...


class TableReader(Protocol):
    """Read a table in a snapshot.

    Picklable: it works on any machine while the snapshot is open. Batches have the columns of decode's `arrow_schema`,
    and RESCUED where cells do not fit.
    """

    @property
    def schema(self) -> TableSchema: ...

    def read(
        self,
        part: OwnRange,
        *,
        statement_timeout: float,
        max_rows_per_second: float | None = None,
        strict: bool = False,
        rescuing: Rescuing = ...,
        seen: Seeing = ...,
    ) -> Iterator[pa.RecordBatch]:
        """Read one range.

        With `strict`, a cell that does not fit is ValueDoesNotFit. `seen` is given the position that the rows are
        exactly of, if that is not the snapshot's.
        """
        ...

    def rows_by_key(
        self, keys: pa.Table, *, statement_timeout: float, strict: bool = False, rescuing: Rescuing = ...
    ) -> Iterator[pa.RecordBatch]:
        """Read the rows with these keys (the key's columns as decode makes them), and no others."""
        ...


class ComparableTable(Side, Protocol):
    """The source's side of a comparison."""

    @property
    def schema(self) -> TableSchema: ...

    @property
    def may_have_partitions(self) -> bool: ...

    def widened(self, columns: Collection[str]) -> ComparableTable:
        """Return the same with floating-point numbers of these columns as doubles, as the destination has them."""
        ...

    def as_read(self, types: Mapping[str, str]) -> ComparableTable:
        """Return these columns alone, each as a Postgres destination writes the source's text once it has read it.

        That is the type given for the column; "" for the text as it is. Numbers for which the file chooses a decimal
        stay as they are. SourceError where that cannot be known.
        """
        ...


class SnapshotSession(CatalogueReader, Protocol):
    """A connection that sees the source as the snapshot does."""

    def describe(self, wanted: WantedTables, table: TableId) -> TableSchema | None:
        """Return one table; None when the snapshot does not have it."""
        ...

    def estimated_rows(self, schema: TableSchema) -> int:
        """About how many rows the table has: for progress bars, not for decisions."""
        ...

    def plan_ranges(self, schema: TableSchema, *, range_bytes: int) -> Sequence[CopyRange]:
        """Return ranges of about that size which together are the table; none when it is empty."""
        ...

    def reader(self, schema: TableSchema) -> TableReader: ...

    def comparable(self, schema: TableSchema) -> ComparableTable:
        """Return the table for a comparison, protected from being rewritten while this session lasts."""
        ...


class Snapshot(Protocol):
    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

    @property
    def position(self) -> Position:
        """What it sees is everything before this."""
        ...

    @property
    def passed(self) -> Position:
        """A position from which on nothing was seen by what was read in it so far.

        It is `position`, if the snapshot is exact, or if readers say what they have `seen`.
        """
        ...

    @property
    def moment(self) -> int:
        """The source's time soon after it was made, in microseconds since 1970; 0 before the first `session`."""
        ...

    def session(self) -> AbstractContextManager[SnapshotSession]: ...

    def alive(self) -> bool: ...

    def close(self) -> None: ...
