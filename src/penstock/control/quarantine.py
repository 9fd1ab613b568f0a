"""What an operator does with messages that could not be decoded: look at them, try them again, give them up.

Everything goes through the state store, as in `tables/requests.py`, so it works with or without a run. A message that
is tried is tried by the decoder of the penstock that is called here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock.config.model import Pipeline
from penstock.control.found_store import found_store
from penstock.decode.dialect import dialect_of
from penstock.decode.sift import sift
from penstock.errors import UsageError
from penstock.model.quarantine import RawMessage, as_changes
from penstock.model.scoped_name import ScopedName
from penstock.model.table_state import State
from penstock.state.lock import holder
from penstock.state.store import RequestKind, StateStore

Place = tuple[str, ScopedName]  # destination, table


@dataclass(frozen=True)
class KeptMessage:
    """A message in quarantine, with its table's name among all sources."""

    id: int
    destination: str
    table: ScopedName
    at: datetime
    message: RawMessage

    @property
    def place(self) -> Place:
        return self.destination, self.table


@dataclass(frozen=True)
class Replayed:
    """`refused` have the reasons of the present decoder.

    `again` are Errored tables of which all messages decode. `passed` are those that decode and whose table went on
    without them: they stay for the operator.
    """

    pid: int | None
    decoded: list[KeptMessage]
    refused: list[tuple[KeptMessage, str]]
    again: list[ScopedName]
    passed: list[KeptMessage]


@dataclass(frozen=True)
class Dropped:
    pid: int | None
    dropped: list[KeptMessage]
    resynced: list[ScopedName]


def kept(pipeline: Pipeline) -> list[KeptMessage]:
    """Return everything in quarantine, by table and in stream order."""
    with found_store(pipeline) as store:
        return [] if store is None else _all(pipeline, store)


def chosen(pipeline: Pipeline, messages: Sequence[KeptMessage], names: Sequence[str]) -> list[KeptMessage]:
    """Return those with these ids or of these tables; all when none is named. UsageError for a name that none has."""
    if not names:
        return list(messages)
    picked: dict[int, KeptMessage] = {}
    for name in names:
        found = [one for one in messages if name in (str(one.id), str(one.table))]
        if not found:
            raise UsageError(
                f"nothing in quarantine has the id or table {name}", f"`penstock quarantine list {pipeline.file}`"
            )
        picked.update({one.id: one for one in found})
    return list(picked.values())


def replay(pipeline: Pipeline, names: Sequence[str]) -> Replayed:
    """Try messages with the present decoder; a table that stopped at them is tried again if all of them decode.

    Messages stay until the table has passed them; those of a table that went on without them stay for the operator.
    """
    with found_store(pipeline) as store:
        everything = [] if store is None else _all(pipeline, store)
        decoded: list[KeptMessage] = []
        refused: list[tuple[KeptMessage, str]] = []
        for one in chosen(pipeline, everything, names):
            bad = sift(as_changes(one.message))[1]
            if bad:
                refused.append((one, bad[0].reason))
            else:
                decoded.append(one)
        again: list[ScopedName] = []
        passed: list[KeptMessage] = []
        if store is not None and decoded:
            fit, standing = {one.id for one in decoded}, _errored(pipeline, store)
            whole = {one.place for one in everything} - {one.place for one in everything if one.id not in fit}
            places = sorted(whole & standing)
            again = sorted({table for _, table in places})
            passed = [one for one in decoded if one.place not in standing]
            for destination, table in places:
                _ask(store, destination, table, "retry")
        return Replayed(holder(pipeline.home / "lock"), decoded, refused, again, passed)


def drop(pipeline: Pipeline, names: Sequence[str]) -> Dropped:
    """Give messages up. A table that stopped at one of them is copied again, because it cannot pass it."""
    with found_store(pipeline) as store:
        gone = chosen(pipeline, [] if store is None else _all(pipeline, store), names)
        resynced: list[ScopedName] = []
        if store is not None and gone:
            places = sorted({one.place for one in gone} & _errored(pipeline, store))
            resynced = sorted({table for _, table in places})
            for destination, table in places:
                _ask(store, destination, table, "resync")
            for source in {one.table.source for one in gone}:
                own, dropped = store.of_source(source), [one for one in gone if one.table.source == source]
                own.release([one.id for one in dropped])
                for destination, count in sorted(Counter(one.destination for one in dropped).items()):
                    what = f"{count} messages in quarantine were given up"
                    own.add_event("quarantine", what, destination=destination)
        return Dropped(holder(pipeline.home / "lock"), gone, resynced)


def _ask(store: StateStore, destination: str, table: ScopedName, kind: RequestKind) -> None:
    own = store.of_source(table.source)
    if not any(request.kind == kind and request.table == table.name for request in own.requests(destination)):
        own.add_request(destination, table.name, kind)


def _errored(pipeline: Pipeline, store: StateStore) -> set[Place]:
    return {
        (destination.name, ScopedName(source_view.scope, table))
        for destination in pipeline.destinations
        for source_view in pipeline.source_views
        for table, status in store.of_source(source_view.scope).table_status(destination.name).items()
        if status.state is State.ERRORED
    }


def _all(pipeline: Pipeline, store: StateStore) -> list[KeptMessage]:
    return [
        KeptMessage(one.id, one.destination, ScopedName(source_view.scope, one.table), one.at, one.message)
        for destination in pipeline.destinations
        for source_view in pipeline.source_views
        for one in store.of_source(source_view.scope).quarantined(destination.name)
    ]


def as_json(one: KeptMessage) -> dict[str, Any]:
    """Return a message as JSON values, without its bytes."""
    message = one.message
    return {
        "id": one.id,
        "destination": one.destination,
        "table": str(one.table),
        "at": one.at.isoformat(),
        "change": message.order,
        "transaction": message.transaction,
        "commit_time": message.commit_time.isoformat(),
        "operation": chr(message.op),
        "bytes": len(message.data),
        "schema": message.schema.fingerprint,
        "reason": message.reason,
    }


def parts_of(one: KeptMessage) -> list[str]:
    """Say what can be read of a message, part by part."""
    return dialect_of(one.message.schema).explain(one.message)


def whole_json(one: KeptMessage) -> dict[str, Any]:
    """Return a message as JSON values, with its bytes in hexadecimal and what can be read of them."""
    return {**as_json(one), "data": one.message.data.hex(), "parts": parts_of(one)}
