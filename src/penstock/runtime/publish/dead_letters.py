"""Send dead letters of a stream again, as operators ask for it. They are kept by `runtime/dead_letter_box.py`.

Sending again is a publication that leaves the shard's place where it is and moves `ShardPlace.retried`: the number and
the time of the last request whose letter is published. Requests are numbered in their order, and a shard publishes all
of the letters that it is given or none. So a run that is killed between the publication and `release_letters` finds in
the shard that the letter is sent. The time tells requests of a lost state store from those of its successor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import structlog

from penstock.destinations.contract import JobRunner
from penstock.destinations.stream_contract import Layout, ShardPlace, StreamDestination
from penstock.errors import StateError, TopicsRefused
from penstock.model.dead_letter import AskedLetter
from penstock.model.feed import Feed
from penstock.model.table import TableId
from penstock.render.event import Origin
from penstock.render.format import EventFormat
from penstock.runtime.publish.letter_task import LetterTask, LetterToSend, Reason, send
from penstock.state.store import StateStore

LOG = structlog.get_logger("dead letters")
ASKED_EVERY = 1.0  # seconds
SENT_TOGETHER = 500

LookUp = Callable[[Sequence[str]], None]


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
        """Send letters, and return where the shards are; nothing if there were none to send.

        A letter that fails keeps its shard from sending any: the others are for the next time. `look_up` makes a layout
        that has these topics.
        """
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
