"""Format a table's copy in figures: the same in `tables` and in `status`."""

from __future__ import annotations

from typing import Any

from penstock.control.text.figures import UNKNOWN, of_about_text
from penstock.state.store import CopyProgress


def rows_copied_text(copy: CopyProgress | None) -> str:
    return UNKNOWN if copy is None or copy.started is None else of_about_text(copy.rows, copy.rows_estimate)


def copy_json(copy: CopyProgress | None) -> dict[str, Any] | None:
    """None for a table that was never copied. Times are ISO 8601 in UTC; what is unknown is null."""
    if copy is None:
        return None
    return {
        "started": copy.started.isoformat() if copy.started else None,
        "ended": copy.ended.isoformat() if copy.ended else None,
        "attempts": copy.attempts,
        "ranges": copy.ranges,
        "ranges_finished": copy.ranges_finished,
        "rows": copy.rows,
        "rows_estimate": copy.rows_estimate,
        "bytes": copy.bytes,
        "bytes_total": copy.bytes_total,
        "fraction": copy.fraction,
        "note": copy.note or None,
    }
