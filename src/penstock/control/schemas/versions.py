"""Answer from the schema registry: versions of tables, what each changed, which one held at a position.

Read from the state store, so it works while a run is under way and while none is. Shown by `view.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.config.model import Pipeline
from penstock.errors import UsageError
from penstock.fold.column_identity import resolve
from penstock.fold.evolution import differences
from penstock.model.position import Position, parse_position
from penstock.model.schema_version import SchemaVersion, in_force
from penstock.model.scoped_name import ScopedName
from penstock.state.opening import find_store
from penstock.state.store import StateStore


class UnknownTable(UsageError):
    """The registry has no such table."""


@dataclass(frozen=True)
class ShownVersion:
    """`changes` are against the version before it, in words; None: the registry knows none before it."""

    table: ScopedName
    version: SchemaVersion
    changes: list[str] | None


@dataclass(frozen=True)
class Schemas:
    pipeline: str
    file: str
    at: Position | None  # only what held there was asked for
    versions: list[ShownVersion]


def look(pipeline: Pipeline, table: str | None = None, at: str | None = None) -> Schemas:
    """Return all versions, or those of one table, or the ones that held at a position."""
    position = None if at is None else parsed(at)
    store = find_store(pipeline.state_url)
    try:
        known = {} if store is None else _by_table(pipeline, store)
    finally:
        if store is not None:
            store.close()
    if table is not None:
        names = sorted(map(str, known))
        if table not in names:
            said = f"known are {', '.join(names)}" if names else "it knows none yet: `penstock run` fills it"
            raise UnknownTable(f"the schema registry of {pipeline.name} has no table {table}", said)
        known = {name: versions for name, versions in known.items() if str(name) == table}
    shown = [
        ShownVersion(name, version, _changes(version, versions))
        for name, versions in known.items()
        for version in (versions if position is None else in_force(versions, position))
    ]
    shown.sort(key=lambda one: (one.table, one.version.version))
    return Schemas(pipeline.name, str(pipeline.file), position, shown)


def _by_table(pipeline: Pipeline, store: StateStore) -> dict[ScopedName, list[SchemaVersion]]:
    found: dict[ScopedName, list[SchemaVersion]] = {}
    for source_view in pipeline.source_views:
        for version in store.of_source(source_view.scope).schema_versions():
            found.setdefault(ScopedName(source_view.scope, version.table), []).append(version)
    return found


def parsed(text: str) -> Position:
    """Return a position as Postgres writes it (`0/1A2B3C4D`), or as it is stored (16 hexadecimal digits)."""
    try:
        return parse_position(text)
    except ValueError as error:
        raise UsageError(f"--at {text} is no position", "Give one as Postgres writes it, such as 0/1A2B3C4D") from error


def _changes(version: SchemaVersion, known: list[SchemaVersion]) -> list[str] | None:
    before = [one for one in known if one.version < version.version]
    if not before:
        return None
    newest = max(before, key=lambda one: one.version).schema
    earlier = newest if all(column.number for column in newest.columns) else resolve(version.schema, newest)
    return differences(earlier, resolve(earlier, version.schema))
