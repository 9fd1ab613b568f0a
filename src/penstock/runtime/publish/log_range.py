"""Errors of a stream that needs a part of the change log which the log does not hold."""

from __future__ import annotations

from penstock.errors import LogPassed, StreamBroken
from penstock.model.place import Place, position_of
from penstock.model.position import Position, position_text
from penstock.model.table import TableId


def starts_before_the_log(stream: str, first: Position, start: Position) -> StreamBroken:
    """Return the error of a new stream that is to start before the log does."""
    return StreamBroken(
        f"stream {stream} is to start at {position_text(first)}, and the change log begins at "
        f"{position_text(start)}: the events in between are not there",
        f'Set `start` to "{position_text(start)}" or later, or to `log`',
    )


def log_passed_stream(stream: str, published: Position, start: Position) -> StreamBroken:
    """Return the error of a stream whose next events the log no longer holds."""
    return StreamBroken(
        f"stream {stream} is published up to {position_text(published)}, and the change log begins at "
        f"{position_text(start)}: the events in between are lost",
        "Start a new stream under another `path` or name, and have its readers begin again",
    )


def log_ends_before_stream(stream: str, published: Position, end: Position) -> StreamBroken:
    """Return the error of a stream that is further than the log."""
    return StreamBroken(
        f"stream {stream} is published up to {position_text(published)}, and the change log ends at "
        f"{position_text(end)}",
        "The log lost its newest part: start a new stream under another `path` or name",
    )


def log_passed_table(table: TableId, behind: Place, start: Position) -> LogPassed:
    """Return the error of a table whose next events the log no longer holds."""
    return LogPassed(
        f"table {table}: it is published up to {position_text(position_of(behind))}, and the change log begins at "
        f"{position_text(start)}",
        f"To go on without the events in between: penstock resync FILE {table}",
    )


def stream_gone(stream: str, published: int) -> StreamBroken:
    """Return the error of a stream that the destination no longer has."""
    return StreamBroken(
        f"stream {stream} is gone from its destination, though {published} events were published to it: its place was "
        "deleted, or the destination is another one",
        "Put back what was deleted. To begin a new stream, whose readers get all events again, give the destination "
        "another `name`",
    )
