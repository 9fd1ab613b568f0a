"""A table without a key under REPLICA IDENTITY FULL, as its source has it: a bag of rows that says what Postgres would
send. It knows nothing of the fold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pgoutput_messages import RELATION, UNSENT, Cell, Change, delete, insert, truncate, update

Row = tuple[Cell, ...]


@dataclass
class Source:
    """A bag of rows. Every change is also a message; `version` says under which of two schemas it was sent."""

    rows: list[Row] = field(default_factory=list)
    changes: list[tuple[Change, int]] = field(default_factory=list)
    transaction: int = 1
    ordinal: int = 0
    version: int = 0

    def insert(self, row: Row) -> None:
        self.rows.append(row)
        self._send(insert(*row, relation=RELATION + self.version))

    def update(self, number: int, row: Row, unsent: Sequence[bool]) -> None:
        before = self.rows[number]
        self.rows[number] = row
        sent = [UNSENT if old == new and skip else new for old, new, skip in zip(before, row, unsent, strict=True)]
        self._send(update(*sent, row=before, relation=RELATION + self.version))

    def delete(self, number: int) -> None:
        self._send(delete(*self.rows.pop(number), full=True, relation=RELATION + self.version))

    def truncate(self) -> None:
        self.rows.clear()
        self._send(truncate(1, RELATION + self.version))

    def commit(self) -> None:
        self.transaction, self.ordinal = self.transaction + 1, 0

    def _send(self, message: bytes) -> None:
        self.changes.append((Change(self.transaction * 10, self.ordinal, message), self.version))
        self.ordinal += 1
