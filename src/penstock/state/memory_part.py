"""What the parts of the state store in memory share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count
from typing import Any, TypeVar

from penstock.model.table import TableId

Value = TypeVar("Value")
Key = tuple[str, TableId]  # destination, table


class MemoryPart:
    """A part of the store. `ids` numbers whatever has a number, over all sources."""

    def __init__(self, ids: Iterator[int] | None = None) -> None:
        self._lock = threading.RLock()
        self._ids = count(1) if ids is None else ids
        self._kept: list[dict[Key, Any]] = []  # what goes with its table

    def _by_table(self) -> dict[Key, Any]:
        """Make a dictionary of what is kept of tables, by destination and table."""
        made: dict[Key, Any] = {}
        self._kept.append(made)
        return made

    def _forget(self, key: Key) -> None:
        """Forget what is kept of a table, with the lock held."""
        for kept in self._kept:
            kept.pop(key, None)

    def _known(self) -> set[Key]:
        """Return the tables of which something is kept, with the lock held."""
        return {key for kept in self._kept for key in kept}


def of_destination(kept: dict[Key, Value], destination: str) -> dict[TableId, Value]:
    return {
        table: value for (name, table), value in sorted(kept.items(), key=lambda one: one[0]) if name == destination
    }
