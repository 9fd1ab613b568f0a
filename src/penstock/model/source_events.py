"""Events of a source that are no change of a row: where transactions begin and end, structures, logical messages.

Capture keeps those that a destination asks for (`WantedEvents`). They travel through the change log as changes of
tables that no database has, for their schema is empty; so they have places, states and dead letters as tables have.
`render/source_events.py` writes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from penstock.model.table import TableId

TRANSACTIONS = TableId("", "transaction")
MESSAGES = TableId("", "message")
RELATIONS = TableId("", "relation")
DDL = TableId("", "ddl")
SOURCE_EVENTS = (TRANSACTIONS, DDL, RELATIONS, MESSAGES)


def is_source_event(table: TableId) -> bool:
    """Whether the name stands for events of the source itself, not for a table."""
    return not table.schema


@dataclass(frozen=True)
class WantedEvents:
    """Which events of a source are kept. `messages` are prefixes of logical messages, `%` for any characters."""

    transactions: bool = False
    schema_changes: bool = False
    messages: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.transactions or self.schema_changes or bool(self.messages)

    @property
    def tables(self) -> tuple[TableId, ...]:
        """The names under which they travel."""
        found = [TRANSACTIONS] if self.transactions else []
        found += [DDL, RELATIONS] if self.schema_changes else []
        return (*found, *([MESSAGES] if self.messages else []))

    def has_message(self, prefix: str) -> bool:
        """Whether messages of this prefix are wanted."""
        return any(_expression(pattern).fullmatch(prefix) for pattern in self.messages)


NONE_WANTED = WantedEvents()


def all_wanted(asked: Iterable[WantedEvents]) -> WantedEvents:
    """Return what any of several asks for."""
    some = list(asked)
    return WantedEvents(
        transactions=any(one.transactions for one in some),
        schema_changes=any(one.schema_changes for one in some),
        messages=tuple(dict.fromkeys(pattern for one in some for pattern in one.messages)),
    )


@lru_cache(maxsize=256)
def _expression(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(literal) for literal in pattern.split("%")), re.DOTALL)
