"""Pause and resume a pipeline, a destination or a table. Capture goes on meanwhile, so that no WAL piles up.

A pause is a row in the state store: the run that is up takes it up within a second, and it outlives restarts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from penstock.config.model import Pipeline
from penstock.control.found_store import found_store
from penstock.control.tables.requests import look, tables_named
from penstock.errors import UsageError
from penstock.model.scoped_name import ScopedName
from penstock.state.lock import holder
from penstock.state.opening import MEMORY, open_store
from penstock.state.store import StateStore


@dataclass(frozen=True)
class ShownPause:
    """A pause as an operator reads it. Without a destination it is of all, without a table of all tables."""

    source: str | None
    destination: str | None
    table: ScopedName | None
    since: datetime

    @property
    def what(self) -> str:
        """What is paused, in words."""
        subject = "the pipeline" if self.destination is None else f"destination {self.destination}"
        return subject if self.table is None else f"table {self.table} at {self.destination}"


@dataclass(frozen=True)
class PauseOutcome:
    """What was newly paused or resumed, and the process that takes it up; None: the next run does."""

    pid: int | None
    changed: tuple[str, ...]
    before: tuple[str, ...]


def pauses_of(pipeline: Pipeline) -> list[ShownPause]:
    """Return everything that is paused."""
    with found_store(pipeline) as store:
        if store is None:
            return []
        return [
            ShownPause(
                view.scope,
                one.destination or None,
                None if one.table is None else ScopedName(view.scope, one.table),
                one.at,
            )
            for view in pipeline.source_views
            for one in store.of_source(view.scope).pauses()
        ]


def is_paused(pipeline: Pipeline) -> bool:
    """Whether the pipeline as a whole is paused."""
    return any(one.destination is None for one in pauses_of(pipeline))


def pause(pipeline: Pipeline, destination: str | None = None, tables: Sequence[str] = ()) -> PauseOutcome:
    """Pause the pipeline, one destination, or tables. UsageError for a name that is not known."""
    return _change(pipeline, destination, tables, paused=True)


def resume(pipeline: Pipeline, destination: str | None = None, tables: Sequence[str] = ()) -> PauseOutcome:
    """Take pauses back: exactly those that the arguments name, not narrower ones."""
    return _change(pipeline, destination, tables, paused=False)


def _change(pipeline: Pipeline, destination: str | None, tables: Sequence[str], *, paused: bool) -> PauseOutcome:
    seen = pipeline.only(destination)  # UsageError for an unknown one
    if tables and not look(seen).has_run:
        raise UsageError(
            f"pipeline {pipeline.name} has not run yet, so there is no table to pause",
            f"`penstock run {pipeline.file}` copies every table",
        )
    changed: list[str] = []
    before: list[str] = []
    if pipeline.state_url == MEMORY:
        raise UsageError(
            f"the state of pipeline {pipeline.name} is in its run's memory, where no command reaches it",
            "Stop the run, or keep the state in a file or in Postgres (`state`)",
        )
    store = open_store(pipeline.state_url)
    try:
        for view, place, table in _places(seen, store, destination, tables):
            shown = ShownPause(view.scope, place or None, table, datetime.min)
            own = store.of_source(view.scope)
            name = None if table is None else table.name
            done = own.set_pause(place, name) if paused else own.lift_pause(place, name)
            (changed if done else before).append(shown.what)
            if done:
                own.add_event(
                    "paused" if paused else "resumed",
                    f"{shown.what} was {'paused' if paused else 'resumed'} by an operator",
                    name,
                    destination=place or None,
                )
    finally:
        store.close()
    return PauseOutcome(holder(pipeline.home / "lock"), tuple(dict.fromkeys(changed)), tuple(dict.fromkeys(before)))


def _places(
    pipeline: Pipeline, store: StateStore, destination: str | None, names: Sequence[str]
) -> list[tuple[Pipeline, str, ScopedName | None]]:
    if not names:
        return [(view, destination or "", None) for view in pipeline.source_views]
    views = {view.scope: view for view in pipeline.source_views}
    return [(views[table.source], place, table) for place, table in tables_named(pipeline, store, names)]
