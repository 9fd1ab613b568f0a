"""Define versions of a table's structure: numbered, placed in the stream, comparable."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from penstock.model.position import Position
from penstock.model.table import TableId, TableSchema


@dataclass(frozen=True)
class SchemaVersion:
    """`version` counts the table's own, from 1; `sequence` all tables' together. It holds from `position` on."""

    table: TableId
    version: int
    sequence: int
    position: Position
    at: datetime  # when it was recorded
    schema: TableSchema

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the structure; the same structure has the same, whenever and wherever."""
        return self.schema.structure

    def is_same(self, other: TableSchema) -> bool:
        """Whether `other` says nothing new: the same structure of the same columns of the same relation."""
        mine, theirs = self.schema, other
        numbers = [(a.number, b.number) for a, b in zip(mine.columns, theirs.columns, strict=False)]
        return (
            mine.structure == theirs.structure
            and mine.relation_id == theirs.relation_id
            and all(a == b or 0 in (a, b) for a, b in numbers)
        )


def in_force(versions: Iterable[SchemaVersion], position: Position) -> list[SchemaVersion]:
    """Return per table the version in force for a change committed at `position`; none for later tables."""
    found: dict[TableId, SchemaVersion] = {}
    for version in sorted(versions, key=lambda one: one.sequence):
        if version.position <= position:
            found[version.table] = version
    return sorted(found.values(), key=lambda one: one.table)


def obsolete(versions: Iterable[SchemaVersion], before: Position, keep: int) -> list[SchemaVersion]:
    """Return versions that no position from `before` on needs, except the newest `keep` per table."""
    by_table: dict[TableId, list[SchemaVersion]] = {}
    for version in sorted(versions, key=lambda one: one.sequence):
        by_table.setdefault(version.table, []).append(version)
    return [
        version
        for of_table in by_table.values()
        for version, following in list(pairwise(of_table))[: max(0, len(of_table) - keep)]
        if following.position <= before
    ]
