"""The driver's side of dead letters: keep them before the stream passes their events, and send them again.

Sending again is a publication that leaves the shard's place where it is and moves `ShardPlace.retried`: the number and
the time of the last request whose letter is published. Requests are numbered in their order, and a shard publishes all
of the letters that it is given or none. So a run that is killed between the publication and `release_letters` finds in
the shard that the letter is sent. The time tells requests of a lost state store from those of its successor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import structlog

from penstock.config.destinations import DeadLetterConfig
from penstock.destinations.contract import JobRunner
from penstock.destinations.stream_contract import Layout, ShardPlace, StreamDestination
from penstock.errors import DeadLettersFull, StateError, StreamHeld, TopicsRefused
from penstock.model.dead_letter import AskedLetter, DeadLetter
from penstock.model.feed import Feed
from penstock.model.table import TableId
from penstock.render.event import Origin
from penstock.render.format import EventFormat
from penstock.runtime.publish.letter_task import LetterTask, LetterToSend, Reason, send
from penstock.state.store import DeadLetters, Events, StateStore

LOG = structlog.get_logger("dead letters")
ASKED_EVERY = 1.0  # seconds
EXPIRE_EVERY = 60.0
SENT_TOGETHER = 500

LookUp = Callable[[Sequence[str]], None]


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
            f"table {table}: the event at {letter.place} cannot be published ({letter.code}: {letter.reason}), and "
            f"there is no room for it: {self._destination} keeps {self._limits.max_entries} dead letters"
        )
        room = "Make room: `penstock dlq list FILE`, then `dlq retry`, `ack` or `purge`"
        if self._limits.overflow == "block":
            return StreamHeld(what, f"{room}; the stream then goes on by itself")
        return DeadLettersFull(what, f"{room}; then `penstock retry FILE {table}`")


class LetterSender:
    """Sends letters again that an operator has asked for. Between two batches."""

    def __init__(
        self,
        origin: Origin,
        format: EventFormat,
        destination: StreamDestination,
        runner: JobRunner,
        state: StateStore,
    ) -> None:
        self._origin, self._format = origin, format
        self._destination, self._runner, self._state = destination, runner, state
        self._asked_at = 0.0
        self.is_idle = False  # nothing was asked for when it last looked

    def asked(self) -> list[AskedLetter]:
        """Return letters that are to be sent again, looking for them once a second."""
        if time.monotonic() - self._asked_at < ASKED_EVERY:
            return []
        try:
            asked = self._state.asked_letters(self._destination.name)[:SENT_TOGETHER]
        except StateError as error:  # a store that is away holds no stream up
            LOG.warning("requests for dead letters not read", what=error.what)
            asked = []
        self.is_idle = not asked
        if not asked:
            self._asked_at = time.monotonic()
        return asked

    def send(
        self, asked: Sequence[AskedLetter], layout: Layout, feeds: Mapping[TableId, Feed], look_up: LookUp
    ) -> list[ShardPlace]:
        """Send letters, and return where the shards are; nothing if there were none to send. A letter that fails keeps
        its shard from sending any: the others are for the next time. `look_up` makes a layout that has these topics."""
        unknown = [one.letter for one in asked if one.letter.table not in feeds]
        for letter in unknown:
            self._state.fail_letter(letter.id, "not-followed", "the stream does not follow its table any more")
        given = tuple(
            LetterToSend(one.request, one.at, one.letter.id, one.letter.letter, feeds[one.letter.table])
            for one in asked
            if one.letter.table in feeds
        )
        tasks = [
            LetterTask(
                self._destination.publisher(self._origin.source, shard),
                self._origin,
                self._format,
                shard,
                layout,
                given,
            )
            for shard in range(layout.shards)
        ]
        if not given:
            return []
        outcomes = self._runner.run(send, tasks)
        failed = {number: why for outcome in outcomes for number, why in outcome.failed.items()}
        wanted: dict[int, frozenset[str]] = {}
        for outcome in outcomes:
            for number, topics in outcome.unknown_topics.items():
                wanted[number] = wanted.get(number, frozenset()) | topics
        failed |= self._looked_up(wanted, look_up)
        for number, (code, reason) in failed.items():
            self._state.fail_letter(number, code, reason)
            LOG.warning("dead letter failed again", id=number, code=code, reason=reason)
        if not failed and not wanted:
            self._state.release_letters([one.id for one in given])
            LOG.info("dead letters sent", letters=len(given))
        return [outcome.at for outcome in outcomes]

    def _looked_up(self, wanted: Mapping[int, frozenset[str]], look_up: LookUp) -> dict[int, Reason]:
        """Look topics up that letters need, and return the letters whose topics cannot be had."""
        names = sorted(frozenset().union(*wanted.values()))
        if not names:
            return {}
        try:
            look_up(names)
        except TopicsRefused as refused:
            rest = [name for name in names if name not in refused.reasons]
            if rest:
                look_up(rest)
            return {
                number: (refused.code, f"topic {name}: {refused.reasons[name]}")
                for number, topics in wanted.items()
                for name in sorted(topics & refused.reasons.keys())[:1]
            }
        return {}
