"""How the events of a stream are written: which envelope, in which encoding, under which topic, key and headers.

An EventFormat is made from a destination's section of the pipeline file when that is read. It is picklable, and the
same for all tables of the stream.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from penstock.render.template import Template

EnvelopeType = Literal["native", "debezium", "cloudevents", "faucet", "deltaforge"]
ENVELOPES: tuple[EnvelopeType, ...] = ("native", "debezium", "cloudevents", "faucet", "deltaforge")
Schemas = Literal["none", "empty", "inline"]
SubjectName = Literal["topic_name", "record_name", "topic_record_name"]
Deletes = Literal["event", "tombstone", "both"]
Unwrap = Literal["", "row", "row and whether it is deleted"]


@dataclass(frozen=True)
class Envelope:
    """The shape of an event.

    Of Debezium's, `schemas` is the payload alone (none), under `payload` beside a null `schema` (empty), or beside its
    schema (inline), and `unwrap` the row alone. `prefix` and `null_images` are those of CloudEvents.
    """

    type: EnvelopeType = "native"
    schemas: Schemas = "none"
    prefix: str = "penstock"
    null_images: bool = True
    unwrap: Unwrap = ""


@dataclass(frozen=True)
class Registry:
    """A Confluent schema registry, and how subjects are named there."""

    url: str
    subject: SubjectName = "topic_name"
    username: str = ""
    password: str = field(default="", repr=False)
    timeout: float = 10.0


@dataclass(frozen=True)
class EventFormat:
    """Everything that decides how an event is written. Without `registry` the encoding is JSON, with it Avro.

    `split_moves`: an update that changes a row's key is a delete and an insert, so that all events of a key are under
    that key. Only for one sequence of all events, which nobody divides by key, may it be False. `transactions`: where
    transactions begin and end is published too, and Debezium's events say where in theirs they stand.
    """

    envelope: Envelope = Envelope()
    registry: Registry | None = None
    topic: Template | None = None
    key: Template | None = None
    headers: tuple[tuple[str, Template], ...] = ()
    deletes: Deletes = "event"
    truncates: Literal["send", "skip"] = "send"
    split_moves: bool = True
    transactions: bool = False

    @classmethod
    def native(cls) -> EventFormat:
        """Return penstock's own format, in JSON."""
        return cls()


NATIVE = EventFormat()
