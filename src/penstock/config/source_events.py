"""What a stream's section says of the source's own events: transactions, schema changes and logical messages."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from penstock.config.event_formats import EncodingSection, EnvelopeSection
from penstock.config.processors import AnyProcessor, specs_of
from penstock.config.section import Section, misplaced
from penstock.model.feed import Feed
from penstock.model.processor import ProcessorSpec
from penstock.model.source_events import MESSAGES, WantedEvents
from penstock.model.table import TableId

Kind = Literal["transactions", "schema_changes", "messages"]
_SHAPES: dict[str, frozenset[Kind]] = {
    "native": frozenset(("transactions", "schema_changes", "messages")),
    "debezium": frozenset(("transactions", "messages")),
    "cloudevents": frozenset(("transactions", "schema_changes", "messages")),
    "faucet": frozenset(),
    "deltaforge": frozenset(),
}


def _listed(value: object) -> object:
    """Accept a list of prefixes in place of the section."""
    return {"prefixes": value} if isinstance(value, list) else value


class MessagesSection(Section):
    """Which logical messages are published, and the processors that they pass. `%` in a prefix is any characters."""

    prefixes: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(default_factory=list)
    processors: list[AnyProcessor] = Field(default_factory=list)

    def specs(self, folder: str) -> tuple[ProcessorSpec, ...]:
        """Return the processors of messages; modules are looked for in `folder`."""
        return specs_of(self.processors, MESSAGES, folder)

    @model_validator(mode="after")
    def _for_some(self) -> MessagesSection:
        if self.processors and not self.prefixes:
            raise misplaced("prefixes", "is missing: it says which messages the processors are for")
        return self


AnyMessages = Annotated[MessagesSection, BeforeValidator(_listed)]


def feed_of(table: TableId, wanted: WantedEvents, specs: tuple[ProcessorSpec, ...]) -> Feed | None:
    """Return the feed of events of the source; None when nobody wants them."""
    if table not in wanted.tables:
        return None
    if table != MESSAGES:
        return Feed.clone(table)
    return Feed(table, table, table, messages=wanted.messages, processors=specs)


def require_shape(wanted: WantedEvents, envelope: EnvelopeSection, encoding: EncodingSection) -> None:
    """Raise where an envelope or encoding has no shape for events that are wanted."""
    asked: dict[Kind, bool] = {
        "transactions": wanted.transactions,
        "schema_changes": wanted.schema_changes,
        "messages": bool(wanted.messages),
    }
    for key, is_asked in asked.items():
        if is_asked and encoding.type == "avro":
            raise misplaced(key, "must be left out with `encoding: avro`: there are no schemas for such events")
        if is_asked and key not in _SHAPES[envelope.type]:
            raise misplaced(key, f"must be left out: the envelope {envelope.type} has no shape for such events")
        if is_asked and envelope.schemas == "inline":
            raise misplaced(key, "must be left out with `schemas: inline`: such events are written without a schema")
