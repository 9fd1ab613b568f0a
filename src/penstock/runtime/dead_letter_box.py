"""Keep dead letters, before a stream passes their events or a table is committed without their rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import structlog

from penstock.config.destinations import DeadLetterConfig
from penstock.errors import DeadLettersFull, StateError, StreamHeld
from penstock.model.dead_letter import DeadLetter
from penstock.model.table import TableId
from penstock.state.store import DeadLetters, Events, StateStore

LOG = structlog.get_logger("dead letters")
EXPIRE_EVERY = 60.0  # seconds


class DeadLetterBox:
    """The dead letters of one destination."""

    def __init__(self, state: StateStore, destination: str, limits: DeadLetterConfig) -> None:
        self._state: DeadLetters = state
        self._events: Events = state
        self._destination, self._limits = destination, limits
        self._expired_at = 0.0

    def keep(self, table: TableId, letters: Sequence[DeadLetter]) -> set[str]:
        """Keep letters of a table, and return their names. Without room: DeadLettersFull, or StreamHeld."""
        by_place = {(one.place, one.shard): one for one in letters}
        found = [by_place[place] for place in sorted(by_place)]  # in stream order, over all shards
        limits, drops = self._limits, self._limits.overflow == "drop_oldest"
        if not self._state.keep_letters(self._destination, found, most=limits.max_entries, drop_oldest=drops):
            raise self._full(table, found[0])
        LOG.warning(
            "events kept as dead letters",
            table=str(table),
            letters=len(found),
            first=found[0].place,
            code=found[0].code,
            reason=found[0].reason,
        )
        return {one.name for one in found}

    def expire(self) -> None:
        """Drop letters that are older than the file allows, and note how many."""
        if not self._limits.max_age or time.monotonic() - self._expired_at < EXPIRE_EVERY:
            return
        self._expired_at = time.monotonic()
        before = datetime.now(UTC) - timedelta(seconds=self._limits.max_age)
        try:
            gone = self._state.expire_letters(self._destination, before)
            if gone:
                said = f"{gone} dead letters were dropped: they were older than `dlq.max_age`"
                self._events.add_event("dead letters", said, destination=self._destination)
                LOG.warning("dead letters dropped for their age", letters=gone)
        except StateError as error:  # a store that is away holds no stream up
            LOG.warning("old dead letters not dropped", what=error.what)

    def _full(self, table: TableId, letter: DeadLetter) -> DeadLettersFull | StreamHeld:
        what = (
            f"table {table}: the event at {letter.place} cannot be taken ({letter.code}: {letter.reason}), and "
            f"there is no room for it: {self._destination} keeps {self._limits.max_entries} dead letters"
        )
        room = "Make room: `penstock dlq list FILE`, then `dlq retry`, `ack` or `purge`"
        if self._limits.overflow == "block":
            return StreamHeld(what, f"{room}; the stream then goes on by itself")
        return DeadLettersFull(what, f"{room}; then `penstock retry FILE {table}`")
