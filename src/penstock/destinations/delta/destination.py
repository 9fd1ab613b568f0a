"""The Delta destination: the contract's driver side, over `tables`, `evolution`, `commit` and `maintenance`.

Every change of ours is one entry of the table's log, put there only if nobody has added to the log since the base was
read; rows, dead rows, structure and position are in it together. No Spark is needed for any of it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from penstock.destinations.contract import Capabilities, JobRunner, MaintenanceReport, WritePlan, WrittenPart
from penstock.destinations.delta.commit import Entry, require_base
from penstock.destinations.delta.evolution import move_again, move_to, structure_after
from penstock.destinations.delta.leftovers import still_unknown, unknown
from penstock.destinations.delta.lost_files import Diagnosis
from penstock.destinations.delta.maintenance import as_read, compact, expire
from penstock.destinations.delta.open_table import OpenTable, require_lineage
from penstock.destinations.delta.tables import Tables
from penstock.destinations.delta.type_map import DELTA_TYPES
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
from penstock.destinations.lake.settings import LakeSettings
from penstock.destinations.lake.storage import reaching, remove, sizes
from penstock.destinations.lake.upsert_plan import LakePart, UpsertPlan
from penstock.destinations.lake.warehouse import require_warehouse
from penstock.destinations.spark_session import Session
from penstock.destinations.structure import OnDrop
from penstock.errors import FileUnreadable, PenstockError, RangeVoid, StaleBase
from penstock.fold.layout import ROWS, Layout
from penstock.model.feed import Mode, Sid
from penstock.model.position import Position, position_text
from penstock.model.table import TableId, TableSchema


class DeltaDestination:
    capabilities = Capabilities(modes=frozenset(Mode), maintained=True, bookmarks=True, types=DELTA_TYPES)

    def __init__(self, settings: LakeSettings, *, index: Path) -> None:
        """`index` is the folder of key indexes: a cache, this pipeline's own."""
        self.name = settings.name
        self._settings = settings
        self._tables = Tables(settings, index=index)
        self._background = BackgroundWork()
        self._diagnosis = Diagnosis(self._tables, settings)

    def open(self) -> None:
        self._tables.open_warehouse()

    def close(self) -> None:
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
        kept = [file.path for part in lake_parts(keep) for file in part.added]
        return self._tables.ensure(target, schema, source, start=start, keep=kept, layout=layout, sid=sid)

    def position(self, target: TableId, source: str) -> Position | None:
        return self._tables.position(target, source)

    def history(self, target: TableId, source: str) -> str:
        return self._tables.known(target, source).log.state.configuration.get(history_property(source)) or ""

    def structure(self, target: TableId, source: str) -> TableSchema:
        opened, _ = self._tables.current(target, source)
        require_lineage(opened)
        return opened.following.schema

    def rule(self, target: TableId, source: str) -> str | None:
        return self._tables.known(target, source).log.state.configuration.get(rule_property(source)) or None

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
        move = move_to(opened, schema, on_drop)
        structure = structure_after(opened, move)
        plan = batch_plan(
            opened,
            state,
            table_format=structure.table_format(opened.root),
            position=opened.position,
            moment=opened.moment,
            rescued=structure.rescued(),
            index=self._tables.index_of(opened, move),
            move=move,
        )
        return plan, opened.position

    def commit(
        self,
        plan: WritePlan,
        parts: Sequence[WrittenPart],
        *,
        truncated: bool,
        position: Position,
        moment: int | None = None,
    ) -> None:
        self._commit(plan, parts, truncated, position, moment)

    def _commit(
        self,
        plan: WritePlan,
        parts: Sequence[WrittenPart],
        truncated: bool,
        position: Position,
        moment: int | None,
        *,
        copied: Mapping[str, str] | None = None,
    ) -> None:
        """Commit the parts. `copied` are the properties that a merged copy sets."""
        if not isinstance(plan, UpsertPlan):
            raise TypeError(f"{type(plan).__name__} is not a plan of {type(self).__name__}")
        require_warehouse(self._settings)
        written = [part for part in lake_parts(parts) if not part.empty]
        opened, what = self._tables.known(plan.target, plan.source), f"table {plan.target}: its commit"
        with opened.turns.lock:
            require_base(opened, opened.base_of(plan), what, same_columns=plan.move is not None)
            entry = Entry(opened)
            if plan.move is not None:
                entry.evolve(plan.move)
            entry.rescue(written)
            with reaching(f"{what} cannot be written"):
                if truncated:
                    entry.replace(written)
                else:
                    entry.change(written)
            entry.set_properties(copied or {})
            entry.stand(position, moment)
            entry.put("STREAMING UPDATE", what)
            opened.upkeep.commits_since_expiry += 1
            opened.strayed = ""
            if plan.move is not None or entry.columns_changed:
                self._tables.follow(opened, plan.move)
            opened.state = after = opened.read_state()
            opened.look_again, opened.committed = False, (plan.name, after)

    def plan_after(
        self, plan: WritePlan, parts: Sequence[WrittenPart], *, position: Position, moment: int | None = None
    ) -> UpsertPlan | None:
        if not isinstance(plan, UpsertPlan):
            raise TypeError(f"{type(plan).__name__} is not a plan of {type(self).__name__}")
        opened = self._tables.known(plan.target, plan.source)
        written = [part for part in lake_parts(parts) if not part.empty]
        comes = opened.structure.with_rescued() is not opened.structure
        gets_rescued = comes and any(part.rescued_as for part in written)
        now = int(time.time() * 1000)

        def files(_: int) -> list[LiveFile]:
            added = [file for part in written for file in part.added]
            data = [LiveFile(file.path, file.records, file.size, now, "data", 0) for file in added]
            dead = [part.delete for part in written if part.delete is not None]
            return [*data, *(LiveFile(one.path, one.records, 0, now, "position-deletes", 0, one.hits) for one in dead)]

        return plan_after(opened, plan, position=position, moment=moment, gets_rescued=gets_rescued, files=files)

    def plan_copy(
        self, target: TableId, source: str, schema: TableSchema | None = None, on_drop: OnDrop = "keep"
    ) -> LakeCopyPlan:
        opened, _ = self._tables.current(target, source)
        opened.copy_base = opened.copy_base_now()
        opened.copy_move = move = move_to(opened, schema, on_drop, copied=True)
        structure = structure_after(opened, move)
        return copy_plan(
            opened,
            table_format=structure.table_format(opened.root),
            rescued=structure.rescued(),
            index=self._tables.index_of(opened, move),
        )

    def plan_catchup(self, target: TableId, source: str, base: Sequence[WrittenPart], position: Position) -> UpsertPlan:
        opened = self._tables.known(target, source)
        structure = structure_after(opened, opened.copy_move)
        return replay_plan(
            opened,
            lake_parts(base),
            position,
            table_format=structure.table_format(opened.root),
            rescued=structure.rescued(),
            index=self._tables.index_of(opened, opened.copy_move),
        )

    def commit_copy(
        self, target: TableId, source: str, parts: Sequence[WrittenPart], position: Position, history: str = ""
    ) -> None:
        what = f"table {target}: the commit of its copy"
        written = [part for part in lake_parts(parts) if not part.empty]
        with self._tables.known(target, source).turns.lock:
            opened, _ = self._tables.current(target, source)
            _require_copied_over(opened, what)
            self._require_intact(target, written)
            move = move_again(opened, written)
            entry = Entry(opened)
            if move is not None:
                entry.evolve(move)
            entry.rescue(written, RangeVoid)
            with reaching(f"{what} cannot be written"):
                entry.replace(written)
            entry.set_properties(copied_under(opened.source, opened.layout, history))
            entry.stand(position)
            entry.put("WRITE", what)
            opened.upkeep.commits_since_expiry += 1
            opened.strayed = ""
            opened.copy_base = opened.copy_move = None
            self._tables.follow(opened, move)
            self._tables.clean_up_after_copy(opened)

    def _require_intact(self, target: TableId, parts: Sequence[LakePart]) -> None:
        """Raise RangeVoid if files of a copy are gone.

        Somebody's VACUUM takes what no entry names, and ours keeps tombstones for an hour only.
        """
        if not all(self.parts_intact(parts)):
            raise RangeVoid(
                f"table {target}: files of its copy are gone: somebody else cleaned up the table's folder (VACUUM?)",
                "What was read of it is void; its copy starts again by itself",
            )

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
        with self._tables.known(plan.target, plan.source).turns.lock:
            opened, _ = self._tables.current(plan.target, plan.source)
            _require_copied_over(opened, f"table {plan.target}: the commit of its copy")
            self._commit(
                plan, parts, False, position, moment, copied=copied_under(opened.source, opened.layout, history)
            )
            opened.copy_base = opened.copy_move = None
            self._tables.clean_up_after_copy(opened)

    def part_from_json(self, text: str) -> LakePart:
        return LakePart.from_json(text)

    def parts_intact(self, parts: Sequence[WrittenPart]) -> list[bool]:
        with reaching("the files of a copy cannot be looked at"):
            return [
                sizes([file.path for file in part.added]) == [file.size for file in part.added]
                for part in lake_parts(parts)
            ]

    def advance(self, target: TableId, source: str, expected: Position, position: Position) -> None:
        what = f"table {target}: advancing its position"
        with self._tables.known(target, source).turns.lock:
            opened, _ = self._tables.current(target, source)
            require_lineage(opened)
            if opened.position != expected:
                raise StaleBase(f"{what}: it is not at {position_text(expected)}", "Its position is read again")
            if position == expected:
                return
            entry = Entry(opened)
            entry.stand(position)
            entry.put("STREAMING UPDATE", what)
            opened.state = opened.read_state()

    def bookmark(self, target: TableId, source: str, name: str) -> str:
        """Note the table's version, and return it: our upkeep keeps what it holds.

        Others' VACUUM does not know of it.
        """
        opened, _ = self._tables.current(target, source)
        folder = self._tables.bookmarks(target)
        with opened.turns.lock, reaching(f"table {target}: its bookmark cannot be kept"):
            folder.mkdir(parents=True, exist_ok=True)
            version = opened.log.version
            (folder / name).write_text(json.dumps({"version": version, "at": time.time()}))
        return str(version)

    def release(self, target: TableId, source: str, name: str) -> None:
        with reaching(f"table {target}: its bookmark cannot be removed"):
            (self._tables.bookmarks(target) / name).unlink(missing_ok=True)

    def maintain(self, target: TableId, source: str, run: JobRunner) -> MaintenanceReport:
        require_warehouse(self._settings)
        tables, opened, settings = self._tables, self._tables.known(target, source), self._settings.maintenance
        index, marker = tables.index_of(opened), tables.swept_marker(opened)
        swept = sweep(
            opened,
            search=lambda: unknown(opened, settings.sweep_age),
            shut_out=lambda left: still_unknown(opened, left),
            settings=settings,
            background=self._background,
            marker=marker,
        )
        choice = compact(opened, index=index, settings=settings, run=run, background=self._background)
        index.remove([file.path for file in choice.data])
        expired = expire(opened, settings, tables.bookmarks(target))
        if expired and opened.state is not None and opened.upkeep.merging is None:
            index.remove_all_but([file.path for file in opened.state.data])
        shape = shape_of(opened, snapshots=opened.log.version + 1, as_read=as_read)
        return MaintenanceReport(len(choice.data), 0, expired, swept, shape)

    def discard(self, parts: Sequence[WrittenPart]) -> None:
        with reaching("files that will not be committed cannot be removed"):
            for part in lake_parts(parts):
                for file in part.added:
                    remove(file.path)

    def diagnose(self, target: TableId, source: str, error: FileUnreadable) -> PenstockError:
        return self._diagnosis.of(target, error)


def _require_copied_over(opened: OpenTable, what: str) -> None:
    """StaleBase if another driver has taken the table over since its copy was planned."""
    if opened.copy_base_now() != opened.copy_base:
        raise StaleBase(f"{what}: another driver has taken the table over", "The copy is looked at again")


def make_tables(settings: LakeSettings, spark: Session, index: Path) -> DeltaDestination:
    """Make the destination that a section of the pipeline file describes; Spark is not needed to write it."""
    return DeltaDestination(settings, index=index)
