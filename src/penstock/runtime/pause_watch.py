"""What an operator has paused of one destination, read from the state store twice a second.

Neighbours: `retrying_reader.py` stands still while the destination is paused; the apply and publish loops leave paused
tables behind. Capture knows nothing of it and goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from penstock.errors import StateError
from penstock.model.table import TableId
from penstock.state.store import Pauses

LOOK_EVERY = 0.5
LOG = structlog.get_logger("pipeline")


class PauseWatch:
    """A store that does not answer changes nothing: what was last known holds."""

    def __init__(self, state: Pauses, destination: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._state, self._destination, self._clock = state, destination, clock
        self._looked_at: float | None = None
        self._whole = False
        self._tables: frozenset[TableId] = frozenset()

    @property
    def is_paused(self) -> bool:
        """Whether the destination as a whole is paused, by itself or with the pipeline."""
        self._look()
        return self._whole

    @property
    def tables(self) -> frozenset[TableId]:
        """The tables that are paused by themselves."""
        self._look()
        return self._tables

    def _look(self) -> None:
        now = self._clock()
        if self._looked_at is not None and now - self._looked_at < LOOK_EVERY:
            return
        self._looked_at = now
        try:
            found = self._state.pauses()
        except StateError as error:
            LOG.warning("pauses not read", what=error.what)
            return
        self._whole = any(one.covers(self._destination) for one in found)
        own = [one.table for one in found if one.destination == self._destination]
        self._tables = frozenset(table for table in own if table is not None)
