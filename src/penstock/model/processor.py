"""Define what a pipeline file says of one processor, in a form that travels with a feed to the executors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

OnError = Literal["dlq", "drop", "stop"]


@dataclass(frozen=True)
class ProcessorSpec:
    """One processor. `settings` are its own keys as JSON; `processors/` makes it runnable.

    `on_error` says what becomes of an event that it fails on: a dead letter, nothing, or the table stops."""

    type: str
    settings: str
    on_error: OnError = "dlq"
    changes_key: bool = False
