"""Keep the schema registry in step with the change log: every version of every table, from the segments' headers.

The log is the truth; the registry is for people, who ask which structure a table had at some position. A registry that
was lost is rebuilt from what the log still holds, and from the structures that the destination's tables have.
"""

from __future__ import annotations

import structlog

from penstock.changelog.log import ChangeLog, TableSlice
from penstock.decode.choices import unchosen
from penstock.errors import StateError
from penstock.model.position import Position
from penstock.model.source_events import is_source_event
from penstock.model.table import TableId, TableSchema
from penstock.runtime.meter import METER, SCHEMA_CHANGES, SOURCE_BYTES, SOURCE_CHANGES
from penstock.state.store import SchemaVersions

LOG = structlog.get_logger("schemas")


class SchemaRegistry:
    def __init__(self, log: ChangeLog, state: SchemaVersions, source: str = "") -> None:
        self._log, self._state, self._source = log, state, source
        self._newest: dict[TableId, TableSchema] = {}
        self._seen: Position | None = None
        self._began = False

    def look(self) -> None:
        """Record structures that are new in the log since the last look."""
        try:
            if not self._began:
                self._seen, self._began = self._state.schemas_seen(), True
                if self._seen is not None and self._seen > (self._log.end() or 0):
                    self._seen = None  # it was another log
            found: list[tuple[TableId, TableSchema, Position]] = []
            seen = self._seen
            for name in self._log.segments(after=self._seen):
                for part in self._log.slices(name):
                    schema = part.table_schema
                    if is_source_event(schema.table):
                        continue
                    if self._seen is not None:
                        self._count(part)
                    if self._newest.get(schema.table) != schema:
                        self._newest[schema.table] = schema
                        found.append((schema.table, schema, part.slice.first_commit))
                        if self._seen is not None:
                            METER.count(SCHEMA_CHANGES, source=self._source, table=str(schema.table))
                seen = name.end
            if found or self._seen is None:
                self._state.record_schemas(found, seen)
            self._seen = seen
        except StateError as error:
            self._newest.clear()
            LOG.warning("structures not recorded", what=error.what)

    def _count(self, part: TableSlice) -> None:
        """Note what came from the source since the last look."""
        labels = {"source": self._source, "table": str(part.table_schema.table)}
        METER.count(SOURCE_CHANGES, part.slice.rows, **labels)
        METER.count(SOURCE_BYTES, part.slice.bytes, **labels)

    def held(self, schema: TableSchema, position: Position) -> None:
        """Record the structure that the destination's table has at its position. May be called from any thread.

        A copy brought it, or it was there at the start. The table may never change, and then no log reports it.
        """
        try:
            self._state.record_schemas([(schema.table, unchosen(schema), position)])
        except StateError as error:
            LOG.warning("structure not recorded", what=error.what)

    def prune(self, before: Position) -> None:
        """Forget what lies behind all positions."""
        try:
            self._state.prune_schemas(before, {version.table for version in self._state.schema_versions()})
        except StateError as error:
            LOG.warning("structures not pruned", what=error.what)
