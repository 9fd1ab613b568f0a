"""Define what a statement says of one column of a table: a source that reads statements puts it into its log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True)
class ColumnChange:
    """A column called `before` is called `after` from the statement on: "" is no column, so one is added or dropped.

    `place` is the column that it comes to stand behind; "" makes it the first, None says nothing. `optional`: the
    statement does nothing to a column that is not there, or, where it adds one, already there (IF EXISTS).
    """

    before: str
    after: str
    place: str | None = None
    optional: bool = False

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Self:
        return cls(**raw)
