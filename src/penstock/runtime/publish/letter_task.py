"""The work of one task that sends dead letters again, on an executor: make the events again, publish those of a shard.

An event is made from the message that the source had sent, under the present rule. Only the record that was refused is
published: other records of the same change are in the stream. The shard publishes all of its letters or none, so that
the mark that it leaves (`ShardPlace.retried`) says of each of them that it is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

import numpy as np
import pyarrow as pa

from penstock.decode.choices import chosen
from penstock.destinations.stream_contract import TOPIC_TYPE, Layout, Publisher, Records, ShardPlace
from penstock.errors import PenstockError, RecordRefused, UnknownTopics
from penstock.model.change import RawChanges
from penstock.model.dead_letter import EVERY_SHARD, DeadLetter
from penstock.model.feed import Feed
from penstock.model.quarantine import as_changes
from penstock.render.event import Origin
from penstock.render.events import Rendered, render_changes
from penstock.render.format import EventFormat
from penstock.runtime.apply.table_boundary import unexpected
from penstock.runtime.publish.task import RENDERING, records_of

Reason = tuple[str, str]  # code and reason


@dataclass(frozen=True)
class LetterToSend:
    """A letter with its request, and the feed that its table has now."""

    request: int
    asked_at: datetime
    id: int
    letter: DeadLetter
    feed: Feed

    @property
    def mark(self) -> str:
        return f"{self.request}/{round(self.asked_at.timestamp() * 1e6)}"

    def is_sent(self, retried: str) -> bool:
        """Whether a shard that has this mark has published the letter, or had nothing to publish of it."""
        if not retried:
            return False
        request, moment = map(int, self.mark.split("/"))
        last, at = map(int, retried.split("/"))
        return request <= last and moment <= at


@dataclass(frozen=True)
class LetterTask:
    publisher: Publisher
    origin: Origin
    format: EventFormat
    shard: int
    layout: Layout
    letters: tuple[LetterToSend, ...]  # in the order of their requests
    weight: int = 0


@dataclass(frozen=True)
class LetterOutcome:
    """Where the shard is. With `failed` (by letter) or `unknown_topics` nothing was published."""

    at: ShardPlace
    failed: dict[int, Reason] = field(default_factory=dict)
    unknown_topics: dict[int, frozenset[str]] = field(default_factory=dict)  # by letter


def send(task: LetterTask) -> LetterOutcome:
    """Publish what the shard has not published of the letters, all at once."""
    at = task.publisher.open()
    left = [one for one in task.letters if not one.is_sent(at.retried)]
    made: list[tuple[LetterToSend, Records]] = []
    outcome = LetterOutcome(at)
    for one in left:
        try:
            records = _records(task, one)
        except UnknownTopics as found:
            outcome.unknown_topics[one.id] = found.names
        except _Failed as failed:
            outcome.failed[one.id] = failed.reason
        else:
            if len(records):
                made.append((one, records))
    if outcome.failed or outcome.unknown_topics or not made:
        return outcome
    upto = replace(at, retried=left[-1].mark)
    try:
        task.publisher.publish((records for _, records in made), lambda: upto)
    except RecordRefused as refused:
        return replace(outcome, failed=_blamed(made, refused))
    return LetterOutcome(upto)


class _Failed(Exception):
    """The event cannot be made this time either."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.reason = code, reason


def _records(task: LetterTask, one: LetterToSend) -> Records:
    """Return the letter's records that belong to the shard."""
    letter = one.letter
    if letter.op == "truncate" and letter.shard not in (EVERY_SHARD, task.shard):
        return _as_rendered(task, letter, [])  # a truncate is in every shard, and only this one has refused it
    if letter.message is None and letter.shard == EVERY_SHARD:
        raise _Failed(
            letter.code,
            f"{letter.reason}. It is a row of the initial copy, from before it was rendered: it can be sent by another "
            "copy only (`penstock resync`)",
        )
    if letter.message is None:
        return _as_rendered(task, letter, [0])
    raw = as_changes(letter.message)
    changes = RawChanges(chosen(raw.schema, one.feed.types, one.feed.type_map), raw.batch)
    try:
        select = partial(task.layout.select, task.shard)
        made = render_changes(changes, one.feed, task.origin, task.format, select=select)
    except UnknownTopics:
        raise
    except PenstockError as error:
        raise _Failed(error.code, error.what) from error
    except Exception as error:
        raise _Failed("render", unexpected(letter.table, error, RENDERING).what) from error
    if made.failed:
        raise _Failed(made.failed[0].code, made.failed[0].reason)
    return records_of(made if letter.shard == EVERY_SHARD else _at(made, letter.place))


def _at(made: Rendered, place: str) -> Rendered:
    return made.take(np.flatnonzero(np.asarray(made.places.to_pylist(), object) == place))


def _as_rendered(task: LetterTask, letter: DeadLetter, rows: Sequence[int]) -> Records:
    """Return the record of a letter that has no message, if it belongs to the shard."""
    keys, topics = pa.array([letter.key], pa.binary()), pa.array([letter.topic]).cast(TOPIC_TYPE)
    headers = tuple((name, pa.array([value], pa.binary())) for name, value in letter.headers)
    index, partitions = np.zeros(0, np.int64), np.zeros(0, np.int32)
    if rows:
        index, partitions = task.layout.select(task.shard, topics, keys, np.zeros(1, np.bool_))
    whole = Records(
        pa.array([letter.place]),
        keys,
        pa.array([letter.value], pa.binary()),
        topics,
        pa.array([0], pa.int32()),
        headers,
    )
    return replace(whole.take(pa.array(index)), partitions=pa.array(partitions))


def _blamed(made: Sequence[tuple[LetterToSend, Records]], refused: RecordRefused) -> dict[int, Reason]:
    """Return which letters were refused; all of them when none of their places was named."""
    named = {one.id: reason for one, reason in _by_letter(made, refused)}
    return {number: (refused.reason_code, reason) for number, reason in named.items()} or {
        one.id: (refused.reason_code, refused.what) for one, _ in made
    }


def _by_letter(
    made: Sequence[tuple[LetterToSend, Records]], refused: RecordRefused
) -> Iterator[tuple[LetterToSend, str]]:
    for one, records in made:
        for place in records.places.to_pylist():
            if place in refused.reasons:
                yield one, refused.reasons[place]
