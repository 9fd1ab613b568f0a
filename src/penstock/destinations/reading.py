"""Define how tables of a destination are read back by `query`, `verify` and `events`; `factory` makes one by type.

A destination that Spark reads names its tables in Spark's SQL (`name`, `version`). One that can also read a table
without Spark says so by what `direct` returns. Nothing here writes, and nothing here needs the destination to be open.

To add a destination of tables: implement `ReadableTables` in its room, and enter it in `factory`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from penstock.destinations.spark_session import Session
from penstock.model.table import TableId


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
        """Read these columns of all rows, or of any `limit` of them. ValueError, NotImplementedError, TypeError,
        OSError or an Arrow error where that is Spark's to do."""
        ...


class ReadableTables(Protocol):
    """The tables of one destination, for reading."""

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
        """Make the tables known to Spark that a statement names as `schema.table`, where its catalog does not know
        them."""
        ...

    def size(self, spark: Session, target: TableId) -> TableSize:
        """Return how much a table holds, from its metadata."""
        ...

    def problems(self) -> list[tuple[str, str]]:
        """Return what would keep a run from writing there, as far as that is known without one: what, and the way
        out. DestinationUnreachable when it does not answer."""
        ...

    def direct(self, target: TableId) -> DirectTable | None:
        """Return the table for reads without Spark, or None when only Spark can read it, or it is not there. May raise
        what `DirectTable.scan` may."""
        ...


def quoted(name: str) -> str:
    """Quote a name in Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"
