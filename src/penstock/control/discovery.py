"""Everything that a source has, and what the file makes of it: followed or not, by which rule, as what, to where."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from penstock.config.model import Pipeline
from penstock.fold.evolution import type_text
from penstock.model.table import TableId, TableSchema
from penstock.source.factory import source_of


@dataclass(frozen=True)
class _Everything:
    """All tables are wanted, each under its root unless a rule says otherwise."""

    view: Pipeline

    @property
    def name(self) -> str:
        return self.view.name

    def wants(self, table: TableId) -> bool:
        return True

    def by_publication(self, table: TableId) -> bool:
        return False

    def each_partition(self, table: TableId) -> bool:
        return self.view.each_partition(table)

    def modes(self, table: TableId) -> Collection[str]:
        return self.view.modes(table)


def discovered(pipeline: Pipeline) -> list[dict[str, Any]]:
    """Return each source with its tables, as JSON values. SourceUnreachable when one does not answer."""
    found = []
    for view in pipeline.source_views:
        source = source_of(view.source)
        with source.connect() as session:
            schemas = session.discover(_Everything(view))
        found.append(
            {
                "name": view.source.name,
                "endpoint": source.endpoint,
                "tables": [_table(view, schema) for schema in schemas],
            }
        )
    return found


def _table(view: Pipeline, schema: TableSchema) -> dict[str, Any]:
    number = next((number for number, rule in enumerate(view.tables) if rule.covers(schema.table)), None)
    rule = None if number is None else view.tables[number]
    return {
        "table": str(schema.table),
        "followed": rule is not None,
        "rule": number,
        "match": None if rule is None else rule.match,
        "key": list(schema.key),
        "columns": [
            {"name": column.name, "type": type_text(schema, column), "key": column.name in schema.key}
            for column in schema.columns
        ],
        "feeds": [
            {"destination": one.destination.name, "mode": feed.mode.value, "target": str(feed.target)}
            for one in view.destination_views
            for feed in one.feeds(schema.table)
        ],
    }
