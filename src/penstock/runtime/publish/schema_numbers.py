"""The version and sequence that the schema registry has for the structures of a batch: events carry them.

The registry follows the log in the background (`upkeep/schema_registry.py`) and may be behind. So a structure that a
batch brings is recorded here first, which does nothing if the registry has it already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import structlog

from penstock.changelog.log import ChangeLog
from penstock.errors import StateError
from penstock.model.position import Position
from penstock.model.source_events import is_source_event
from penstock.model.table import TableId, TableSchema
from penstock.state.store import SchemaVersions

LOG = structlog.get_logger("publish")


class SchemaNumbers:
    """Look structures up by the segments that hold their changes."""

    def __init__(self, log: ChangeLog, state: SchemaVersions) -> None:
        self._log, self._state = log, state
        self._structures: dict[str, str] = {}  # by fingerprint of the schema in the log
        self._numbers: dict[str, tuple[int, int]] = {}  # by fingerprint of the structure

    def of(self, slices: Iterable[tuple[str, str]]) -> Mapping[str, tuple[int, int]]:
        """Return version and sequence, by fingerprint of the structure, of slices: segment and schema of each.

        While the state store does not answer, new structures have none."""
        wanted = list(slices)
        fresh = [one for one in wanted if one[1] not in self._structures]
        if fresh:
            try:
                self._look_up(fresh)
            except StateError as error:
                LOG.warning("structures not recorded", what=error.what)
        structures = {self._structures[schema] for _, schema in wanted if schema in self._structures}
        return {one: self._numbers[one] for one in structures if one in self._numbers}

    def _look_up(self, fresh: Iterable[tuple[str, str]]) -> None:
        found: dict[str, tuple[TableId, TableSchema, Position]] = {}
        for segment, fingerprint in fresh:
            header = self._log.header(segment)
            schema = header.schemas[fingerprint]
            if is_source_event(schema.table):
                continue
            first = min(one.first_commit for one in header.all_slices if one.schema == fingerprint)
            if fingerprint not in found or first < found[fingerprint][2]:
                found[fingerprint] = schema.table, schema, first
        self._state.record_schemas(sorted(found.values(), key=lambda one: one[2]))
        self._numbers = {one.fingerprint: (one.version, one.sequence) for one in self._state.schema_versions()}
        self._structures |= {fingerprint: schema.structure for fingerprint, (_, schema, _) in found.items()}
