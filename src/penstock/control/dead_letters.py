"""What an operator does with dead letters: look at them, have them sent again, or remove them.

Everything goes through the state store, so it works while a run is under way and while none is: `ask` leaves requests
in it, which the run takes up between two batches, or the next run at its start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.config.destinations import StreamSection
from penstock.config.model import Pipeline
from penstock.control.found_store import found_store
from penstock.decode.dialect import dialect_of
from penstock.errors import UsageError
from penstock.model.dead_letter import KeptLetter
from penstock.model.scoped_name import ScopedName
from penstock.state.lock import holder
from penstock.state.store import StateStore


@dataclass(frozen=True)
class ScopedLetter:
    """A dead letter, with its table's name among all sources."""

    table: ScopedName
    kept: KeptLetter


@dataclass(frozen=True)
class Asked:
    """Letters that are to be sent again: newly asked for, and asked for before.

    `rows` are of tables: these are made again when their table is copied again.
    """

    pid: int | None  # of the run that takes it up; None: the next one does
    new: list[ScopedLetter]
    before: list[ScopedLetter]
    rows: list[ScopedLetter]


def kept(pipeline: Pipeline, tables: Sequence[str] = (), codes: Sequence[str] = ()) -> list[ScopedLetter]:
    """Return the letters of all destinations, or of these tables or codes, by destination, source and age."""
    with found_store(pipeline) as store:
        return _some(pipeline, [] if store is None else _all(pipeline, store), tables, codes)


def chosen(pipeline: Pipeline, letters: Sequence[ScopedLetter], names: Sequence[str]) -> list[ScopedLetter]:
    """Return those with these ids; all when none is named. UsageError for an id that none has."""
    if not names:
        return list(letters)
    by_id = {str(one.kept.id): one for one in letters}
    unknown = next((name for name in names if name not in by_id), None)
    if unknown is not None:
        raise UsageError(f"no dead letter has the id {unknown}", f"`penstock dlq list {pipeline.file}` lists them")
    return [by_id[name] for name in dict.fromkeys(names)]


def ask(pipeline: Pipeline, names: Sequence[str], tables: Sequence[str] = (), codes: Sequence[str] = ()) -> Asked:
    """Ask for letters to be sent again, oldest first."""
    with found_store(pipeline) as store:
        if store is None:
            return Asked(None, [], [], [])
        found = chosen(pipeline, _some(pipeline, _all(pipeline, store), tables, codes), names)
        streams = {one.name for one in pipeline.destinations if isinstance(one, StreamSection)}
        wanted = [one for one in found if one.kept.destination in streams]
        fresh: set[int] = set()
        for source, some in _by_source(wanted).items():
            fresh |= set(store.of_source(source).ask_letters([one.kept.id for one in some]))
        new = [one for one in wanted if one.kept.id in fresh]
        before = [one for one in wanted if one.kept.id not in fresh]
        rows = [one for one in found if one.kept.destination not in streams]
        return Asked(holder(pipeline.home / "lock"), new, before, rows)


def remove(
    pipeline: Pipeline, names: Sequence[str], tables: Sequence[str] = (), codes: Sequence[str] = ()
) -> list[ScopedLetter]:
    """Forget letters, and note how many."""
    with found_store(pipeline) as store:
        if store is None:
            return []
        gone = chosen(pipeline, _some(pipeline, _all(pipeline, store), tables, codes), names)
        for source, some in _by_source(gone).items():
            own = store.of_source(source)
            own.release_letters([one.kept.id for one in some])
            for (destination, table), count in Counter((one.kept.destination, one.kept.table) for one in some).items():
                number = "1 dead letter was" if count == 1 else f"{count} dead letters were"
                own.add_event("dead letters", f"{number} removed by an operator", table, destination=destination)
        return gone


def _by_source(letters: Sequence[ScopedLetter]) -> dict[str | None, list[ScopedLetter]]:
    found: dict[str | None, list[ScopedLetter]] = {}
    for one in letters:
        found.setdefault(one.table.source, []).append(one)
    return found


def _some(
    pipeline: Pipeline, letters: list[ScopedLetter], tables: Sequence[str], codes: Sequence[str]
) -> list[ScopedLetter]:
    """Return the letters of some tables and of some codes; none named: of all."""
    unknown = next((name for name in tables if not any(str(one.table) == name for one in letters)), None)
    if unknown is not None:
        raise UsageError(f"table {unknown} has no dead letters", f"`penstock dlq list {pipeline.file}` lists them all")
    of_tables = [one for one in letters if not tables or str(one.table) in tables]
    return [one for one in of_tables if not codes or one.kept.letter.code in codes]


def _all(pipeline: Pipeline, store: StateStore) -> list[ScopedLetter]:
    return [
        ScopedLetter(ScopedName(source_view.scope, one.table), one)
        for destination in pipeline.destinations
        for source_view in pipeline.source_views
        for one in store.of_source(source_view.scope).letters(destination.name)
    ]


def as_json(one: ScopedLetter) -> dict[str, Any]:
    """Return a letter as JSON values, without what it holds."""
    letter, message = one.kept.letter, one.kept.letter.message
    return {
        "id": one.kept.id,
        "destination": one.kept.destination,
        "table": str(one.table),
        "operation": letter.op,
        "place": letter.place,
        "key": None if letter.key is None else key_text(letter.key),
        "topic": letter.topic or None,
        "transaction": None if message is None else message.transaction,
        "commit_time": None if message is None else message.commit_time.isoformat(),
        "code": letter.code,
        "reason": letter.reason,
        "at": one.kept.at.isoformat(),
        "tried_at": one.kept.tried_at.isoformat(),
        "attempts": one.kept.attempts,
        "asked": one.kept.asked,
    }


def parts_of(one: ScopedLetter) -> list[str]:
    """Say what the source sent, part by part; nothing of a row of the initial copy."""
    message = one.kept.letter.message
    return [] if message is None else dialect_of(message.schema).explain(message)


def whole_json(one: ScopedLetter) -> dict[str, Any]:
    """Return a letter as JSON values, with what it holds; bytes are hexadecimal."""
    letter, message = one.kept.letter, one.kept.letter.message
    return {
        **as_json(one),
        "parts": parts_of(one),
        "data": None if message is None else message.data.hex(),
        "value": None if letter.value is None else letter.value.hex(),
        "headers": {header: value.hex() for header, value in letter.headers},
    }


def key_text(key: bytes | None) -> str:
    """Return an event's key as text."""
    return "" if key is None else key.decode(errors="replace")
