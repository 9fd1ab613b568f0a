"""Define how tables of a destination are read back by `query`, `verify` and `events`; `factory` makes one by type.

A destination that Spark reads names its tables in Spark's SQL (`name`, `version`). One that can also read a table
without Spark says so by what `direct` returns. Nothing here writes, and nothing here needs the destination to be open.

To add a destination of tables: implement `ReadableTables` in its room, and enter it in `factory`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from penstock.destinations.spark_session import Session
from penstock.errors import UsageError
from penstock.model.feed import Feed, Sid
from penstock.model.row_digest import Side
from penstock.model.table import TableId, TableSchema


@dataclass(frozen=True)
class TableSize:
    """How much a table holds; ended rows may be among it."""

    rows: int
    bytes: int


class DirectTable(Protocol):
    """A table as it is now, read without Spark."""

    @property
    def types(self) -> Mapping[str, pa.DataType | None]:
        """Its columns, with the types of Spark's answers; None for a type that is Spark's to read."""
        ...

    @property
    def size(self) -> TableSize | None:
        """None: not known."""
        ...

    @property
    def exact(self) -> bool:
        """Whether `size` counts exactly the rows that a reader sees."""
        ...

    def scan(self, columns: Sequence[str], limit: int | None) -> pa.Table:
        """Read these columns of all rows, or of any `limit` of them.

        ValueError, NotImplementedError, TypeError, OSError or an Arrow error where that is Spark's to do.
        """
        ...


class OwnSide(Side, Protocol):
    """A table's side of a comparison (model/row_digest.py) that the destination computes by itself."""

    @property
    def types(self) -> Mapping[str, str]:
        """The columns that are compared, by the source's names, with what the source's texts are read into.

        See `ComparableTable.as_read`.
        """
        ...


@dataclass(frozen=True)
class Foreseen:
    """What would become of a table; not `fatal`: it is done, and users should know before."""

    target: TableId
    what: str
    solution: str
    fatal: bool


@dataclass(frozen=True)
class Instant:
    """How Spark reads tables as they are at one instant: by these settings, once `choose` has chosen which it is.

    That comes last, when Spark is up: what tables hold at an instant is kept for a while only.
    """

    settings: Mapping[str, str]
    choose: Callable[[], None]


class ReadableTables(Protocol):
    """The tables of one destination, for reading."""

    @property
    def by_spark(self) -> bool:
        """Whether it is Spark that reads them; otherwise `own_side` and `query` answer."""
        ...

    def require_there(self) -> None:
        """Raise DestinationUnreachable if it is known, without Spark, that there is nothing to read."""
        ...

    def name(self, target: TableId) -> str:
        """Name a table in Spark's SQL."""
        ...

    def version(self, target: TableId, bookmark: str) -> str:
        """Name, in Spark's SQL, what a table held when `TableDestination.bookmark` returned this text."""
        ...

    def register(self, spark: Session, statement: str) -> None:
        """Make the tables that a statement names as `schema.table` known to Spark where its catalog does not."""
        ...

    def size(self, spark: Session, target: TableId) -> TableSize:
        """Return how much a table holds, from its metadata."""
        ...

    def problems(self) -> list[tuple[str, str]]:
        """Return what would keep a run from writing there, as far as that is known without one: what, and the way out.

        DestinationUnreachable when it does not answer.
        """
        ...

    def instant(self, folder: Path) -> Instant:
        """Return how Spark reads all tables as they are at one instant, with what that needs in `folder`.

        UsageError where they cannot be opened at one instant.
        """
        ...

    def own_side(
        self, target: TableId, schema: TableSchema, *, bookmark: str, called: Mapping[int, str], sid: Sid | None
    ) -> AbstractContextManager[OwnSide]:
        """Give the table's side of a comparison at a bookmark, until the block ends.

        `schema` is the source's, `called` what its columns are called at the destination, by number. SchemaChanged when
        the table lacks a column of the key, RangeVoid when it was rewritten since the bookmark.
        """
        ...

    def query(self, statement: str, limit: int | None) -> pa.Table:
        """Answer a statement that only reads, in the destination's own SQL. UsageError when it is wrong."""
        ...

    def foreseen(self, feeds: Sequence[Feed]) -> list[Foreseen]:
        """Return what a run would do with tables that are there already, or that it needs and are not there.

        As far as that is known without a run. DestinationUnreachable when the destination does not answer.
        """
        ...

    def direct(self, target: TableId) -> DirectTable | None:
        """Return the table for reads without Spark, or None when only Spark can read it, or it is not there.

        May raise what `DirectTable.scan` may.
        """
        ...


class ReadBySpark:
    """The part of `ReadableTables` that all have in common whose tables Spark reads."""

    by_spark = True

    def instant(self, folder: Path) -> Instant:
        raise UsageError(
            "tables of this destination cannot be opened at one instant: each is committed by itself",
            "Ask without --consistent, or keep the tables in Iceberg or Postgres",
        )

    def own_side(
        self, target: TableId, schema: TableSchema, *, bookmark: str, called: Mapping[int, str], sid: Sid | None
    ) -> AbstractContextManager[OwnSide]:
        raise UsageError(f"table {target} is read by Spark", "Compare it by Spark")

    def foreseen(self, feeds: Sequence[Feed]) -> list[Foreseen]:
        return []

    def query(self, statement: str, limit: int | None) -> pa.Table:
        raise UsageError("the destination's tables are read by Spark", "Ask Spark")


def quoted(name: str) -> str:
    """Quote a name in Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"
