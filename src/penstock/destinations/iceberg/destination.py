"""The Iceberg destination: the contract's driver side, over `table_state`, `commit`, `compaction` and `expiry`.

A table's state is kept between batches and believed only while the catalog names the same metadata file. Every change
of ours is a strict transaction (`commit`); the position is a table property, because compaction and expiry drop what
is in snapshots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.decode.rescue import RESCUED
from penstock.decode.schema import arrow_schema
from penstock.destinations.contract import (
    BOOKMARKS_LAST,
    Capabilities,
    JobRunner,
    MaintenanceReport,
    WritePlan,
    WrittenPart,
)
from penstock.destinations.iceberg.catalog import (
    IcebergSettings,
    compares_snapshots_only,
    open_warehouse,
    require_warehouse,
    safe_name,
    table_location,
)
from penstock.destinations.iceberg.commit import carried_on, note_turn, strict
from penstock.destinations.iceberg.copy_plan import IcebergCopy
from penstock.destinations.iceberg.current_view import make_current_view
from penstock.destinations.iceberg.data_files import COPY_PREFIX
from penstock.destinations.iceberg.evolution import (
    Move,
    Recorded,
    columns_in_union,
    columns_of,
    planned,
    planned_union,
    recorded,
    structure_property,
    union_steps,
)
from penstock.destinations.iceberg.expiry import find_orphans, remove_orphans
from penstock.destinations.iceberg.java import Java, JavaObject, TableExists, TableMissing, translated
from penstock.destinations.iceberg.key_index import IndexedFile, KeyIndex
from penstock.destinations.iceberg.live_files import TableState
from penstock.destinations.iceberg.maintenance import compact, expire
from penstock.destinations.iceberg.plan import IcebergPart, IcebergPlan, as_one_age
from penstock.destinations.iceberg.slices import (
    IcebergSlice,
    Turns,
    is_of_family,
    require_free_name,
    sid_column,
    sid_spec,
    with_sid,
)
from penstock.destinations.iceberg.storage import local_path, reaching, remove, sizes
from penstock.destinations.iceberg.table_schema import (
    IcebergColumn,
    coming_rescued_column,
    identifiers,
    matched,
    named_columns,
    require_distinct_names,
    to_iceberg,
    unfollowed,
)
from penstock.destinations.iceberg.table_state import (
    COPIED,
    COPYING,
    LAYOUT,
    OpenTable,
    carried,
    copy_base,
    copy_property,
    is_copying,
    look_for_rescued,
    moment_of,
    moment_property,
    position_of,
    position_property,
    read_state,
    require_layout,
    unpartitioned_spec,
)
from penstock.destinations.iceberg.version_files import Kind, kind_of
from penstock.destinations.iceberg.version_plan import VersionPlan
from penstock.destinations.structure import OnDrop, numbered
from penstock.destinations.union import require_same_names
from penstock.errors import DestinationError, PositionLost, RangeVoid, StaleBase
from penstock.fold.layout import ROWS, Layout
from penstock.model.feed import Sid
from penstock.model.position import Position, position_text
from penstock.model.table import TableId, TableSchema

PROPERTIES = {
    "format-version": "2",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "commit.manifest.min-count-to-merge": "20",
}


class IcebergDestination:
    capabilities = Capabilities(transactional=True, upserts=True, truncates=True, fetches=True, maintained=True)

    def __init__(self, settings: IcebergSettings, spark: SparkSession, *, index: Path) -> None:
        """`index` is the folder of key indexes: a cache, this pipeline's own."""
        self.name = settings.name
        self._settings = settings
        self._index = index
        self._java = Java(spark)
        self._spark = spark
        self._mark = compares_snapshots_only(settings)
        self._catalog: JavaObject = None
        self._tables: dict[tuple[TableId, str], OpenTable] = {}  # as each source sees them
        self._turns: dict[TableId, Turns] = {}

    def open(self) -> None:
        open_warehouse(self._settings, self._index)
        with translated(f"destination {self.name}: its catalog cannot be opened"):
            self._catalog = self._java.catalog(self.name)

    def close(self) -> None:
        self._tables.clear()

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
        schema = numbered(schema)
        require_distinct_names(target, arrow_schema(layout.kept(schema)))
        layout.require_room(layout.kept(schema))
        require_warehouse(self._settings)
        turns = self._turns.setdefault(target, Turns())
        with turns.lock, translated(f"table {target}: it cannot be opened"):
            table = self._load(target)
            if table is None:
                self._create(target, schema, source, start, layout, sid)
                table = self._load(target)
            if table is None:
                raise PositionLost(f"table {target} was dropped while it was opened", "Run again")
            opened, state = self._opened(target, table, source, schema, turns, layout, sid)
            metadata = table.operations().current()
            position, copying = position_of(metadata, source), is_copying(metadata, source)
            is_known = position is not None or copying
            if not is_known and sid is not None and is_of_family(metadata.properties(), sid.family):
                self._take_in(opened, state, schema, start, sid)
                opened, state = self._opened(target, table, source, schema, turns, layout, sid)
                position, is_known = start, True
        if not is_known:
            raise PositionLost(
                f"table {target} exists, but holds no position of {source}: something else made it",
                f"Drop {target} at the destination, or give the source's table another `target`",
            )
        self._tables[target, source] = opened
        self._make_views(opened)
        self._clean_up(opened, state, [file.path for part in _ours(keep) for file in part.files])
        return position

    def position(self, target: TableId, source: str) -> Position | None:
        with translated(f"table {target}: its position cannot be read"):
            table = self._load(target)
            return None if table is None else position_of(table.operations().current(), source)

    def structure(self, target: TableId, source: str) -> TableSchema:
        return self._current(target, source)[0].following.schema

    def plan(
        self,
        target: TableId,
        source: str,
        schema: TableSchema | None = None,
        on_drop: OnDrop = "keep",
        *,
        thorough: bool = False,
    ) -> IcebergPlan:
        plan, position = self._planned(target, source, schema, on_drop)
        if position is None:
            raise PositionLost(
                f"table {target} has no position of {source}",
                f"Drop {target}, then `penstock retry`: it is copied again",
            )
        if plan.slice is not None:
            require_same_names(target, self._tables[target, source].following.schema, schema)
        return replace(plan, thorough=thorough)

    def _planned(
        self, target: TableId, source: str, schema: TableSchema | None, on_drop: OnDrop
    ) -> tuple[IcebergPlan, Position | None]:
        opened, state = self._current(target, source)
        with translated(f"table {target}: its position cannot be read"):
            metadata = opened.table.operations().current()
            position, moment = position_of(metadata, source), moment_of(metadata, source)
        move = self._move(opened, schema, on_drop)
        with translated(f"table {target}: its columns cannot be read"):
            rescued = self._rescued(opened, move)
        versions = opened.layout.period is not None
        plan = (VersionPlan if versions else IcebergPlan)(
            target=target,
            source=source,
            position=position or 0,
            metadata=state.metadata,
            snapshot=state.snapshot,
            folder=opened.folder,
            columns=move.columns if move else opened.columns,
            rescued=rescued,
            index=self._key_index(opened, move),
            move=move,
            files=_indexed(state, "open" if versions else None),
            delete_files=tuple(file.path for file in state.deletes),
            layout=opened.layout,
            around=opened.around,
            moment=moment,
            ended_files=_indexed(state, "ended") if versions else (),
            slice=move.slice if move else opened.slice,
        )
        return plan, position

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
        copied: bool = False,
    ) -> None:
        if not isinstance(plan, IcebergPlan):
            raise TypeError(f"{type(plan).__name__} is not a plan of {type(self).__name__}")
        require_warehouse(self._settings)
        written = [part for part in _ours(parts) if not part.empty]
        opened = self._tables[plan.target, plan.source]
        before, what, moves = opened.state, f"table {plan.target}: its commit", plan.move is not None
        with strict(self._java, opened, plan.metadata, what, same_columns=moves) as transaction:
            if plan.move is not None:
                transaction.evolve(plan.move, plan.source)
            transaction.rescue(written)
            if truncated:
                transaction.replace_all(written)
            elif written:
                transaction.row_delta(written)
            elif self._mark:
                transaction.mark()
            standing = {position_property(plan.source): position_text(position)}
            if moment is not None:
                standing[moment_property(plan.source)] = str(moment)
            if copied:
                standing[copy_property(plan.source)] = COPIED
            transaction.set_properties(standing)
        opened.commits_since_expiry += 1
        self._follow(opened, plan.move)
        if plan.move is None and transaction.columns_changed:
            self._make_views(opened)
        files = [file for part in written for file in (part.added if truncated else part.files)]
        removed = None if truncated else frozenset[str]()
        opened.state = None if before is None else carried_on(opened, before, files, removed)

    def plan_copy(
        self, target: TableId, source: str, schema: TableSchema | None = None, on_drop: OnDrop = "keep"
    ) -> IcebergCopy:
        opened, _ = self._current(target, source)
        with translated(f"table {target}: its position cannot be read"):
            opened.copy_base = copy_base(opened.table.operations().current(), source, opened.fence)
        opened.copy_move = move = self._move(opened, schema, on_drop)
        columns = move.columns if move else opened.columns
        with translated(f"table {target}: its columns cannot be read"):
            rescued = self._rescued(opened, move)
        share = move.slice if move else opened.slice
        return IcebergCopy(target, opened.folder, columns, rescued, self._key_index(opened, move), share)

    def plan_catchup(
        self, target: TableId, source: str, base: Sequence[WrittenPart], position: Position
    ) -> IcebergPlan:
        opened = self._tables[target, source]
        files, delete_files = as_one_age(_ours(base))
        with translated(f"table {target}: its columns cannot be read"):
            rescued = self._rescued(opened, opened.copy_move)
        if any(part.rescued_as and part.rescued_as.numbers != rescued.numbers for part in _ours(base)):
            raise RangeVoid(
                f"table {target}: its columns have changed since rows of its copy were written",
                "What was read of it is void; its copy starts again by itself",
            )
        return IcebergPlan(
            target=target,
            source=source,
            position=position,
            metadata="",
            snapshot=None,
            folder=opened.folder,
            columns=opened.copy_move.columns if opened.copy_move else opened.columns,
            rescued=rescued,
            index=self._key_index(opened, opened.copy_move),
            files=files,
            delete_files=delete_files,
            prefix=COPY_PREFIX,
            slice=opened.copy_move.slice if opened.copy_move else opened.slice,
        )

    def commit_copy(self, target: TableId, source: str, parts: Sequence[WrittenPart], position: Position) -> None:
        what = f"table {target}: the commit of its copy"
        written = [part for part in _ours(parts) if not part.empty]
        opened, state = self._current(target, source)
        self._require_copied_over(opened, source, what)
        move = self._again(opened, written)
        with strict(self._java, opened, state.metadata, what, same_columns=move is not None) as transaction:
            if move is not None:
                transaction.evolve(move, source)
            transaction.rescue(written, RangeVoid)
            if written or state.data or state.deletes or self._mark:
                transaction.replace_by_copy(written)
            transaction.set_properties(
                {position_property(source): position_text(position), copy_property(source): COPIED}
            )
        opened.commits_since_expiry += 1
        opened.copy_base = opened.copy_move = None
        self._follow(opened, move)
        opened.state = carried_on(opened, state, [file for part in written for file in part.files], None)
        self._clean_up_after_copy(opened)

    def plan_merge(self, target: TableId, source: str) -> IcebergPlan:
        planned_for = self._tables[target, source].copy_move
        if planned_for is None:
            return self._planned(target, source, None, "keep")[0]
        return self._planned(target, source, planned_for.schema, planned_for.on_drop)[0]

    def commit_merge(
        self, plan: WritePlan, parts: Sequence[WrittenPart], position: Position, moment: int | None = None
    ) -> None:
        opened, _ = self._current(plan.target, plan.source)
        self._require_copied_over(opened, plan.source, f"table {plan.target}: the commit of its copy")
        self._commit(plan, parts, False, position, moment, copied=True)
        opened.copy_base = opened.copy_move = None
        self._clean_up_after_copy(opened)

    def _require_copied_over(self, opened: OpenTable, source: str, what: str) -> None:
        """StaleBase if another driver has taken the table over since its copy was planned."""
        with translated(what):
            base = copy_base(opened.table.operations().current(), source, opened.fence)
        if base != opened.copy_base:
            raise StaleBase(f"{what}: another driver has taken the table over", "The copy is looked at again")

    def parts_intact(self, parts: Sequence[WrittenPart]) -> list[bool]:
        with reaching("the files of a copy cannot be looked at"):
            return [
                sizes([file.path for file in part.files]) == [file.size for file in part.files] for part in _ours(parts)
            ]

    def advance(self, target: TableId, source: str, expected: Position, position: Position) -> None:
        what = f"table {target}: advancing its position"
        opened, state = self._current(target, source)
        with translated(what):
            found = position_of(opened.table.operations().current(), source)
        if found != expected:
            raise StaleBase(f"{what}: it is not at {position_text(expected)}", "Its position is read again")
        with strict(self._java, opened, state.metadata, what) as transaction:
            transaction.set_properties({position_property(source): position_text(position)})
            if self._mark:
                transaction.mark()
        opened.state = carried_on(opened, state)

    def bookmark(self, target: TableId, source: str, name: str) -> str:
        """An Iceberg tag: neither our expiry nor anybody else's removes what it names."""
        with self._turns[target].lock:
            opened, state = self._current(target, source)
            if state.snapshot is None:
                return ""
            with translated(f"table {target}: its contents cannot be tagged"):
                tagging = opened.table.manageSnapshots().createTag(name, state.snapshot)
                tagging.setMaxRefAgeMs(name, int(BOOKMARKS_LAST * 1000)).commit()
                note_turn(opened, state.metadata, columns=False)
        return str(state.snapshot)

    def release(self, target: TableId, source: str, name: str) -> None:
        opened = self._tables[target, source]
        try:
            with opened.turns.lock, translated(f"table {target}: its tag {name} cannot be removed"):
                metadata = opened.table.operations().refresh()
                if opened.table.refs().containsKey(name):
                    opened.table.manageSnapshots().removeTag(name).commit()
                    note_turn(opened, metadata.metadataFileLocation(), columns=False)
        except (StaleBase, TableMissing):
            return  # somebody else has removed it meanwhile, or the table

    def maintain(self, target: TableId, source: str, run: JobRunner) -> MaintenanceReport:
        require_warehouse(self._settings)
        opened, settings = self._tables[target, source], self._settings.maintenance
        index = self._key_index(opened)
        choice = compact(self._java, opened, index, settings, run)
        expired = expire(self._java, opened, settings)
        if opened.state is not None and (choice or expired):
            index.remove_all_but([file.path for file in opened.state.data])
        return MaintenanceReport(len(choice.data), len(choice.deletes), expired)

    def discard(self, parts: Sequence[WrittenPart]) -> None:
        with reaching("files that will not be committed cannot be removed"):
            for part in _ours(parts):
                for file in part.files:
                    remove(file.path)

    def _load(self, target: TableId) -> JavaObject | None:
        try:
            with translated(f"table {target}: it cannot be read"):
                return self._catalog.loadTable(self._java.identifier(target))
        except TableMissing:
            return None

    def _create(
        self,
        target: TableId,
        schema: TableSchema,
        source: str,
        start: Position | None,
        layout: Layout,
        sid: Sid | None,
    ) -> None:
        """With its position, or the sign that it has to be copied, in one step. That somebody else makes it at the
        same moment is no error."""
        catalog, namespace = self._catalog, self._java.namespace(target)
        kept = layout.kept(schema)
        columns, key = arrow_schema(kept), kept.key if layout.has_identifiers else ()
        if sid is not None:
            require_free_name(target, layout.columns(columns), sid)
            columns, key = with_sid(columns, sid), (sid.column, *key) if identifiers(columns, key) else ()
        described = self._java.schemas.fromJson(to_iceberg(layout.columns(columns), key))
        builder = catalog.buildTable(self._java.identifier(target), described)
        if sid is not None:
            builder.withPartitionSpec(self._java.partitions.builderFor(described).identity(sid.column).build())
        location = table_location(self._settings, target)
        if location is not None:
            builder.withLocation(location)
        fields = {one.number: columns.get_field_index(one.name) + 1 for one in kept.columns}
        first = Recorded(schema, kept, fields)
        follows = (structure_property(source), first.to_json())
        for name, value in (*PROPERTIES.items(), _standing(source, start), follows, (LAYOUT, layout.to_json())):
            builder.withProperty(name, value)
        try:
            with translated(f"table {target}: it cannot be made"):
                if not catalog.namespaceExists(namespace):
                    catalog.createNamespace(namespace)
                builder.create()
        except TableExists:
            return  # it is read next, and must be what we would have made

    def _rescued(self, opened: OpenTable, move: Move | None) -> IcebergColumn:
        """The table's column RESCUED, or what it will be when it comes, behind those that its structure's move adds."""
        there = look_for_rescued(self._java, opened)
        if there is not None:
            return there
        added = [number for column in (move.columns if move else ()) for number in column.numbers]
        return coming_rescued_column(max(opened.table.operations().current().lastColumnId(), *added, 0))

    def _opened(
        self,
        target: TableId,
        table: JavaObject,
        source: str,
        schema: TableSchema,
        turns: Turns,
        layout: Layout,
        sid: Sid | None,
    ) -> tuple[OpenTable, TableState]:
        """`schema` is what the table follows when it does not say so itself: when this source has just made it, or is
        not one of its sources yet."""
        metadata = table.operations().current()
        found = self._java.schemas.toJson(table.schema())
        require_layout(target, metadata, layout)
        following, kept = recorded(metadata, source, layout), layout.kept(schema)
        if following is None and sid is None:
            key = kept.key if layout.has_identifiers else ()
            made = matched(target, found, layout.columns(arrow_schema(kept)), key)[: len(kept.columns)]
            fields = dict(zip((one.number for one in kept.columns), (one.id for one in made), strict=True))
            following = Recorded(schema, kept, fields)
        columns, share = self._columns(target, table, found, following, sid)
        spec = unpartitioned_spec(table, target) if share is None else sid_spec(table, target, share.column.id)[0]
        state = read_state(self._java, table, metadata, slice=share)
        opened = OpenTable(
            target,
            source,
            table,
            following or Recorded(schema, kept, {}),
            columns,
            unfollowed(found, [column.id for column in (columns if share is None else share.stored)]),
            table.location(),
            table.specs(),
            spec,
            turns,
            sid,
            share,
            state,
            state.snapshots,
        )
        opened.layout, opened.around = layout, named_columns(target, found, layout.around)
        path = local_path(opened.folder)
        with reaching(f"table {target}: its folder cannot be made"):
            if path is not None:
                path.mkdir(exist_ok=True, parents=share is not None)
        return opened, state

    def _columns(
        self, target: TableId, table: JavaObject, found: str, following: Recorded | None, sid: Sid | None
    ) -> tuple[tuple[IcebergColumn, ...], IcebergSlice | None]:
        """The columns that follow the source and, if it has a sid, its share of the table."""
        if sid is None:
            assert following is not None
            return columns_of(target, found, following), None
        column = sid_column(target, found, sid)
        _, field = sid_spec(table, target, column.id)
        if following is None:  # not one of its sources yet
            return (), IcebergSlice(sid.value, field, (column,))
        own, kept = columns_in_union(target, found, following)
        return own, IcebergSlice(sid.value, field, (column, *kept))

    def _take_in(
        self, opened: OpenTable, state: TableState, schema: TableSchema, start: Position | None, sid: Sid
    ) -> None:
        """Makes the source one of those that feed the table: its columns, and where it stands."""
        marked = opened.layout.has_identifiers
        kept = opened.layout.kept(schema)
        steps = union_steps(self._java, opened.table, opened.target, kept, sid, marked=marked)
        what = f"table {opened.target}: taking in source {sid.value}"
        with strict(self._java, opened, state.metadata, what) as transaction:
            transaction.take_in(schema, steps, sid)
            transaction.set_properties(dict([_standing(opened.source, start)]))
            if self._mark:
                transaction.mark()
        opened.table.refresh()

    def _key_index(self, opened: OpenTable, move: Move | None = None) -> KeyIndex:
        folder = self._index / safe_name(opened.target.schema) / safe_name(opened.target.name)
        folder = folder if opened.slice is None else folder / opened.slice.folder
        return KeyIndex(folder, move.kept.key if move else opened.key)

    def _move(self, opened: OpenTable, schema: TableSchema | None, on_drop: OnDrop) -> Move | None:
        """From the structure that the table follows to another; None when that is the same."""
        if schema is None or schema.fingerprint == opened.following.schema.fingerprint:
            return None
        layout = opened.layout
        layout.require_room(layout.kept(schema))
        with translated(f"table {opened.target}: its new structure cannot be tried"):
            if opened.sid is not None and opened.slice is not None:
                return planned_union(self._java, opened.table, opened.target, schema, opened.slice, opened.sid, layout)
            return planned(self._java, opened.table, opened.target, opened.following, schema, on_drop, layout)

    def _again(self, opened: OpenTable, parts: Sequence[IcebergPart]) -> Move | None:
        """The structure's move as it was planned for a copy. RangeVoid when its columns would get other numbers now."""
        planned_for = opened.copy_move
        move = self._move(opened, planned_for.schema, planned_for.on_drop) if planned_for else None
        columns = move.columns if move else opened.columns
        ids = tuple(column.id for column in columns)
        if any(part.data is not None and part.columns != ids for part in parts):
            raise RangeVoid(
                f"table {opened.target}: its columns have changed at the destination since its copy began",
                "What was read of it is void; its copy starts again by itself",
            )
        return move

    def _follow(self, opened: OpenTable, move: Move | None) -> None:
        """After the commit that made the move."""
        if move is not None:
            opened.following, opened.columns, opened.slice = move.recorded, move.columns, move.slice
            with translated(f"table {opened.target}: its columns cannot be read"):
                found = self._java.schemas.toJson(opened.table.schema())
            opened.others = unfollowed(found, [column.id for column in opened.stored])
            self._make_views(opened)

    def _make_views(self, opened: OpenTable) -> None:
        names = [column.name for column in opened.stored]
        if names and opened.layout.period is not None:
            with translated(f"table {opened.target}: its columns cannot be read"):
                names += [RESCUED] if look_for_rescued(self._java, opened) is not None else []
            make_current_view(self._spark, self.name, opened.target, names, opened.layout)

    def _current(self, target: TableId, source: str) -> tuple[OpenTable, TableState]:
        """The table and its state as it is now; cheap when the catalog names the metadata file that we know, or one
        that differs from it by our commits for other sources only."""
        require_warehouse(self._settings)
        opened = self._tables[target, source]
        try:
            with translated(f"table {target}: its state cannot be read"):
                metadata = opened.table.operations().refresh()
                state = opened.state
                location = metadata.metadataFileLocation()
                if state is None or not opened.turns.spans(state.metadata, location, source):
                    found = self._java.schemas.toJson(metadata.schema())
                    opened.following = recorded(metadata, source, opened.layout) or opened.following
                    follows, sid = opened.following, opened.sid
                    opened.columns, opened.slice = self._columns(target, opened.table, found, follows, sid)
                    opened.others = unfollowed(found, [column.id for column in opened.stored])
                    opened.around = named_columns(target, found, opened.layout.around)
                    state = read_state(self._java, opened.table, metadata, state, opened.slice)
                elif location != state.metadata:
                    state = carried(state, metadata)
                opened.state = state
        except TableMissing as error:
            raise PositionLost(
                f"table {target} is gone at the destination", "`penstock retry` copies it again"
            ) from error
        return opened, state

    def _clean_up_after_copy(self, opened: OpenTable) -> None:
        """Removes what was written for the copy and is not in it."""
        try:
            if opened.state is not None:
                self._clean_up(opened, opened.state, [])
        except DestinationError:
            opened.state = None  # the commit stands; this is made good when the table is opened again

    def _clean_up(self, opened: OpenTable, state: TableState, keep: Sequence[str]) -> None:
        """Removes what killed writers left behind; put off when somebody commits at this very moment."""
        self._key_index(opened).remove_all_but([*(file.path for file in state.data), *keep])
        orphans = find_orphans(self._java, opened, state, keep)
        if not orphans:
            return
        try:
            remove_orphans(self._java, opened, state, orphans, mark=self._mark)
        except StaleBase:
            opened.state = None
            return
        opened.state = carried_on(opened, state)


def _indexed(state: TableState, kind: Kind | None) -> tuple[IndexedFile, ...]:
    """The data files in which rows of a kind may be; None: all of them."""
    return tuple(
        IndexedFile(file.path, file.records, file.sequence)
        for file in state.data
        if kind is None or kind_of(file.path) in (kind, "foreign")
    )


def _standing(source: str, start: Position | None) -> tuple[str, str]:
    """The property that says where a source stands: at a position, or to be copied."""
    return (copy_property(source), COPYING) if start is None else (position_property(source), position_text(start))


def _ours(parts: Sequence[WrittenPart]) -> list[IcebergPart]:
    for part in parts:
        if not isinstance(part, IcebergPart):
            raise TypeError(f"{type(part).__name__} is not a part of an Iceberg table")
    return [part for part in parts if isinstance(part, IcebergPart)]
