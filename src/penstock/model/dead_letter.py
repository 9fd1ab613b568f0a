"""Define dead letters: events that a stream went on without, because each of them was itself the trouble.

An event that cannot be rendered, that the destination refuses, or on which a processor fails is taken out of the stream
and kept in the state store with the reason. A message that cannot be decoded is no event yet: see `quarantine.py`.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from datetime import datetime

from penstock.model.quarantine import RawMessage
from penstock.model.table import TableId

EVERY_SHARD = -1  # of an event that was taken out before it was known which shard it belongs to


@dataclass(frozen=True)
class DeadLetter:
    """One event, as the task that took it out reports it.

    `place` is the record's: unique in its table and shard. `value` and `headers` are the record as it was rendered, if
    it got that far. `message` is the change as the source sent it, from which the event can be made again; a row of the
    initial copy has none. `code` is a short word for the kind of trouble, `reason` says it in full.
    """

    table: TableId
    place: str
    key: bytes | None
    value: bytes | None
    code: str
    reason: str
    op: str = ""
    topic: str = ""
    shard: int = EVERY_SHARD
    message: RawMessage | None = None
    headers: tuple[tuple[str, bytes], ...] = ()

    @property
    def name(self) -> str:
        """Tell letters of one table apart: a task is given the names of those that are kept, and passes them over."""
        return self.place if self.shard == EVERY_SHARD else f"{self.place}@{self.shard}"


@dataclass(frozen=True)
class KeptLetter:
    """A letter as the state store has it. `id` is never used again.

    `attempts` counts how often it was tried, `tried_at` is the last time. `asked`: it is to be sent again.
    """

    id: int
    destination: str
    at: datetime
    tried_at: datetime
    attempts: int
    asked: bool
    letter: DeadLetter

    @property
    def table(self) -> TableId:
        return self.letter.table


@dataclass(frozen=True)
class AskedLetter:
    """A letter that is to be sent again. Requests are numbered in the order in which they were made."""

    request: int
    at: datetime
    letter: KeptLetter


@dataclass(frozen=True)
class LetterCount:
    """How many letters of a table are kept, and how many were dropped for lack of room or for their age."""

    kept: int
    dropped: int = 0


NO_LETTERS = LetterCount(0)


def headers_json(headers: tuple[tuple[str, bytes], ...]) -> str:
    """Write headers as JSON: values are any bytes, so they are in base64."""
    return json.dumps([[name, base64.b64encode(value).decode()] for name, value in headers])


def headers_of(text: str) -> tuple[tuple[str, bytes], ...]:
    return tuple((str(name), base64.b64decode(value)) for name, value in json.loads(text))
