"""A history kept by hand, as a person would: the oracle for tables of versions."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

BEGINNING = datetime(1900, 1, 1, tzinfo=UTC)
OPEN = datetime(9999, 1, 1, tzinfo=UTC)

Row = dict[str, Any]
Version = tuple[Row, datetime, datetime, bool]


@dataclass
class Versions:
    """`put` and `remove` say what became of a key at a moment; moments never go back. `from_commit`: a key's first
    version is valid from its own moment, not from the beginning."""

    open: dict[Any, tuple[Row, datetime]] = field(default_factory=dict)
    closed: dict[Any, list[Version]] = field(default_factory=dict)
    from_commit: bool = False

    def put(self, key: Any, row: Row, at: datetime) -> None:
        if key in self.open:
            before, since = self.open[key]
            if before == row:
                return
            if since < at:
                self.closed.setdefault(key, []).append((before, since, at, False))
            self.open[key] = (row, since if since == at else at)
        else:
            self.open[key] = (row, at if self.from_commit or key in self.closed else BEGINNING)

    def remove(self, key: Any, at: datetime) -> None:
        if key in self.open:
            row, since = self.open.pop(key)
            self.closed.setdefault(key, []).append((row, since, at, True))

    def rows(self) -> list[tuple[Any, ...]]:
        """Every version: the row's values, from, to, deleted."""
        versions = [version for several in self.closed.values() for version in several]
        versions += [(row, since, OPEN, False) for row, since in self.open.values()]
        return sorted(((*row.values(), since, until, deleted) for row, since, until, deleted in versions), key=repr)


def found(rows: list[Row]) -> list[tuple[Any, ...]]:
    """What a table of versions holds, in the form of `Versions.rows`."""
    return sorted((tuple(row.values()) for row in rows), key=repr)


def as_of(rows: list[Row], at: datetime) -> list[Row]:
    """What the documented as-of query gives."""
    return [row for row in rows if row["valid_from"] <= at < row["valid_to"]]
