"""`outbox`: rows that an application inserts into an outbox table, or logical messages, become messages of their own.

A row says what it is about (`aggregate_type`), whose it is (`aggregate_id`) and what to send (`payload`). It becomes a
record with the payload as its value, the aggregate's id as its key, and the topic that follows from its type. Only
inserts are messages: an application that tidies its outbox up deletes rows, and nobody wants to hear of that.

The content of a logical message (`pg_logical_emit_message`) is a JSON object with the same names in place of columns.
Its payload is sent as the application wrote it, digit for digit; one that is a text is sent without its quotes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.source_events import MESSAGES
from penstock.processors.batch import EventBatch, Route, StepFailed, columns_of

NAMES = ("aggregate_type", "aggregate_id", "payload", "event_type", "event_id", "topic")
REQUIRED = ("aggregate_id", "payload")
_SPACE, _JSON = re.compile(r"[ \t\r\n]*"), json.JSONDecoder()
_PLACEHOLDER = re.compile(r"\$?\{([a-z_]+)\}")
OUTBOX_NAME = re.compile(rf"\$\{{(?:{'|'.join(NAMES)})\}}")  # in a template of an outbox, what is no variable


@dataclass(frozen=True)
class OutboxStep:
    """`columns` are the names of the outbox's columns, by what they are.

    `topic` and `key` are templates over them; `default_topic` is where messages go that have no topic.
    """

    columns: tuple[tuple[str, str], ...]
    topic: str
    headers: tuple[tuple[str, str], ...] = ()  # further headers: name, column
    raw_payload: bool = True
    strict: bool = False
    default_topic: str = ""
    key: str = "{aggregate_id}"

    def run(self, batch: EventBatch) -> EventBatch:
        wanted = np.asarray(pc.is_in(batch.op, value_set=pa.array(["insert", "read"])))
        if self.strict and not wanted.all():
            at = int(np.flatnonzero(~wanted)[0])
            raise StepFailed("not-an-insert", f"an outbox has inserts only, and this is a {batch.op[at].as_py()}")
        batch = batch if wanted.all() else batch.take(np.flatnonzero(wanted))
        row = columns_of(batch.after)
        if batch.facts.schema == MESSAGES.schema and batch.facts.table == MESSAGES.name:
            row = _members(row)
        found = {name: self._texts(row, column) for name, column in self.columns if column in row}
        for name in REQUIRED:
            if name not in found:
                raise StepFailed("no-column", f"the outbox has no column {dict(self.columns)[name]}")
        topics = self._topics(found, len(batch))
        if topics.null_count and self.default_topic:
            topics = pc.fill_null(topics, self.default_topic)
        if topics.null_count:
            raise StepFailed("no-topic", f"its topic `{self.topic}` is not known: a column that it names is null")
        headers = {"id": "event_id", "eventType": "event_type", "aggregateType": "aggregate_type"}
        sent = {header: found[name].cast(pa.binary()) for header, name in headers.items() if name in found}
        sent |= {header: self._texts(row, column).cast(pa.binary()) for header, column in self.headers if column in row}
        value = found["payload"].cast(pa.binary()) if self.raw_payload else pa.nulls(len(batch), pa.binary())
        keys = self._filled(self.key, "key", found, len(batch)).cast(pa.binary())
        return replace(batch, route=Route(topics, keys, value, sent))

    def _texts(self, row: Mapping[str, pa.Array], column: str) -> pa.Array:
        values = row[column]
        if pa.types.is_string(values.type) or pa.types.is_binary(values.type):
            return values
        try:
            return values.cast(pa.string())
        except pa.ArrowException as error:
            raise StepFailed("no-text", f"column {column} has no text: {error}") from error

    def _topics(self, found: Mapping[str, pa.Array], rows: int) -> pa.Array:
        named = self._filled(self.topic, "topic", found, rows)
        if "topic" in found:  # a row may say it itself
            named = pc.coalesce(found["topic"].cast(pa.string()), named)
        return pc.if_else(pc.equal(named, ""), pa.scalar(None, pa.string()), named)

    def _filled(self, template: str, key: str, found: Mapping[str, pa.Array], rows: int) -> pa.Array:
        """Return the template's text for each row, null where one of its columns is null."""
        parts: list[pa.Array] = []
        for number, part in enumerate(_PLACEHOLDER.split(template)):
            if number % 2 == 0:
                parts.append(pa.repeat(part, rows))
            elif part in found:
                parts.append(found[part].cast(pa.string()))
            elif key == "topic" and self.default_topic:
                parts.append(pa.nulls(rows, pa.string()))
            else:
                raise StepFailed("no-column", f"the outbox has no column for {part}, which `{key}` names")
        return pc.binary_join_element_wise(*parts, "")


def _members(row: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    """Return the members of the objects that messages hold, as texts, in place of columns."""
    found = [_of_message(content) for content in row["content"].to_pylist()]
    names = dict.fromkeys(name for one in found for name in one)
    made = {name: pa.array([one.get(name) for one in found], pa.string()) for name in names}
    return made | {"prefix": row["prefix"]}


def _of_message(content: bytes | None) -> dict[str, str | None]:
    """Return the members of one object: a text as it is meant, null as null, anything else as it is written."""
    try:
        text = (content or b"").decode()
        at = _after_space(text, 0)
        if not isinstance(json.loads(text), dict):
            raise ValueError("it is no object")
        members: dict[str, str | None] = {}
        at = _after_space(text, at + 1)
        while text[at : at + 1] != "}":
            name, at = _JSON.raw_decode(text, at)
            at = _after_space(text, _past(text, at, ":"))
            value, end = _JSON.raw_decode(text, at)
            members[name] = value if isinstance(value, str) else None if value is None else text[at:end]
            at = _after_space(text, end)
            at = at if text[at : at + 1] == "}" else _after_space(text, _past(text, at, ","))
        return members
    except (ValueError, RecursionError) as error:
        raise StepFailed("no-object", f"the message holds no JSON object: {error}") from error


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _past(text: str, at: int, sign: str) -> int:
    at = _after_space(text, at)
    if text[at : at + 1] != sign:
        raise ValueError(f"there is no {sign} at {at}")
    return at + 1


def unknown_placeholder(topic: str) -> str | None:
    """Return what a template names that no outbox has."""
    return next((name for name in _PLACEHOLDER.findall(topic) if name not in NAMES), None)
