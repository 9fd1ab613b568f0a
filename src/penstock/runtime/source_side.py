"""What a source's pipeline shares with each of its readers (`log_reader.py`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.changelog.log import ChangeLog
from penstock.model.position import Position
from penstock.runtime.copy.connections import CopyConnections
from penstock.runtime.log_reader import Observe
from penstock.runtime.run_end import RunEndWatch
from penstock.runtime.upkeep.schema_registry import SchemaRegistry


@dataclass(frozen=True)
class SourceSide:
    """The log and the registry of one source, and how to ask the source itself.

    `slot_position` is where the log begins if it is empty. `end` says where the run ends, if it does by itself.
    `verified` says whether capture has found the log's end in the server's own past. `look` shows the catalogue to one
    observer; `look_soon` has it shown to all of them, without waiting for it. `begun` is called when tables depend on
    the log. `connections` is what the copies of all readers may use at once.
    """

    log: ChangeLog
    registry: SchemaRegistry
    slot_position: Position
    end: RunEndWatch
    verified: Callable[[], bool]
    look: Callable[[Observe], None]
    look_soon: Callable[[], None]
    begun: Callable[[], None]
    connections: CopyConnections
