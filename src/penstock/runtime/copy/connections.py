"""Share the connections that copies may open to a source, fairly between destinations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from threading import Condition


class CopyConnections:
    """At most `most` at once.

    A free one goes to the destination that uses the fewest, and there to whoever has waited longest: a copy of many
    ranges does not keep another destination's waiting.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._changed = Condition()
        self._numbers = count()
        self._waiting: list[tuple[int, str]] = []
        self._used: Counter[str] = Counter()

    @contextmanager
    def one(self, destination: str) -> Iterator[None]:
        """Wait for a connection, and have it until the block ends."""
        with self._changed:
            turn = (next(self._numbers), destination)
            self._waiting.append(turn)
            try:
                self._changed.wait_for(lambda: self._next() == turn)
                self._used[destination] += 1
            finally:
                self._waiting.remove(turn)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._used[destination] -= 1
                self._changed.notify_all()

    def _next(self) -> tuple[int, str] | None:
        """Whose turn it is; None while all are in use."""
        if self._used.total() >= self._most:
            return None
        return min(self._waiting, key=lambda turn: (self._used[turn[1]], turn[0]))
