"""The Iceberg destination: the contract's driver side, over `tables`, `structure_change`, `commit`, `maintenance`.

Every change of ours is a strict transaction (`commit`); the position is a table property, because compaction and
expiry drop what is in snapshots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from penstock.destinations.contract import (
    BOOKMARKS_LAST,
    Capabilities,
    JobRunner,
    MaintenanceReport,
    TableCommit,
    WritePlan,
    WrittenPart,
)
from penstock.destinations.iceberg.batch_change import BatchChange
from penstock.destinations.iceberg.catalog import IcebergSettings, database
from penstock.destinations.iceberg.commit import carried_on, note_turn, strict
from penstock.destinations.iceberg.data_files import ICEBERG
from penstock.destinations.iceberg.group_commit import GroupCommit
from penstock.destinations.iceberg.java import Java, JavaObject, present, translated
from penstock.destinations.iceberg.lost_files import Diagnosis
from penstock.destinations.iceberg.maintenance import compact, expire
from penstock.destinations.iceberg.open_table import (
    OpenTable,
    Standing,
    copy_base,
    live,
    moment_of,
    position_of,
    position_property,
)
from penstock.destinations.iceberg.orphan_sweep import still_unknown, unknown
from penstock.destinations.iceberg.structure_change import move_again, move_to, rescued_for
from penstock.destinations.iceberg.tables import Tables, require_lineage
from penstock.destinations.iceberg.type_map import ICEBERG_TYPES
from penstock.destinations.lake.background_work import BackgroundWork
from penstock.destinations.lake.compaction_tasks import shape_of
from penstock.destinations.lake.copy_plan import LakeCopyPlan
from penstock.destinations.lake.file_list import LiveFile, TableState
from penstock.destinations.lake.orphan_sweep import sweep
from penstock.destinations.lake.planning import (
    batch_plan,
    copy_plan,
    lake_parts,
    plan_after,
    replay_plan,
    require_joinable,
)
from penstock.destinations.lake.properties import copied_under, history_property, rule_property
from penstock.destinations.lake.row_instances import require_positions
from penstock.destinations.lake.storage import reaching, remove, sizes
from penstock.destinations.lake.upsert_plan import LakePart, UpsertPlan
from penstock.destinations.lake.warehouse import require_warehouse
from penstock.destinations.spark_session import Session
from penstock.destinations.structure import OnDrop
from penstock.errors import (
    FileUnreadable,
    PenstockError,
    RangeVoid,
    StaleBase,
    TableDropped,
    TableError,
)
from penstock.fold.layout import ROWS, Layout
from penstock.model.feed import Mode, Sid
from penstock.model.position import Position, position_text, stored_text
from penstock.model.table import TableId, TableSchema


class IcebergDestination:
    capabilities = Capabilities(modes=frozenset(Mode), maintained=True, bookmarks=True, types=ICEBERG_TYPES)

    def __init__(self, settings: IcebergSettings, spark: Session, *, index: Path) -> None:
        """`index` is the folder of key indexes: a cache, this pipeline's own."""
        self.name = settings.name
        self._settings = settings
        self._java = Java(spark)
        self._tables = Tables(settings, spark, self._java, index=index)
        self._background = BackgroundWork()
        self._diagnosis = Diagnosis(self._tables, settings, self._java)
        self._group: GroupCommit | None = None

    def open(self) -> None:
        self._tables.open_catalog()
        if self._group is None:
            operations = self._group_operations()
            self._group = None if operations is None else GroupCommit(self._java, self._tables, operations)
        self.capabilities = replace(self.capabilities, whole_batches=self._group is not None)

    def _group_operations(self) -> JavaObject | None:
        """Return what commits several tables in one step, if the catalog can."""
        where = database(self._settings)
        if where is not None:
            return self._java.group_operations(where[0], self._settings.name, where[1])
        return self._tables.group_operations()

    def close(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None
        self._background.close()
        self._tables.forget()

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
        kept = [file.path for part in lake_parts(keep) for file in part.files]
        return self._tables.ensure(target, schema, source, start=start, keep=kept, layout=layout, sid=sid)

    def position(self, target: TableId, source: str) -> Position | None:
        with translated(f"table {target}: its position cannot be read"):
            table = self._tables.load(target)
            return None if table is None else position_of(table.operations().current(), source)

    def history(self, target: TableId, source: str) -> str:
        with translated(f"table {target}: its history cannot be read"):
            metadata = self._tables.known(target, source).operations.current()
            return str(metadata.properties().get(history_property(source)) or "")

    def structure(self, target: TableId, source: str) -> TableSchema:
        opened, _ = self._tables.current(target, source)
        require_lineage(opened)
        return opened.following.schema

    def rule(self, target: TableId, source: str) -> str | None:
        with translated(f"table {target}: its rule cannot be read"):
            properties = self._tables.known(target, source).operations.current().properties()
            return properties.get(rule_property(source)) or None

    def drop_table(self, target: TableId, source: str) -> None:
        self._tables.drop(target, source)

    def plan(
        self,
        target: TableId,
        source: str,
        schema: TableSchema | None = None,
        on_drop: OnDrop = "keep",
        *,
        thorough: bool = False,
        presumed: bool = False,
    ) -> UpsertPlan:
        known = self._tables.presumed if presumed else self._tables.current
        opened, state = known(target, source)
        require_lineage(opened)
        plan, position = self._planned(opened, state, schema, on_drop)
        opened.look_again = True  # unless this plan is committed
        require_joinable(opened, plan, position, schema)
        return replace(plan, thorough=thorough)

    def _planned(
        self, opened: OpenTable, state: TableState, schema: TableSchema | None, on_drop: OnDrop
    ) -> tuple[UpsertPlan, Position | None]:
        standing = self._standing(opened, state)
        move = move_to(self._java, opened, schema, on_drop)
        rescued = standing.rescued
        if move is not None:
            with translated(f"table {opened.target}: its columns cannot be read"):
                rescued = rescued_for(self._java, opened, move)
        index = self._tables.index_of(opened, move)
        if index.row:
            require_positions(opened.target, state.deletes)
        plan = batch_plan(
            opened,
            state,
            table_format=ICEBERG,
            position=standing.position,
            moment=standing.moment,
            rescued=rescued,
            index=index,
            move=move,
        )
        return plan, standing.position

    def _standing(self, opened: OpenTable, state: TableState) -> Standing:
        """Return what the metadata file of the table's state says."""
        if opened.standing is None or opened.standing.metadata != state.metadata:
            with translated(f"table {opened.target}: its position and columns cannot be read"):
                metadata = present(opened.operations.current(), opened.target)
                position, moment = position_of(metadata, opened.source), moment_of(metadata, opened.source)
                rescued = rescued_for(self._java, opened, None)
            opened.standing = Standing(state.metadata, position, moment, rescued)
        return opened.standing

    def commit(
        self,
        plan: WritePlan,
        parts: Sequence[WrittenPart],
        *,
        truncated: bool,
        position: Position,
        moment: int | None = None,
    ) -> None:
        require_warehouse(self._settings)
        change = BatchChange.of(self._tables, plan, parts, truncated=truncated, position=position, moment=moment)
        self._commit(change)

    def commit_batch(self, commits: Sequence[TableCommit]) -> Sequence[TableError | FileUnreadable | None]:
        require_warehouse(self._settings)
        changes = [
            BatchChange.of(
                self._tables,
                one.plan,
                one.parts,
                truncated=one.truncated,
                position=one.position,
                moment=one.moment,
            )
            for one in commits
        ]
        if self._group is not None and len(changes) >= self._group.least:
            return self._group.commit(changes)
        return [self._error_of(change) for change in changes]

    def _error_of(self, change: BatchChange) -> TableError | FileUnreadable | None:
        try:
            self._commit(change)
        except (TableError, FileUnreadable) as error:
            return error
        return None

    def _commit(self, change: BatchChange) -> None:
        opened, what = change.opened, change.what
        with strict(self._java, opened, change.base, what, same_columns=change.same_columns) as transaction:
            change.fill(transaction, mark=self._tables.mark)
        change.settle(self._java, self._tables, columns_changed=transaction.columns_changed)

    def plan_after(
        self, plan: WritePlan, parts: Sequence[WrittenPart], *, position: Position, moment: int | None = None
    ) -> UpsertPlan | None:
        if not isinstance(plan, UpsertPlan):
            raise TypeError(f"{type(plan).__name__} is not a plan of {type(self).__name__}")
        opened = self._tables.known(plan.target, plan.source)
        written = [part for part in lake_parts(parts) if not part.empty]

        def files(sequence: int) -> list[LiveFile]:
            return [live(file, sequence, opened) for part in written for file in part.files]

        gets_rescued = opened.rescued is None and any(part.rescued_as for part in written)
        return plan_after(opened, plan, position=position, moment=moment, gets_rescued=gets_rescued, files=files)

    def plan_copy(
        self, target: TableId, source: str, schema: TableSchema | None = None, on_drop: OnDrop = "keep"
    ) -> LakeCopyPlan:
        opened, _ = self._tables.current(target, source)
        with translated(f"table {target}: its position cannot be read"):
            opened.copy_base = copy_base(present(opened.operations.current(), target), source, opened.fence)
        opened.copy_move = move = move_to(self._java, opened, schema, on_drop, copied=True)
        with translated(f"table {target}: its columns cannot be read"):
            rescued = rescued_for(self._java, opened, move)
        return copy_plan(opened, table_format=ICEBERG, rescued=rescued, index=self._tables.index_of(opened, move))

    def plan_catchup(self, target: TableId, source: str, base: Sequence[WrittenPart], position: Position) -> UpsertPlan:
        opened = self._tables.known(target, source)
        with translated(f"table {target}: its columns cannot be read"):
            rescued = rescued_for(self._java, opened, opened.copy_move)
        return replay_plan(
            opened,
            lake_parts(base),
            position,
            table_format=ICEBERG,
            rescued=rescued,
            index=self._tables.index_of(opened, opened.copy_move),
        )

    def commit_copy(
        self, target: TableId, source: str, parts: Sequence[WrittenPart], position: Position, history: str = ""
    ) -> None:
        what = f"table {target}: the commit of its copy"
        written = [part for part in lake_parts(parts) if not part.empty]
        opened, state = self._tables.current(target, source)
        self._require_copied_over(opened, source, what)
        move = move_again(self._java, opened, written)
        with strict(self._java, opened, state.metadata, what, same_columns=move is not None) as transaction:
            if move is not None:
                transaction.evolve(move, source)
            transaction.rescue(written, RangeVoid)
            if written or state.data or state.deletes or self._tables.mark:
                transaction.replace_by_copy(written)
            standing = {position_property(source): stored_text(position)}
            transaction.stand({**standing, **copied_under(source, opened.layout, history)})
        opened.upkeep.commits_since_expiry += 1
        opened.strayed = ""
        opened.copy_base = opened.copy_move = None
        self._tables.follow(opened, move)
        opened.state = carried_on(self._java, opened, state, [file for part in written for file in part.files], None)
        self._tables.clean_up_after_copy(opened)

    def plan_merge(self, target: TableId, source: str) -> UpsertPlan:
        opened, state = self._tables.current(target, source)
        planned_for = opened.copy_move
        if planned_for is None:
            return self._planned(opened, state, None, "keep")[0]
        return self._planned(opened, state, planned_for.schema, planned_for.on_drop)[0]

    def commit_merge(
        self,
        plan: WritePlan,
        parts: Sequence[WrittenPart],
        position: Position,
        moment: int | None = None,
        history: str = "",
    ) -> None:
        opened, _ = self._tables.current(plan.target, plan.source)
        self._require_copied_over(opened, plan.source, f"table {plan.target}: the commit of its copy")
        require_warehouse(self._settings)
        copied = copied_under(opened.source, opened.layout, history)
        change = BatchChange.of(
            self._tables, plan, parts, truncated=False, position=position, moment=moment, copied=copied
        )
        self._commit(change)
        opened.copy_base = opened.copy_move = None
        self._tables.clean_up_after_copy(opened)

    def _require_copied_over(self, opened: OpenTable, source: str, what: str) -> None:
        """StaleBase if another driver has taken the table over since its copy was planned."""
        with translated(what):
            base = copy_base(present(opened.operations.current(), opened.target), source, opened.fence)
        if base != opened.copy_base:
            raise StaleBase(f"{what}: another driver has taken the table over", "The copy is looked at again")

    def part_from_json(self, text: str) -> LakePart:
        return LakePart.from_json(text)

    def parts_intact(self, parts: Sequence[WrittenPart]) -> list[bool]:
        with reaching("the files of a copy cannot be looked at"):
            return [
                sizes([file.path for file in part.files]) == [file.size for file in part.files]
                for part in lake_parts(parts)
            ]

    def advance(self, target: TableId, source: str, expected: Position, position: Position) -> None:
        what = f"table {target}: advancing its position"
        opened, state = self._tables.current(target, source)
        require_lineage(opened)
        with translated(what):
            found = position_of(present(opened.operations.current(), target), source)
        if found != expected:
            raise StaleBase(f"{what}: it is not at {position_text(expected)}", "Its position is read again")
        if position == expected:
            return
        with strict(self._java, opened, state.metadata, what) as transaction:
            if self._tables.mark:
                transaction.mark()
            transaction.stand({position_property(source): stored_text(position)})
        opened.state = carried_on(self._java, opened, state)

    def bookmark(self, target: TableId, source: str, name: str) -> str:
        """Make an Iceberg tag, and return its name: neither our expiry nor anybody else's removes what it names."""
        with self._tables.known(target, source).turns.lock:
            opened, state = self._tables.current(target, source)
            if state.snapshot is None:
                return ""
            with translated(f"table {target}: its contents cannot be tagged"):
                tagging = opened.table.manageSnapshots().createTag(name, state.snapshot)
                tagging.setMaxRefAgeMs(name, int(BOOKMARKS_LAST * 1000)).commit()
                opened.look_again = True
                note_turn(opened, state.metadata, columns=False)
        return str(state.snapshot)

    def release(self, target: TableId, source: str, name: str) -> None:
        opened = self._tables.known(target, source)
        try:
            with opened.turns.lock, translated(f"table {target}: its tag {name} cannot be removed"):
                metadata = present(opened.operations.refresh(), target)
                if opened.table.refs().containsKey(name):
                    opened.table.manageSnapshots().removeTag(name).commit()
                    opened.look_again = True
                    note_turn(opened, metadata.metadataFileLocation(), columns=False)
        except (StaleBase, TableDropped):
            return  # somebody else has removed it meanwhile, or the table

    def maintain(self, target: TableId, source: str, run: JobRunner) -> MaintenanceReport:
        require_warehouse(self._settings)
        tables, opened, settings = self._tables, self._tables.known(target, source), self._settings.maintenance
        if opened.strayed:
            return MaintenanceReport()  # a commit of ours would count as our lineage, an expiry take what was ours
        index, marker = tables.index_of(opened), tables.swept_marker(opened)
        swept = sweep(
            opened,
            search=lambda: unknown(self._java, opened, lambda: tables.load(target), settings.sweep_age),
            shut_out=lambda left: still_unknown(self._java, opened, left, mark=tables.mark),
            settings=settings,
            background=self._background,
            marker=marker,
        )
        choice = compact(self._java, opened, index=index, settings=settings, run=run, background=self._background)
        index.remove([file.path for file in choice.data])
        expired = expire(self._java, opened, settings)
        if expired and opened.state is not None and opened.upkeep.merging is None:
            index.remove_all_but([file.path for file in opened.state.data])
        snapshots = 0 if opened.state is None else opened.state.snapshots
        shape = shape_of(opened, snapshots=snapshots, as_read=lambda state: state)
        return MaintenanceReport(len(choice.data), len(choice.deletes), expired, swept, shape)

    def discard(self, parts: Sequence[WrittenPart]) -> None:
        with reaching("files that will not be committed cannot be removed"):
            for part in lake_parts(parts):
                for file in part.files:
                    remove(file.path)

    def diagnose(self, target: TableId, source: str, error: FileUnreadable) -> PenstockError:
        return self._diagnosis.of(target, error)


def make_tables(settings: IcebergSettings, spark: Session, index: Path) -> IcebergDestination:
    """Make the destination that a section of the pipeline file describes."""
    return IcebergDestination(settings, spark, index=index)
