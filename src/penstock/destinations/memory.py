"""The in-memory twin of the destination contract: for tests that need a destination and no Spark.

A MemoryStore stands for the storage: it outlives drivers, and two MemoryDestinations on one store are two drivers of
one lake.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.rescue import RESCUED
from penstock.decode.schema import arrow_schema
from penstock.destinations.contract import (
    Capabilities,
    JobRunner,
    MaintenanceReport,
    TableCommit,
    WritePlan,
    WrittenPart,
)
from penstock.destinations.memory_tables import (
    MemoryCatchup,
    MemoryCopy,
    MemoryPart,
    MemoryPlan,
    MemoryStore,
    SharedTable,
    StoredTable,
    conformed,
    living_rows,
    ours,
    require_lineage,
    share,
    structure_of,
)
from penstock.destinations.structure import OnDrop, numbered
from penstock.destinations.union import require_same_names
from penstock.errors import (
    FilesLost,
    FileUnreadable,
    OtherLayout,
    PenstockError,
    PositionLost,
    RangeVoid,
    SchemaChanged,
    StaleBase,
    TableDropped,
    TableError,
)
from penstock.fold.layout import ROWS, Layout
from penstock.model.feed import Mode, Sid
from penstock.model.position import Position, position_text
from penstock.model.table import TableId, TableSchema
from penstock.model.type_map import WIDEST


class MemoryDestination:
    """`whole_batches`: commit the tables of a batch in one step."""

    capabilities = Capabilities(modes=frozenset(Mode), maintained=False, bookmarks=True, types=WIDEST)

    def __init__(self, name: str = "memory", store: MemoryStore | None = None, *, whole_batches: bool = False) -> None:
        self.name = name
        if whole_batches:
            self.capabilities = replace(self.capabilities, whole_batches=True)
        self.store = store if store is not None else MemoryStore()
        # By the table as the source has it: where it stood when its copy was planned, the structure that this brings
        self._replaced_at: dict[TableId, Position | None] = {}
        self._becomes: dict[TableId, tuple[TableSchema, OnDrop]] = {}
        self._layouts: dict[TableId, Layout] = {}  # as they were asked for; a table's own is that of its rows

    def open(self) -> None:
        """Nothing to open."""

    def close(self) -> None:
        """Nothing to close."""

    def rows(self, target: TableId) -> pa.Table:
        """Return what a reader sees."""
        shared = self.store.shared.get(target)
        if shared is None:
            return self.store.tables[target].rows
        return pa.concat_tables(
            [shared.columns.empty_table()]
            + [
                conformed(self.store.tables[share(target, source)].rows, shared.columns, {sid.column: sid.value})
                for source, sid in shared.sids.items()
            ]
        )

    def ensure_table(
        self,
        target: TableId,
        schema: TableSchema,
        source: str,
        start: Position | None,
        keep: Sequence[WrittenPart] = (),
        layout: Layout = ROWS,
        sid: Sid | None = None,
    ) -> Position | None:
        layout.require_room(layout.kept(schema))
        if sid is not None:
            self._take_in(target, schema, source, layout, sid)
            target = share(target, source)
        table = self.store.tables.get(target)
        if table is None:
            schema = numbered(schema)
            positions = {} if start is None else {source: start}
            copying = frozenset([source] if start is None else [])
            kept = layout.kept(schema)
            numbers = {column.name: column.number for column in kept.columns}
            empty = layout.columns(arrow_schema(kept)).empty_table()
            table = StoredTable(schema, numbers, empty, positions, copying, layout=layout)
            self.store.tables[target] = table
        if table.layout.to_json() != layout.to_json():
            raise OtherLayout(f"table {target} was made for another mode", f"Drop {target} to start again")
        self._layouts[target] = layout
        if source not in table.positions and source not in table.copying:
            raise PositionLost(
                f"table {target} holds no position of {source}", f"Drop {target} or give it another target"
            )
        return table.positions.get(source)

    def _take_in(self, target: TableId, schema: TableSchema, source: str, layout: Layout, sid: Sid) -> None:
        """Make the source one of those that feed the table."""
        columns = layout.columns(arrow_schema(layout.kept(schema)))
        if sid.column in columns.names:
            raise SchemaChanged(f"table {target}: the source has a column {sid.column}", "Set another `sid_column`")
        if target in self.store.tables:
            raise SchemaChanged(f"table {target} was not made for several sources", f"Drop {target}")
        shared = self.store.shared.get(target)
        if shared is None:
            type = pa.string() if isinstance(sid.value, str) else pa.int64()
            key = layout.kept(schema).key if layout.has_identifiers else ()
            marked = frozenset([sid.column, *key] if key else [])
            shared = SharedTable(columns.insert(0, pa.field(sid.column, type, nullable=False)), marked, layout)
            self.store.shared[target] = shared
        elif source not in shared.sids and all(one.family != sid.family for one in shared.sids.values()):
            raise PositionLost(f"table {target} holds no position of {source}", f"Drop {target}")
        if source not in shared.sids:
            shared.columns = shared.unite(target, layout.kept(schema), sid, self.capabilities.types)
            shared.sids[source] = sid
            shared.turns.append((id(self), source))

    def _key(self, target: TableId, source: str) -> TableId:
        """Return where the store has what the source has of the table."""
        return target if target not in self.store.shared else share(target, source)

    def _stored(self, target: TableId, source: str) -> StoredTable:
        """Return what the store has of the source's table. TableDropped when it has none any more."""
        table = self.store.tables.get(self._key(target, source))
        if table is None:
            raise TableDropped(
                f"table {target} was dropped at the destination", "Nothing: it is copied again by itself"
            )
        return table

    def _united(self, target: TableId, source: str, schema: TableSchema | None) -> None:
        """SchemaChanged when the table cannot take what the source has become."""
        shared = self.store.shared.get(target)
        if shared is not None and schema is not None:
            shared.unite(target, shared.layout.kept(schema), shared.sids[source], self.capabilities.types)

    def position(self, target: TableId, source: str) -> Position | None:
        table = self.store.tables.get(self._key(target, source))
        return None if table is None else table.positions.get(source)

    def history(self, target: TableId, source: str) -> str:
        table = self.store.tables.get(self._key(target, source))
        return "" if table is None else table.histories.get(source, "")

    def structure(self, target: TableId, source: str) -> TableSchema:
        table = self._stored(target, source)
        require_lineage(target, table)
        return table.structure

    def rule(self, target: TableId, source: str) -> str | None:
        return self.store.tables[self._key(target, source)].layout.rule or None

    def drop_table(self, target: TableId, source: str) -> None:
        table = self.store.tables.get(target)
        shared = target in self.store.shared
        if shared or (table is not None and {source} != {*table.positions, *table.copying}):
            raise TableError(f"table {target} has rows of others", f"Drop {target} yourself")
        self.store.tables.pop(target, None)

    def plan(
        self,
        target: TableId,
        source: str,
        schema: TableSchema | None = None,
        on_drop: OnDrop = "keep",
        *,
        thorough: bool = False,
        presumed: bool = False,
    ) -> MemoryPlan:
        table, shared = self._stored(target, source), self.store.shared.get(target)
        if source not in table.positions:
            raise PositionLost(f"table {target} holds no position of {source}", "It is copied first")
        require_lineage(target, table)
        if shared is not None:
            require_same_names(target, table.structure, schema)
        self._united(target, source, schema)
        evolved = table.evolved(schema, on_drop, self.capabilities.types)
        turns = 0 if shared is None else len(shared.turns)
        return MemoryPlan(target, source, table.positions[source], evolved, turns)

    def commit(
        self,
        plan: WritePlan,
        parts: Sequence[WrittenPart],
        *,
        truncated: bool,
        position: Position,
        moment: int | None = None,
    ) -> None:
        base = self._require_base(plan)
        table, rows = _written(base, ours(parts), moment, truncated=truncated)
        self._replace(plan.target, plan.source, table, rows, position, parts)

    def _require_base(self, plan: WritePlan) -> MemoryPlan:
        """Return the plan if its base is what the table is; StaleBase otherwise."""
        if not isinstance(plan, MemoryPlan):
            raise TypeError(f"{type(plan).__name__} is not a plan of a committed table")
        table, shared = plan.base, self.store.shared.get(plan.target)
        foreign = shared is not None and any(driver != id(self) for driver, _ in shared.turns[plan.turns :])
        there = self.store.tables.get(self._key(plan.target, plan.source))
        if foreign or there is None or table.version != there.version:
            raise StaleBase(f"table {plan.target} has changed since its state was read", "The batch is redone")
        return plan

    def commit_batch(self, commits: Sequence[TableCommit]) -> list[TableError | None]:
        bases = [self._require_base(one.plan) for one in commits]
        outcomes: list[TableError | None] = []
        made: list[tuple[TableCommit, StoredTable, pa.Table]] = []
        for base, one in zip(bases, commits, strict=True):
            try:
                refusal = self.store.refusals.get(base.target)
                if refusal is not None:
                    raise refusal
                made.append((one, *_written(base, ours(one.parts), one.moment, truncated=one.truncated)))
                outcomes.append(None)
            except TableError as error:
                outcomes.append(error)
        for one, table, rows in made:
            self._replace(one.plan.target, one.plan.source, table, rows, one.position, one.parts)
        return outcomes

    def plan_after(
        self, plan: WritePlan, parts: Sequence[WrittenPart], *, position: Position, moment: int | None = None
    ) -> MemoryPlan | None:
        if not isinstance(plan, MemoryPlan):
            raise TypeError(f"{type(plan).__name__} is not a plan of a committed table")
        if plan.target in self.store.shared:
            return None
        table, rows = _written(plan, ours(parts), moment)
        after = table.after(rows, plan.source, position, ours(parts))
        return MemoryPlan(plan.target, plan.source, position, after, plan.turns)

    def plan_copy(
        self, target: TableId, source: str, schema: TableSchema | None = None, on_drop: OnDrop = "keep"
    ) -> MemoryCopy:
        key = self._key(target, source)
        structure = schema or self._stored(target, source).structure
        self._united(target, source, structure)
        self._replaced_at[key] = self.position(target, source)
        self._becomes[key] = structure, on_drop
        self._stored(target, source)
        return MemoryCopy(target, arrow_schema(self._layouts[key].kept(structure)))

    def plan_catchup(
        self, target: TableId, source: str, base: Sequence[WrittenPart], position: Position
    ) -> MemoryCatchup:
        key = self._key(target, source)
        structure, _ = self._becomes[key]
        kept = self._layouts[key].kept(structure)
        return MemoryCatchup(target, source, position, arrow_schema(kept), kept.key, tuple(ours(base)))

    def commit_copy(
        self, target: TableId, source: str, parts: Sequence[WrittenPart], position: Position, history: str = ""
    ) -> None:
        key = self._key(target, source)
        table, written = self._stored(target, source), ours(parts)
        self._require_copied_over(target, source)
        structure, on_drop = self._becomes[key]
        layout = self._layouts[key]
        if any(structure_of(part) != arrow_schema(layout.kept(structure)) for part in written if part.rows):
            raise RangeVoid(f"table {target}: parts of its copy are of another structure", "It is copied again")
        empty = replace(table, rows=table.schema.empty_table(), strayed=False).copied(source, history)
        emptied = empty.evolved(structure, on_drop, self.capabilities.types, layout)
        rows = emptied.with_rows(*(part.upserts.take(pa.array(living_rows(part, written))) for part in written))
        self._replace(target, source, emptied, rows, position, parts)

    def plan_merge(self, target: TableId, source: str) -> MemoryPlan:
        key, shared = self._key(target, source), self.store.shared.get(target)
        table, turns = self._stored(target, source), 0 if shared is None else len(shared.turns)
        evolved = table.evolved(*self._becomes[key], self.capabilities.types)
        return MemoryPlan(target, source, table.positions.get(source, 0), evolved, turns)

    def commit_merge(
        self,
        plan: WritePlan,
        parts: Sequence[WrittenPart],
        position: Position,
        moment: int | None = None,
        history: str = "",
    ) -> None:
        self._require_copied_over(plan.target, plan.source)
        self.commit(plan, parts, truncated=False, position=position, moment=moment)
        key = self._key(plan.target, plan.source)
        table = replace(self.store.tables[key], strayed=False, layout=self._layouts[key])
        self.store.tables[key] = table.copied(plan.source, history)

    def _require_copied_over(self, target: TableId, source: str) -> None:
        if self.position(target, source) != self._replaced_at[self._key(target, source)]:
            raise StaleBase(
                f"table {target} has moved since its copy was planned", "Its copy goes on over its new state"
            )

    def part_from_json(self, text: str) -> MemoryPart:
        return MemoryPart.from_json(text)

    def parts_intact(self, parts: Sequence[WrittenPart]) -> list[bool]:
        return [part.name not in self.store.discarded for part in ours(parts)]

    def advance(self, target: TableId, source: str, expected: Position, position: Position) -> None:
        table = self._stored(target, source)
        require_lineage(target, table)
        if table.positions.get(source) != expected:
            raise StaleBase(f"table {target} is not at {position_text(expected)}", "Its position is read again")
        if position == expected:
            return
        self._replace(target, source, table, table.rows, position)

    def bookmark(self, target: TableId, source: str, name: str) -> str:
        self.store.bookmarks[target, name] = self.rows(target)
        return name

    def release(self, target: TableId, source: str, name: str) -> None:
        self.store.bookmarks.pop((target, name), None)

    def maintain(self, target: TableId, source: str, run: JobRunner) -> MaintenanceReport:
        return MaintenanceReport()

    def discard(self, parts: Sequence[WrittenPart]) -> None:
        self.store.discarded.update(part.name for part in ours(parts))

    def diagnose(self, target: TableId, source: str, error: FileUnreadable) -> PenstockError:
        """Return the error itself: a store in memory always answers."""
        return FilesLost(f"table {target}: {error.what}", f"Copy it again: penstock resync FILE {target}")

    def _replace(
        self,
        target: TableId,
        source: str,
        table: StoredTable,
        rows: pa.Table,
        position: Position,
        parts: Sequence[WrittenPart] = (),
    ) -> None:
        shared = self.store.shared.get(target)
        if shared is not None:
            kept, sid = table.layout.kept(table.structure), shared.sids[source]
            shared.columns = shared.unite(target, kept, sid, self.capabilities.types)
            if RESCUED in rows.column_names and RESCUED not in shared.columns.names:
                shared.columns = shared.columns.append(rows.schema.field(RESCUED))
            shared.turns.append((id(self), source))
        self.store.tables[self._key(target, source)] = table.after(rows, source, position, ours(parts))


def _written(
    plan: MemoryPlan, parts: Sequence[MemoryPart], moment: int | None, *, truncated: bool = False
) -> tuple[StoredTable, pa.Table]:
    """Return the plan's table, and the rows that it has with the parts."""
    table = plan.base
    rows = table.schema.empty_table() if truncated else table.rows
    if not truncated and any(part.removed is not None for part in parts):
        alive = np.ones(rows.num_rows, bool)
        for part in parts:
            alive[[] if part.removed is None else part.removed] = False
        rows = rows.filter(pa.array(alive))
    elif not truncated and (keys := table.keys()) is not None:
        alive, may_end = np.ones(len(keys), bool), table.is_open()
        for part in parts:
            if part.touched_keys is not None:
                alive &= ~(may_end & np.asarray(pc.is_in(keys, value_set=part.touched_keys)))
        rows = rows.filter(pa.array(alive))
    if moment is not None:
        table = replace(table, moments={**table.moments, plan.source: moment})
    return table, replace(table, rows=rows).with_rows(*(part.upserts for part in parts))
