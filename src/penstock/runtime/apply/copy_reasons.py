"""Say why a table is copied again, or is not taken by a destination, as operators read it."""

from __future__ import annotations

from penstock.decode.dialect import dialect_of
from penstock.destinations.contract import TableDestination
from penstock.errors import TableError
from penstock.model.feed import Feed, Mode
from penstock.model.table import TableSchema
from penstock.runtime.apply.followed_table import FollowedTable

ASKED_FOR = "a resync was asked for"
PUBLISHED_AGAIN = "it was not published as it must be for a while"
MADE_AGAIN = "the table was dropped and created again"
COLUMNS_CAME = "it was Errored without columns, and has some now"
AWAY = "it was not at the source, or not published, for a while"


def has_key(schema: TableSchema, feed: Feed) -> bool:
    """Return whether updates and deletes of the table tell which row they are of."""
    return (bool(schema.key) and schema.identity != "nothing") or (schema.by_row and feed.mode is Mode.CLONE)


def key_came(schema: TableSchema) -> str:
    if schema.by_row:
        return "it was Errored without a key, and has REPLICA IDENTITY FULL now"
    return f"it was Errored without a key, and has one now: ({', '.join(schema.key)})"


def why_another(tracked: FollowedTable, schema: TableSchema) -> str:
    """Say why the table is copied again, now that the catalogue has it as `schema`; "" when it is not.

    Tables of other modes keep rows by the key that they have: a new one is for an operator to decide.
    """
    if tracked.errored:
        if tracked.lacks_columns and schema.columns:
            return COLUMNS_CAME
        comes_back = tracked.lacks_key and has_key(schema, tracked.feed) and tracked.feed.mode is Mode.CLONE
        return key_came(schema) if comes_back else ""
    return MADE_AGAIN if is_another(tracked.schema, schema) else ""


def is_another(before: TableSchema, now: TableSchema) -> bool:
    """Return whether the catalogue alone says that the table was made again.

    Where a relation is known by its structure, the stream says so, and later than the catalogue.
    """
    return dialect_of(now).numbers_columns and before.relation_id != now.relation_id


def mode_refused(feed: Feed, destination: TableDestination) -> TableError:
    modes = ", ".join(mode for mode in Mode if mode in destination.capabilities.modes)
    return TableError(
        f"table {feed.name}: destination {destination.name} does not take tables of mode {feed.mode}, but {modes}",
        "Give its rule another `mode`, and start again",
    )
