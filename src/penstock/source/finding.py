"""One thing that a check found, and what to do about it. Made by a source's `check` and by `control.check`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.model.table import TableId

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """error: must be fixed. warning: will hurt some day. note: good to know; `fix` may be empty.

    `table` is None when the whole source is concerned; of several tables it is the first.
    """

    level: Level
    what: str
    fix: str
    table: TableId | None = None
