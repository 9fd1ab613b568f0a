"""Notice updates and deletes that the source does not send, so that no table stays Ready without them.

Of a table without a replica identity only inserts and truncates are sent (`Following.inserts_only`). Its updates and
deletes are noticed by the source's own counters: the copier keeps those from before a copy's snapshot, and every look
at the source compares with them.

| counters since the copy                 | what is done                                                     |
|-----------------------------------------|------------------------------------------------------------------|
| did not move                            | nothing                                                          |
| moved                                   | the table is Errored until it has a key, or is copied again      |
| cannot be compared (reset, crash, none) | a clone is copied again; other modes are Errored                 |
| are not kept (a replica as source)      | the table is Errored: nobody would notice the change             |
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.config.model import Pipeline
from penstock.errors import KeyRequired
from penstock.model.feed import Mode
from penstock.model.table import TableId, TableSchema
from penstock.model.write_counters import WriteCounters
from penstock.source.contract import Advice, Session
from penstock.state.store import TableStates

UNKNOWN = "whether rows of it were updated or deleted is unknown, for the source's counters were reset"
UNCOUNTED = "and this server does not count them (it is a replica, or track_counts is off), so nobody would notice"


@dataclass(frozen=True)
class UnsentWrites:
    """By the feed's name: tables that differ, or may differ without anybody noticing; and those to be copied again."""

    errors: dict[TableId, KeyRequired] = field(default_factory=dict)
    unknown: dict[TableId, str] = field(default_factory=dict)


def find_unsent_writes(
    session: Session,
    advice: Advice,
    pipeline: Pipeline,
    state: TableStates,
    before: Mapping[TableId, WriteCounters],
    schemas: Sequence[TableSchema],
    inserts_only: Collection[TableId],
) -> UnsentWrites:
    """Compare the counters of tables that are published for inserts only with those from before their copies."""
    found = UnsentWrites()
    watched = [schema for schema in schemas if schema.table in inserts_only]
    if not watched:
        return found
    destination = pipeline.destination.name
    kept, now = session.counts_writes(), session.counters(watched)
    copied = state.table_status(destination).keys()
    for schema in watched:
        way_out = f"{advice.identity(schema.table)}; then it is followed again"
        for feed in pipeline.feeds(schema.table):
            name = feed.name
            if not kept:
                found.errors[name] = KeyRequired(_lacking(schema, UNCOUNTED), way_out)
                continue
            moved = now[schema.table].since(before.get(name))
            if moved is None and name in copied:
                if feed.mode is Mode.CLONE:
                    found.unknown[name] = UNKNOWN
                else:
                    found.errors[name] = KeyRequired(_lacking(schema, UNKNOWN), way_out)
            elif moved:
                found.errors[name] = KeyRequired(_lacking(schema, f"and {rows_written(moved)}"), way_out)
    return found


def _lacking(schema: TableSchema, what: str) -> str:
    return f"table {schema.table} has no replica identity, so its updates and deletes are not sent; {what}"


def rows_written(number: int) -> str:
    """Say how many rows were updated or deleted."""
    return f"{number} {'row was' if number == 1 else 'rows were'} updated or deleted"
