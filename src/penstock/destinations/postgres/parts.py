"""Describe what tasks write for a table: rows in the part itself, or in a table of the schema `penstock`.

Nobody else reads that table. The rows of a copy are always there, with the number of their part, so that they outlive
the driver.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.destinations.contract import WrittenPart
from penstock.model.record import UnreadableRecord, read_record, write_record

_KIND, _VERSION = "part of a copy at a Postgres destination", 1


@dataclass(frozen=True)
class FetchedCells:
    """Cells of one column that the row of another key has: rows of the upserts, and those keys as columns."""

    column: str
    rows: npt.NDArray[np.int64]
    keys: pa.Table


@dataclass(frozen=True)
class StoredRows:
    """Rows in a table of the schema `penstock`: those with this part number. `structure` says what columns it has."""

    table: str
    part: int
    structure: str
    ended: int = 0  # keys (or whole rows) of older parts that it ends


@dataclass(frozen=True)
class PostgresPart:
    """`upserts` are rows of a batch; `stored` says where rows are that are not in the part.

    `gone` are keys whose rows end, `removals` whole rows, with how often; `closed` keys whose open versions end.
    """

    upserts: pa.Table | None = None
    stored: StoredRows | None = None
    gone: pa.Table | None = None
    fetches: tuple[FetchedCells, ...] = ()
    removals: pa.Table | None = None
    closed: pa.Table | None = None
    rows: int = 0
    bytes: int = 0
    fetched: int = 0
    unresolved_rows: tuple[int, ...] = ()
    unresolved: int = 0
    name: str = field(default_factory=lambda: uuid.uuid4().hex)

    def to_json(self) -> str:
        if self.stored is None:
            raise ValueError("only a part of a copy is recorded")
        told = self.stored
        return write_record(
            _KIND,
            _VERSION,
            {
                "table": told.table,
                "part": str(told.part),
                "structure": told.structure,
                "ended": str(told.ended),
                "rows": str(self.rows),
                "bytes": str(self.bytes),
            },
        )

    @classmethod
    def from_json(cls, text: str) -> PostgresPart:
        """Read what `to_json` wrote, or raise UnreadableRecord."""
        record = read_record(text, _KIND, _VERSION)
        table = record.text("table")
        if not table.startswith("copy_") or not table.removeprefix("copy_").isalnum():
            raise UnreadableRecord(f"the record of a {_KIND} names a table that is none of a copy")
        try:
            part, ended, rows, size = (int(record.text(name)) for name in ("part", "ended", "rows", "bytes"))
        except ValueError as error:
            raise UnreadableRecord(f"the record of a {_KIND} is damaged") from error
        return cls(stored=StoredRows(table, part, record.text("structure"), ended), rows=rows, bytes=size)

    @property
    def deletes(self) -> int:
        if self.stored is not None:
            return self.stored.ended
        return sum(one.num_rows for one in (self.gone, self.removals, self.closed) if one is not None)

    @property
    def empty(self) -> bool:
        return self.rows == 0 and self.deletes == 0


def ours(parts: Sequence[WrittenPart]) -> list[PostgresPart]:
    for part in parts:
        if not isinstance(part, PostgresPart):
            raise TypeError(f"{type(part).__name__} is not a part of a table in Postgres")
    return [part for part in parts if isinstance(part, PostgresPart)]


def new_number() -> int:
    """Return a part's number, which no other has."""
    return uuid.uuid4().int >> 66
