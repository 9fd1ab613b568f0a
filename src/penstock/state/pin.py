"""Define pins: a table of one destination, brought to exactly one position and kept readable there.

The pipeline goes on meanwhile. Whoever compares a table with its source asks for a pin through the state store, and the
run answers through it:

| state | set by | meaning |
|---|---|---|
| asked | asker | the table is to be held where it is |
| held | run | the run holds it; a position that is taken from now on is not behind it |
| placed | asker | here is the position (and, for a repair, the file with the rows to put right there) |
| made | run | `snapshot` is what the destination calls the contents at that position; "" when it holds none |
| failed | either | `reason` and `solution` say why; the table is not held any more |

An asker that is gone must not hold a table: it renews its pins, and a run drops those that were not renewed for
EXPIRES_AFTER. A pin lives until it is dropped, and until then its contents stay readable. `columns` tells what the
source's columns, by their numbers, are called in those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from penstock.model.position import Position
from penstock.model.table import TableId

PinState = Literal["asked", "held", "placed", "made", "failed"]
EXPIRES_AFTER = 60.0  # seconds
RENEW_EVERY = 5.0


@dataclass(frozen=True)
class Pin:
    id: int
    destination: str
    table: TableId
    state: PinState
    renewed: datetime
    position: Position | None = None
    repair: str = ""
    snapshot: str = ""
    columns: Mapping[int, str] = field(default_factory=dict)
    reason: str = ""
    solution: str = ""

    @property
    def answered(self) -> bool:
        return self.state in ("made", "failed")
