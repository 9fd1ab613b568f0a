"""Advice for tables whose updates often leave out values, which then have to be read back from the destination."""

from __future__ import annotations

from penstock.control.text.figures import count_text
from penstock.decode.dialect import dialect_named
from penstock.model.feed import Feed
from penstock.model.table_state import TableProgress

MANY = 1000  # values read back; fewer cost nothing to speak of
SHARE = 0.1  # of the table's changes


def fetching_advice(source_type: str, feed: Feed | None, progress: TableProgress | None) -> str:
    """Return how to have the values sent; "" while few are read back."""
    if feed is None or progress is None or progress.fetched < max(MANY, SHARE * progress.changes):
        return ""
    return dialect_named(source_type).unsent_value(feed.table).solution


def fetched_text(values: int) -> str:
    return f"{count_text(values)} unchanged values were not sent by the source, and read back from the destination"
