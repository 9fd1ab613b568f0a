"""The tables that a destination works on: found or made, with their state as it is now, and cleaned of leftovers.

A table's state is kept between batches and believed only while the catalog names the same metadata file.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import structlog

from penstock.decode.rescue import RESCUED
from penstock.decode.schema import arrow_schema
from penstock.destinations.iceberg.catalog import (
    IcebergSettings,
    is_rest,
    table_location,
)
from penstock.destinations.iceberg.columns import (
    identifiers,
    matched,
    named_columns,
    require_distinct_names,
    to_iceberg,
    unfollowed,
)
from penstock.destinations.iceberg.commit import strict
from penstock.destinations.iceberg.current_view import drop_current_view, make_current_view
from penstock.destinations.iceberg.evolution import columns_in_union, columns_of, recorded, union_steps
from penstock.destinations.iceberg.java import Java, JavaObject, TableExists, present, translated
from penstock.destinations.iceberg.lineage import NONE, lineage_property, why_lost
from penstock.destinations.iceberg.open_table import (
    FORMAT_VERSION,
    OpenTable,
    carried,
    is_copying,
    look_for_rescued,
    position_of,
    position_property,
    read_state,
    require_format,
    unpartitioned_spec,
)
from penstock.destinations.iceberg.snapshot_expiry import find_orphans, remove_orphans
from penstock.destinations.iceberg.source_partition import is_of_family, sid_column, sid_spec
from penstock.destinations.iceberg.structure_change import follow
from penstock.destinations.lake.columns import LakeColumn
from penstock.destinations.lake.file_list import TableState
from penstock.destinations.lake.known_table import TableUpkeep, leading_column
from penstock.destinations.lake.known_tables import KnownTables
from penstock.destinations.lake.orphan_sweep import note_swept
from penstock.destinations.lake.properties import (
    COPYING,
    LAYOUT,
    TARGET,
    copy_property,
    made_under,
    require_layout,
    structure_property,
)
from penstock.destinations.lake.recorded_structure import Move, Recorded
from penstock.destinations.lake.source_partition import SourceSlice, Turns, require_free_name, with_sid
from penstock.destinations.lake.storage import reaching
from penstock.destinations.lake.warehouse import open_warehouse, require_warehouse
from penstock.destinations.spark_session import Session
from penstock.destinations.structure import numbered
from penstock.errors import (
    DestinationError,
    FileUnreadable,
    LineageLost,
    PositionLost,
    SchemaChanged,
    StaleBase,
    TableDropped,
    TableError,
)
from penstock.fold.layout import Layout
from penstock.model.feed import Sid
from penstock.model.location import local_path
from penstock.model.position import Position, stored_text
from penstock.model.table import TableId, TableSchema

STANDINGS = ("penstock.position.", "penstock.source.")  # each source of a table has one of these, or both
PROPERTIES = {
    "format-version": str(FORMAT_VERSION),
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "commit.manifest.min-count-to-merge": "20",
}


LOG = structlog.get_logger("iceberg")


class Tables(KnownTables[IcebergSettings, OpenTable]):
    """A destination's tables, as each source sees them. `mark`: its catalog compares snapshots and nothing else."""

    def __init__(self, settings: IcebergSettings, spark: Session, java: Java, *, index: Path) -> None:
        super().__init__(settings, index)
        self._spark, self._java = spark, java
        self.mark = is_rest(settings)
        self._catalog: JavaObject = None
        self._turns: dict[TableId, Turns] = {}
        self._by_uuid: dict[str, TableId] = {}  # tables that were opened, by Iceberg's own id

    def open_catalog(self) -> None:
        open_warehouse(self._settings, self._index)
        with translated(f"destination {self._settings.name}: its catalog cannot be opened", shared=True):
            self._catalog = self._java.catalog(self._settings.name)

    def group_operations(self) -> JavaObject | None:
        """Return what commits several tables in one step, if this is a REST catalog that can."""
        with translated(f"destination {self._settings.name}: its catalog cannot be asked what it can do", shared=True):
            return self._java.rest_operations(self._catalog)

    def forget(self) -> None:
        super().forget()
        self._by_uuid.clear()

    def metadata_files(self) -> list[str]:
        """Return the metadata files of all open tables, as far as they are known."""
        return [opened.state.metadata for opened in list(self._tables.values()) if opened.state is not None]

    def ensure(
        self,
        target: TableId,
        schema: TableSchema,
        source: str,
        *,
        start: Position | None,
        keep: Sequence[str],
        layout: Layout,
        sid: Sid | None,
    ) -> Position | None:
        """Do what the contract's `ensure_table` says; `keep` names the files of copies that go on."""
        schema = numbered(schema)
        require_distinct_names(target, arrow_schema(layout.kept(schema)))
        layout.require_room(layout.kept(schema))
        require_warehouse(self._settings)
        turns = self._turns.setdefault(target, Turns())
        with turns.lock, translated(f"table {target}: it cannot be opened"):
            table, is_new = self.load(target), False
            if table is None:
                self._create(target, schema=schema, source=source, start=start, layout=layout, sid=sid)
                table, is_new = self.load(target), True
            if table is None:
                raise PositionLost(f"table {target} was dropped while it was opened", "Run again")
            self._require_own(target, table)
            opened, state = self._opened(
                target, table=table, source=source, schema=schema, turns=turns, layout=layout, sid=sid
            )
            metadata = table.operations().current()
            position, copying = position_of(metadata, source), is_copying(metadata, source)
            is_known = position is not None or copying
            if not is_known and sid is not None and is_of_family(metadata.properties(), sid.family):
                self._take_in(opened, state, schema, start, sid)
                opened, state = self._opened(
                    target, table=table, source=source, schema=schema, turns=turns, layout=layout, sid=sid
                )
                position, is_known = start, True
        if not is_known:
            raise PositionLost(
                f"table {target} exists, but holds no position of {source}: something else made it",
                f"Drop {target} at the destination, or give the source's table another `target`",
            )
        self._tables[target, source] = opened
        if is_new:
            note_swept(self.swept_marker(opened))  # there is nothing in it
        self.make_views(opened)
        self._clean_up(opened, state, keep)
        return position

    def current(self, target: TableId, source: str) -> tuple[OpenTable, TableState]:
        """Return the table and its state as it is now.

        This is cheap when the catalog names the metadata file that we know, or one that differs from it by our commits
        for other sources only.
        """
        require_warehouse(self._settings)
        opened = self.known(target, source)
        try:
            with translated(f"table {target}: its state cannot be read"):
                metadata = present(opened.operations.refresh(), target)
                state = opened.state
                location = metadata.metadataFileLocation()
                if state is None or not opened.turns.spans(state.metadata, location, source):
                    require_format(metadata, target)
                    found = self._java.schemas.toJson(metadata.schema())
                    opened.following = recorded(metadata, source, opened.layout) or opened.following
                    follows, sid = opened.following, opened.sid
                    opened.columns, opened.slice = self._columns(target, opened.table, found, follows, sid)
                    opened.others = unfollowed(found, [column.id for column in opened.stored])
                    opened.around = named_columns(target, found, opened.layout.around)
                    state = read_state(self._java, opened.table, metadata, state, opened.slice, opened.leading)
                    opened.strayed = self._why_lost(opened.table, metadata, source)
                elif location != state.metadata:
                    state = carried(state, metadata)
                opened.state, opened.look_again = state, False
        except TableDropped:
            opened.state = None
            raise
        return opened, state

    def _require_own(self, target: TableId, table: JavaObject) -> None:
        """SchemaChanged if the catalog gave the table of another name: two tables must never go into one."""
        metadata = table.operations().current()
        made_as = metadata.properties().get(TARGET)
        alike = made_as is not None and made_as != str(target) and made_as.lower() == str(target).lower()
        other = made_as if alike else str(self._by_uuid.setdefault(metadata.uuid(), target))
        if other != str(target):
            raise SchemaChanged(
                f"table {target}: the catalog takes it for {other}, which is another table: it ignores case",
                "Give one of them another name with `target`, and start again",
            )

    def _why_lost(self, table: JavaObject, metadata: JavaObject, source: str) -> str:
        return why_lost(metadata, source, lambda newest: self._java.earlier_metadata(table, newest))

    def drop(self, target: TableId, source: str) -> None:
        """Do what the contract's `drop_table` says: the table goes with its files, and the view of a history."""
        table = self.load(target)
        if table is None:
            return
        with translated(f"table {target}: it cannot be dropped"):
            names = set(table.operations().current().properties().keySet())
            ours = {position_property(source), copy_property(source)}
            theirs = sorted(name for name in names - ours if name.startswith(STANDINGS))
            if theirs or not names & ours:
                why = "other sources feed it too" if theirs else f"{source} did not make it"
                raise TableError(
                    f"table {target} is not dropped: {why}",
                    f"Drop {target} at the destination yourself; then `penstock retry` copies it again",
                )
            self._catalog.dropTable(self._java.identifier(target), True)
        drop_current_view(self._spark, self._settings.name, target)
        for known in [key for key in self._tables if key[0] == target]:
            del self._tables[known]
        shutil.rmtree(self._folder(target), ignore_errors=True)

    def load(self, target: TableId) -> JavaObject | None:
        try:
            with translated(f"table {target}: it cannot be read"):
                return self._catalog.loadTable(self._java.identifier(target))
        except TableDropped:
            return None

    def make_views(self, opened: OpenTable) -> None:
        """In turn: several sources may feed the table, and each opens it."""
        names = [column.name for column in opened.stored]
        if not names or opened.layout.period is None:
            return
        with opened.turns.lock:
            with translated(f"table {opened.target}: its columns cannot be read"):
                names += [] if opened.slice is None else self._others(opened, names)
                names += [RESCUED] if look_for_rescued(self._java, opened) is not None else []
            make_current_view(self._spark, self._settings.name, opened.target, names, opened.layout)

    def _others(self, opened: OpenTable, names: Sequence[str]) -> list[str]:
        """Return columns that other sources of the table have now."""
        table, ours = self.load(opened.target), {*names, *opened.layout.around.names, RESCUED}
        columns = [] if table is None else [column.name() for column in table.schema().columns()]
        return [name for name in columns if name not in ours]

    def follow(self, opened: OpenTable, move: Move | None) -> None:
        """After the commit that made the move."""
        if move is not None:
            follow(self._java, opened, move)
            self.make_views(opened)

    def clean_up_after_copy(self, opened: OpenTable) -> None:
        """Remove what was written for the copy and is not in it."""
        try:
            if opened.state is not None:
                self._clean_up(opened, opened.state, [])
        except (DestinationError, TableError):
            opened.state = None  # the commit stands; this is made good when the table is opened again

    def _create(
        self,
        target: TableId,
        *,
        schema: TableSchema,
        source: str,
        start: Position | None,
        layout: Layout,
        sid: Sid | None,
    ) -> None:
        """With its position, or the sign that it has to be copied, in one step.

        That somebody else makes it at the same moment is no error.
        """
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
        standing = (_standing(source, start), (lineage_property(source), NONE), (TARGET, str(target)))
        made = made_under(source, layout)
        for name, value in (*PROPERTIES.items(), *standing, follows, *made.items()):
            builder.withProperty(name, value)
        try:
            with translated(f"table {target}: it cannot be made"):
                if not catalog.namespaceExists(namespace):
                    catalog.createNamespace(namespace)
                builder.create()
        except TableExists:
            return  # it is read next, and must be what we would have made

    def _opened(
        self,
        target: TableId,
        *,
        table: JavaObject,
        source: str,
        schema: TableSchema,
        turns: Turns,
        layout: Layout,
        sid: Sid | None,
    ) -> tuple[OpenTable, TableState]:
        """Return the opened table and its state.

        `schema` is what the table follows when it does not say so itself: when this source has just made it, or is not
        one of its sources yet.
        """
        metadata = table.operations().current()
        found = self._java.schemas.toJson(table.schema())
        require_layout(target, metadata.properties().get(LAYOUT), layout)
        require_format(metadata, target)
        following, kept = recorded(metadata, source, layout), layout.kept(schema)
        if following is None and sid is None:
            key = kept.key if layout.has_identifiers else ()
            made = matched(target, found, layout.columns(arrow_schema(kept)), key)[: len(kept.columns)]
            fields = dict(zip((one.number for one in kept.columns), (one.id for one in made), strict=True))
            following = Recorded(schema, kept, fields)
        columns, share = self._columns(target, table, found, following, sid)
        spec = unpartitioned_spec(table, target) if share is None else sid_spec(table, target, share.column.id)[0]
        leading = leading_column(columns, () if following is None else following.kept.key)
        state = read_state(self._java, table, metadata, slice=share, leading=leading)
        opened = OpenTable(
            target=target,
            source=source,
            table=table,
            following=following or Recorded(schema, kept, {}),
            columns=columns,
            others=unfollowed(found, [column.id for column in (columns if share is None else share.stored)]),
            location=table.location(),
            specs=table.specs(),
            spec=spec,
            turns=turns,
            sid=sid,
            slice=share,
            state=state,
            upkeep=TableUpkeep(self._deferred_deletes(target), commits_since_expiry=state.snapshots),
            layout=layout,
            around=named_columns(target, found, layout.around),
            strayed=self._why_lost(table, metadata, source),
        )
        path = local_path(opened.folder)
        with reaching(f"table {target}: its folder cannot be made"):
            if path is not None:
                path.mkdir(exist_ok=True, parents=share is not None)
        return opened, state

    def _columns(
        self, target: TableId, table: JavaObject, found: str, following: Recorded | None, sid: Sid | None
    ) -> tuple[tuple[LakeColumn, ...], SourceSlice | None]:
        """Return the columns that follow the source and, if it has a sid, its share of the table."""
        if sid is None:
            assert following is not None
            return columns_of(target, found, following), None
        column = sid_column(target, found, sid)
        _, field = sid_spec(table, target, column.id)
        if following is None:  # not one of its sources yet
            return (), SourceSlice(sid.value, field, (column,))
        own, kept = columns_in_union(target, found, following)
        return own, SourceSlice(sid.value, field, (column, *kept))

    def _take_in(
        self, opened: OpenTable, state: TableState, schema: TableSchema, start: Position | None, sid: Sid
    ) -> None:
        """Make the source one of those that feed the table: its columns, and where it stands."""
        marked = opened.layout.has_identifiers
        kept = opened.layout.kept(schema)
        steps = union_steps(self._java, opened.table, opened.target, kept, sid, marked=marked)
        what = f"table {opened.target}: taking in source {sid.value}"
        with strict(self._java, opened, state.metadata, what) as transaction:
            transaction.take_in(schema, steps, sid)
            if self.mark:
                transaction.mark()
            made = made_under(opened.source, opened.layout)
            transaction.stand({**dict([_standing(opened.source, start)]), **made})
        opened.table.refresh()

    def _clean_up(self, opened: OpenTable, state: TableState, keep: Sequence[str]) -> None:
        """Remove what killed writers left behind; put off when somebody commits at this very moment."""
        self.index_of(opened).remove_all_but([*(file.path for file in state.data), *keep])
        try:
            orphans = find_orphans(self._java, opened, state, keep)
        except FileUnreadable as error:  # of an old snapshot: the present one has just been read
            LOG.warning("leftovers not searched", table=str(opened.target), what=error.what)
            return
        if not orphans:
            return
        try:
            remove_orphans(self._java, opened, state, orphans, mark=self.mark)
        except StaleBase:
            opened.state = None


def require_lineage(opened: OpenTable) -> None:
    """LineageLost if what we committed is no longer in the table: its position then says more than is there."""
    if opened.strayed:
        raise LineageLost(
            f"table {opened.target}: somebody changed it at the destination: {opened.strayed}",
            "Put our snapshot back (`CALL system.set_current_snapshot`) and `penstock retry`; or `penstock resync`, "
            "which copies the table as it is now",
        )


def _standing(source: str, start: Position | None) -> tuple[str, str]:
    """Return the property that says where a source stands: at a position, or to be copied."""
    return (copy_property(source), COPYING) if start is None else (position_property(source), stored_text(start))
