"""Decide whether a table can follow the structures that its changes in a batch have, or has to be copied again."""

from __future__ import annotations

from penstock.destinations.union import renamed
from penstock.errors import SchemaChanged
from penstock.fold.evolution import Followed, follow, identity_change, key_numbers
from penstock.model.feed import Mode
from penstock.runtime.apply.batch_planner import TableWork
from penstock.runtime.apply.followed_table import FollowedTable


def structure_step(table: FollowedTable, work: TableWork) -> Followed | str:
    """Return the structure after the batch, or why the table has to be copied again.

    SchemaChanged if neither is allowed: an operator decides.
    """
    feed, followed = table.feed, follow(table.schema, work.versions, table.feed.type_map)
    if feed.mode is Mode.EVENTS:
        return followed  # every event is under the structure that it had
    if not followed.resync:
        identity = identity_change(table.schema, work.versions) if feed.mode is Mode.CLONE else ""
        others = renamed(table.schema, followed.schema) if feed.sid is not None else []
        if identity or not others:
            return identity or followed
        return f"column {', '.join(others)} was renamed, and other sources feed the table too"
    if followed.misfit and feed.on_type_change == "error":
        raise SchemaChanged(
            f"table {table.name}: {followed.misfit}, and `on_type_change` is error",
            f"Copy it with its new type: penstock resync FILE {table.name}; or change the type back first",
        )
    if feed.mode is not Mode.CLONE and key_numbers(table.schema) != key_numbers(followed.schema):
        raise SchemaChanged(
            f"table {table.name}: {followed.resync}, and a table of mode {feed.mode} keeps its past by key",
            f"Drop {feed.target} at the destination, or give it another `target`; then `penstock retry`",
        )
    return followed.resync
