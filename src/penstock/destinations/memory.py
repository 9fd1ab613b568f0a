"""The in-memory twin of the destination contract: for tests that need a destination and no Spark.

A MemoryStore stands for the storage: it outlives drivers, and two MemoryDestinations on one store are two drivers of
one lake. Neighbour: `contract`, which it follows to the letter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.schema import arrow_schema
from penstock.destinations.contract import Capabilities, JobRunner, MaintenanceReport, WritePlan, WrittenPart
from penstock.errors import PositionLost, SchemaChanged, StaleBase
from penstock.fold.keys import encode_keys
from penstock.fold.net_effect import NetEffect
from penstock.model.position import Position, position_text
from penstock.model.table import TableId, TableSchema


@dataclass(frozen=True)
class StoredTable:
    """A table's state: a value. Every commit puts a new one in its place."""

    schema: pa.Schema
    key: tuple[str, ...]
    rows: pa.Table
    positions: Mapping[str, Position]
    version: int = 0

    def keys(self) -> pa.Array | None:
        return encode_keys([self.rows[name].combine_chunks() for name in self.key]) if self.key else None


@dataclass
class MemoryStore:
    tables: dict[TableId, StoredTable] = field(default_factory=dict)


@dataclass(frozen=True)
class MemoryPart:
    upserts: pa.Table
    touched_keys: pa.Array | None
    deletes: int
    fetched: int

    @property
    def rows(self) -> int:
        return int(self.upserts.num_rows)

    @property
    def bytes(self) -> int:
        return int(self.upserts.nbytes)

    @property
    def empty(self) -> bool:
        return self.rows == 0 and self.deletes == 0


@dataclass(frozen=True)
class MemoryPlan:
    target: TableId
    source: str
    position: Position
    base: StoredTable

    def write(self, net: NetEffect) -> MemoryPart:
        keys = None if net.truncated else self.base.keys()
        upserts, fetched = net.upserts, 0
        for fetch in net.fetches:
            number = upserts.schema.get_field_index(fetch.column)
            found = (
                pc.index_in(fetch.keys, value_set=keys) if keys is not None else pa.nulls(len(fetch.keys), pa.int32())
            )
            values = pa.concat_arrays(
                [upserts.column(number).combine_chunks(), self.base.rows[fetch.column].combine_chunks().take(found)]
            )
            order = np.arange(upserts.num_rows)
            order[fetch.rows] = upserts.num_rows + np.arange(len(fetch.rows))
            upserts = upserts.set_column(number, upserts.schema.field(number), values.take(pa.array(order)))
            fetched += len(fetch.rows)
        dying = 0
        if keys is not None and net.touched_keys is not None:
            dying = pc.sum(pc.is_in(keys, value_set=net.touched_keys)).as_py() or 0
        return MemoryPart(upserts, net.touched_keys, dying, fetched)


class MemoryDestination:
    capabilities = Capabilities(transactional=True, upserts=True, truncates=True, fetches=True, maintained=False)

    def __init__(self, name: str = "memory", store: MemoryStore | None = None) -> None:
        self.name = name
        self.store = store if store is not None else MemoryStore()

    def open(self) -> None:
        """Nothing to open."""

    def close(self) -> None:
        """Nothing to close."""

    def rows(self, target: TableId) -> pa.Table:
        """What a reader sees."""
        return self.store.tables[target].rows

    def ensure_table(self, target: TableId, schema: TableSchema, source: str, start: Position) -> Position:
        wanted = arrow_schema(schema)
        table = self.store.tables.get(target)
        if table is None:
            table = StoredTable(wanted, schema.key, wanted.empty_table(), {source: start})
            self.store.tables[target] = table
        if not table.schema.equals(wanted) or table.key != schema.key:
            raise SchemaChanged(
                f"table {target}: its columns or its key differ from the source's", f"Drop {target} to start anew"
            )
        if source not in table.positions:
            raise PositionLost(
                f"table {target} holds no position of {source}", f"Drop {target} or give it another target"
            )
        return table.positions[source]

    def position(self, target: TableId, source: str) -> Position | None:
        table = self.store.tables.get(target)
        return None if table is None else table.positions.get(source)

    def plan(self, target: TableId, source: str) -> MemoryPlan:
        table = self.store.tables[target]
        return MemoryPlan(target, source, table.positions[source], table)

    def commit(self, plan: WritePlan, parts: Sequence[WrittenPart], *, truncated: bool, position: Position) -> None:
        if not isinstance(plan, MemoryPlan):
            raise TypeError(f"{type(plan).__name__} is not a plan of {type(self).__name__}")
        table = self.store.tables[plan.target]
        if table.version != plan.base.version:
            raise StaleBase(f"table {plan.target} has changed since its state was read", "The batch is redone")
        rows = table.schema.empty_table() if truncated else table.rows
        keys = table.keys() if not truncated else None
        for part in parts:
            if not isinstance(part, MemoryPart):
                raise TypeError(f"{type(part).__name__} is not a part of {type(self).__name__}")
            if keys is not None and part.touched_keys is not None:
                alive = pc.invert(pc.is_in(keys, value_set=part.touched_keys))
                rows, keys = rows.filter(alive), keys.filter(alive)
        rows = pa.concat_tables([rows, *(part.upserts for part in parts if isinstance(part, MemoryPart))])
        self._replace(plan.target, table, rows, {**table.positions, plan.source: position})

    def advance(self, target: TableId, source: str, expected: Position, position: Position) -> None:
        table = self.store.tables[target]
        if table.positions.get(source) != expected:
            raise StaleBase(f"table {target} is not at {position_text(expected)}", "Its position is read again")
        self._replace(target, table, table.rows, {**table.positions, source: position})

    def maintain(self, target: TableId, run: JobRunner) -> MaintenanceReport:
        return MaintenanceReport()

    def discard(self, parts: Sequence[WrittenPart]) -> None:
        """Parts are values; nothing is left behind."""

    def _replace(self, target: TableId, table: StoredTable, rows: pa.Table, positions: Mapping[str, Position]) -> None:
        self.store.tables[target] = replace(table, rows=rows, positions=positions, version=table.version + 1)
