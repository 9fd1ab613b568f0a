"""What one look at the source's catalogue found, before any destination has compared it with what it holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.errors import TableError
from penstock.model.table import TableId, TableSchema


@dataclass(frozen=True)
class Catalogue:
    """The wanted tables.

    `troubles` are of source tables that cannot be followed as they are. `inserts_only` are published without their
    updates and deletes, and were so before this look.
    """

    schemas: list[TableSchema]
    troubles: Mapping[TableId, TableError] = field(default_factory=dict)
    inserts_only: frozenset[TableId] = frozenset()
