"""The writer of one shard of a webhook: at least once, and an event that is sent again has the same Idempotency-Key.

    {shard}/_places/…           how far the shard is, and what is being sent (see `places/chain.py`)
    {shard}/_outbox/{…}.arrow   records that are being sent (see `outbox.py`)

A receiver keeps no place for us, so the shard's place is in a folder that all executors reach. A publication is
written there whole, and recorded, before its first request is sent: requests are what the file says, whoever sends
them. A writer that opens a shard with an unfinished publication first sends the rest of it.

| answer                          | what is done                                                                      |
|---------------------------------|-----------------------------------------------------------------------------------|
| 2xx                             | the next request                                                                  |
| 408, 409, 425, 429, 5xx, none   | sent again, later each time, or when `Retry-After` says                           |
| 400, 413, 422                   | the request is halved until the events are found that are refused: RecordRefused  |
| anything else                   | the receiver is not in order: DestinationUnreachable, and the shard waits         |

How a request is cut is recorded before its parts are sent: their keys are made of where they begin and how many events
they have. Refused events stay in the publication's record until `publish` is called without them (or they are taken
after all): it sends what was not sent yet, and then the place moves.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.destinations.http import outbox
from penstock.destinations.http.endpoint import Answer, Endpoint, Unanswered
from penstock.destinations.http.state import Outbox, State
from penstock.destinations.places.chain import Chain, chain_in
from penstock.destinations.places.folder import Folder
from penstock.destinations.stream_contract import Published, Records, ShardPlace
from penstock.errors import DestinationUnreachable, RecordRefused
from penstock.failpoints import reach
from penstock.model.place import Place

PLACES, OUTBOX = "_places", "_outbox"
AGAIN, BLAMES = frozenset({408, 409, 425, 429}), frozenset({400, 413, 422})
RECORD_EVERY = 0.5  # seconds: what was sent since is sent again after a crash
PATIENCE = 5.0  # seconds that a task waits for a receiver; then the run shows that it is away, and tries again
MOST_REFUSED = 1000  # events of one publication, before they are reported
LEFTOVERS_AFTER = 86400.0  # seconds, after which a file that no record names is nobody's


@dataclass(frozen=True)
class Pace:
    """How long to wait before a request is sent again: doubled each time, with some chance in it."""

    first: float = 0.1
    longest: float = 10.0

    def wait(self, attempt: int) -> float:
        return float(min(self.longest, self.first * 2 ** min(attempt, 30))) * random.uniform(0.5, 1.0)


@dataclass
class HttpPublisher:
    """Publish one shard. `label` distinguishes its requests from all others.

    `start` is the place of a shard that has no record yet.
    """

    folder: Folder
    label: str
    start: Place
    endpoint: Endpoint
    batch: int
    pace: Pace = Pace()
    _state: State | None = None
    _chain: Chain | None = None
    _recorded_at: float = 0.0

    def open(self) -> ShardPlace:
        self._outboxes.make()
        self._chain = chain_in(self.folder.under(PLACES))
        record = self._chain.open()
        self._state = State(ShardPlace(self.start)) if record is None else State.from_record(record)
        self._remove_leftovers()
        if self._state.unsent is not None:
            sent = self._deliver(self._state.unsent)
            if not sent.refused:
                self._finish(sent.upto)
        return self._opened.at

    def publish(self, records: Iterable[Records], upto: Callable[[], ShardPlace]) -> Published:
        name = f"{uuid.uuid4().hex}.arrow"
        try:
            written = outbox.write(self._outboxes, name, records, self.batch, self._delivered())
            at = upto()
        except BaseException:
            self._outboxes.delete(name)
            raise
        if not written.rows:
            self._outboxes.delete(name)
            self._finish(at)
            return Published(0, 0)
        reach("publish.file_written")
        before = self._opened
        added = Outbox(name, before.publications + 1, written.rows, at)
        self._record(State(before.at, added.number, (*before.outboxes, added), before.not_before))
        reach("publish.recorded")
        sent = self._deliver(added)
        if sent.refused:
            raise RecordRefused(self._refusals(sent))
        self._finish(at)
        reach("publish.committed")
        return Published(written.rows, written.bytes)

    def advance(self, upto: ShardPlace) -> None:
        self._finish(upto)

    @property
    def _outboxes(self) -> Folder:
        return self.folder.under(OUTBOX)

    @property
    def _opened(self) -> State:
        if self._state is None:
            raise ValueError("the shard is not open")
        return self._state

    def _record(self, state: State) -> None:
        if self._chain is None:
            raise ValueError("the shard is not open")
        self._chain.append(state.to_record())
        self._state, self._recorded_at = state, time.monotonic()

    def _finish(self, at: ShardPlace) -> None:
        """Move the place: everything before it was taken by the receiver, or taken out."""
        done = self._opened.outboxes
        self._record(State(at, self._opened.publications))
        for one in done:
            self._outboxes.delete(one.file)

    def _remove_leftovers(self) -> None:
        """Remove files of writers that died before they recorded them."""
        kept = {one.file for one in self._opened.outboxes}
        for name in self._outboxes.names():
            if name not in kept and self._outboxes.age(name) > LEFTOVERS_AFTER:
                self._outboxes.delete(name)

    def _delivered(self) -> set[bytes]:
        """Return what was sent of the publication under way. Empty unless the receiver refused some of it."""
        found: set[bytes] = set()
        for one in self._opened.outboxes:
            first = 0
            with outbox.requests(self._outboxes, one.file) as requests:
                for request in requests:
                    digests = enumerate(outbox.digests(request), first)
                    found |= {digest for row, digest in digests if row < one.sent and row not in one.refused}
                    first += request.num_rows
        return found

    def _refusals(self, sent: Outbox) -> dict[Place, str]:
        """Say why events were refused, by their places."""
        reasons, first = dict[Place, str](), 0
        with outbox.requests(self._outboxes, sent.file) as requests:
            for request in requests:
                inside = [row for row in sent.refused if first <= row < first + request.num_rows]
                reasons |= {request.column("place")[row - first].as_py(): sent.refused[row] for row in inside}
                first += request.num_rows
        return reasons

    def _deliver(self, box: Outbox) -> Outbox:
        """Send what is left of an outbox, and return it closed."""
        first = 0
        with outbox.requests(self._outboxes, box.file) as requests:
            for request in requests:
                end = first + request.num_rows
                if box.sent < end and len(box.refused) < MOST_REFUSED:
                    box = self._deliver_request(box, request, first)
                    if time.monotonic() - self._recorded_at > RECORD_EVERY:
                        self._note(box)
                first = end
        box = replace(box, is_closed=True)
        if box.refused:
            self._note(box)
        return box

    def _deliver_request(self, box: Outbox, request: pa.RecordBatch, first: int) -> Outbox:
        """Send one request, whole or in the parts into which it was cut; cut it where the receiver blames events."""
        while box.sent < first + request.num_rows:
            count, *rest = box.cuts or (request.num_rows,)
            answer = self._taken(box, request.slice(box.sent - first, count))
            if answer is None:
                box = replace(box, sent=box.sent + count, cuts=tuple(rest))
                reach("publish.taken")
            elif count == 1:
                refused = {**box.refused, box.sent: answer.reason}
                box = replace(box, sent=box.sent + 1, cuts=tuple(rest), refused=refused)
            else:
                box = replace(box, cuts=(count // 2, count - count // 2, *rest))
                self._note(box)  # before a part is sent: it has a key of its own
        return box

    def _note(self, box: Outbox, not_before: float = 0.0) -> None:
        """Record how much is sent."""
        state = self._opened
        self._record(replace(state, outboxes=(*state.outboxes[:-1], box), not_before=not_before))

    def _taken(self, box: Outbox, part: pa.RecordBatch) -> Answer | None:
        """Send some events until the receiver takes them; return its answer if it blames one of them."""
        id = f"{self.label}-{box.number}-{box.sent}-{part.num_rows}"
        body = _body(part.column("value"), alone=self.batch == 1)
        began, attempt = time.monotonic(), 0
        self._respect(box, self._opened.not_before - time.time(), began, "it asked to be left alone for a while")
        while True:
            wait = 0.0
            try:
                answer = self.endpoint.send(id, body)
            except Unanswered as silent:
                reason = str(silent)
            else:
                if 200 <= answer.status < 300:
                    return None
                if answer.status in BLAMES:
                    return answer
                reason = f"it answers {answer.reason}"
                if answer.status not in AGAIN and answer.status < 500:
                    self._note(box)
                    raise self._away(
                        reason, "Check `url`, `method`, `headers` and `signature`; nothing is lost meanwhile"
                    )
                wait = answer.retry_after or 0.0
            self._respect(box, max(wait, self.pace.wait(attempt)), began, reason)
            attempt += 1

    def _respect(self, box: Outbox, wait: float, began: float, reason: str) -> None:
        """Wait, if that is not too long for a task; otherwise note until when, and let the run know."""
        if wait <= 0:
            return
        if time.monotonic() + wait - began > PATIENCE:
            self._note(box, time.time() + wait if wait > PATIENCE else 0.0)
            raise self._away(reason, "It is tried again; check that the receiver is up and answers in time")
        time.sleep(wait)

    def _away(self, reason: str, solution: str) -> DestinationUnreachable:
        return DestinationUnreachable(f"webhook {self.endpoint.shown}: {reason}", solution)


def _body(values: pa.Array, *, alone: bool) -> bytes:
    """Return the events as one JSON array; alone, an event is the body itself."""
    texts = values.to_pylist()
    return bytes(texts[0]) if alone else b"[" + b",".join(texts) + b"]"
