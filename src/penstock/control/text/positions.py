"""Read a position or a time as operators give them on the command line and to the server."""

from __future__ import annotations

from datetime import UTC, datetime

from penstock.errors import UsageError
from penstock.model.position import Position, parse_position


def parse_time(text: str) -> datetime | None:
    """Read a time in ISO 8601, in UTC unless it says otherwise; None when the text is none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def parse_position_or_time(option: str, text: str) -> Position | datetime:
    """Read `0/16B3748` or a time. UsageError, naming the option, for any other text."""
    try:
        return parse_position(text)
    except ValueError:
        moment = parse_time(text)
    if moment is None:
        raise UsageError(
            f"{option} {text} is neither a position nor a time",
            "Give a position as the source shows it, such as 0/16B3748, or a time such as 2026-01-02T03:04:05Z",
        )
    return moment
