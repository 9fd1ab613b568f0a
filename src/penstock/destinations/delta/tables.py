"""The tables that a destination works on: found or made, with their state as it is now, and cleaned of leftovers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import structlog

from penstock.decode.schema import arrow_schema
from penstock.destinations.delta.actions import transaction
from penstock.destinations.delta.columns import located, named_columns, unfollowed
from penstock.destinations.delta.commit import Entry
from penstock.destinations.delta.evolution import columns_in_union, union_steps, united_columns
from penstock.destinations.delta.leftovers import find_orphans, remove_orphans
from penstock.destinations.delta.log import TableLog
from penstock.destinations.delta.open_table import (
    KEY,
    OpenTable,
    entry_app,
    position_app,
    position_of,
    recorded,
    sources_of,
    stored_position,
    why_lost,
)
from penstock.destinations.delta.structure import Structure, require_known_features
from penstock.destinations.delta.warehouse import open_warehouse
from penstock.destinations.lake.columns import LakeColumn
from penstock.destinations.lake.file_list import TableState
from penstock.destinations.lake.known_table import TableUpkeep
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
from penstock.destinations.lake.settings import LakeSettings
from penstock.destinations.lake.source_partition import SourceSlice, Turns, require_free_name, with_sid
from penstock.destinations.lake.storage import make_folder, reaching, remove_folder
from penstock.destinations.lake.warehouse import require_warehouse, table_folder
from penstock.destinations.structure import numbered
from penstock.errors import DestinationError, PositionLost, SchemaChanged, StaleBase, TableDropped, TableError
from penstock.fold.layout import Layout
from penstock.model.feed import Sid
from penstock.model.position import Position
from penstock.model.table import TableId, TableSchema

LOG = structlog.get_logger("delta")


class Tables(KnownTables[LakeSettings, OpenTable]):
    """A destination's tables, as each source sees them."""

    def __init__(self, settings: LakeSettings, *, index: Path) -> None:
        super().__init__(settings, index)
        self._logs: dict[TableId, tuple[TableLog, Turns]] = {}

    def open_warehouse(self) -> None:
        open_warehouse(self._settings, self._index)

    def forget(self) -> None:
        super().forget()
        self._logs.clear()

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
        layout.require_room(layout.kept(schema))
        require_warehouse(self._settings)
        log, turns = self._logs.setdefault(target, (TableLog(table_folder(self._settings, target)), Turns()))
        with turns.lock:
            is_new = not log.exists
            if is_new:
                self._create(log.root, target, schema=schema, source=source, start=start, layout=layout, sid=sid)
            log.refresh()
            self._require_own(target, log)
            opened = self._opened(target, log, turns, schema=schema, source=source, layout=layout, sid=sid)
            if source not in sources_of(log.state) and sid is not None and _is_of_family(log, sid.family):
                self._take_in(opened, schema, start, sid)
                opened = self._opened(target, log, turns, schema=schema, source=source, layout=layout, sid=sid)
            if source not in sources_of(log.state):
                raise PositionLost(
                    f"table {target} exists, but holds no position of {source}: something else made it",
                    f"Drop {target} at the destination, or give the source's table another `target`",
                )
            self._tables[target, source] = opened
            if is_new:
                note_swept(self.swept_marker(opened))  # there is nothing in it
            with reaching(f"table {target}: its folder cannot be made"):
                make_folder(opened.folder)
            self._clean_up(opened, keep)
            return position_of(log.state, source)

    def current(self, target: TableId, source: str) -> tuple[OpenTable, TableState]:
        """Return the table and its state as it is now; cheap when nobody else has added to its log."""
        require_warehouse(self._settings)
        opened = self.known(target, source)
        with opened.turns.lock:
            try:
                opened.log.refresh()
            except TableDropped:
                opened.state = None
                raise
            return opened, self._followed(opened)

    def _followed(self, opened: OpenTable) -> TableState:
        """Bring what is known of the table up to what its log, as it was last read, says."""
        state, log = opened.state, opened.log
        if state is None or not opened.turns.spans(state.metadata, log.name, opened.source):
            require_known_features(opened.target, log.state)
            opened.strayed = why_lost(log, opened.source)
            opened.following = recorded(log.state, opened.source) or opened.following
            self._look(opened)
        elif log.name != state.metadata:
            self._look(opened)
        opened.look_again = False
        assert opened.state is not None
        return opened.state

    def position(self, target: TableId, source: str) -> Position | None:
        """Return the position that the table has now; None when there is no table."""
        require_warehouse(self._settings)
        log, turns = self._logs.get(target, (TableLog(table_folder(self._settings, target)), Turns()))
        with turns.lock:
            try:
                log.refresh()
            except TableDropped:
                return None
            return position_of(log.state, source)

    def drop(self, target: TableId, source: str) -> None:
        """Do what the contract's `drop_table` says: the table goes with its files."""
        require_warehouse(self._settings)
        log = TableLog(table_folder(self._settings, target))
        try:
            log.refresh()
        except TableDropped:
            return
        sources = sources_of(log.state)
        if sources != {source}:
            why = f"{source} did not make it" if source not in sources else "other sources feed it too"
            raise TableError(
                f"table {target} is not dropped: {why}",
                f"Drop {target} at the destination yourself; then `penstock retry` copies it again",
            )
        with reaching(f"table {target}: it cannot be dropped"):
            remove_folder(log.folder)  # first: what is left then is no table
            with suppress(OSError):  # somebody may be writing there yet
                remove_folder(log.root)
        for known in [key for key in self._tables if key[0] == target]:
            del self._tables[known]
        self._logs.pop(target, None)
        shutil.rmtree(self._folder(target), ignore_errors=True)

    def log_of(self, target: TableId) -> TableLog:
        """Return the log of a table, to be read by its caller alone."""
        return TableLog(table_folder(self._settings, target))

    def bookmarks(self, target: TableId) -> Path:
        """Return the folder of the table's bookmarks."""
        folder = self._folder(target)
        return folder.with_name(f"{folder.name}.bookmarks")

    def follow(self, opened: OpenTable, move: Move | None) -> None:
        """After the commit that made the move, or none."""
        if move is not None:
            opened.following = move.recorded
        self._look(opened)

    def clean_up_after_copy(self, opened: OpenTable) -> None:
        """Remove what was written for the copy and is not in it."""
        try:
            self._clean_up(opened, [])
        except DestinationError:
            opened.state = None  # the commit stands; this is made good when the table is opened again

    def _require_own(self, target: TableId, log: TableLog) -> None:
        """SchemaChanged if the folder holds the table of another name: two tables must never go into one."""
        made_as = log.state.configuration.get(TARGET)
        if made_as is not None and made_as != str(target):
            raise SchemaChanged(
                f"table {target}: its folder {log.root} holds {made_as}, which is another table",
                "Give one of them another name with `target`, and start again",
            )
        require_known_features(target, log.state)

    def _create(
        self,
        root: str,
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
        kept = layout.kept(schema)
        columns, partition = arrow_schema(kept), list[str]()
        if sid is not None:
            require_free_name(target, layout.columns(columns), sid)
            columns, partition = with_sid(columns, sid), [sid.column]
        structure = Structure.new(layout.columns(columns), partition)
        numbers = {field.name: field.number for field in structure.fields}
        first = Recorded(schema, kept, {one.number: numbers[one.name] for one in kept.columns})
        properties = {
            TARGET: str(target),
            KEY: json.dumps(kept.key if layout.has_identifiers else ()),
            structure_property(source): first.to_json(),
            **made_under(source, layout),
            **({copy_property(source): COPYING} if start is None else {}),
        }
        moved = {entry_app(source): 0} | ({} if start is None else {position_app(source): stored_position(start)})
        actions = structure.actions(None, properties) + [transaction(app, number) for app, number in moved.items()]
        with reaching(f"table {target}: it cannot be made"):
            make_folder(TableLog(root).folder)
        try:
            TableLog(root).put(actions, "CREATE TABLE", {"isManaged": "false"})
        except StaleBase:
            return  # it is read next, and must be what we would have made

    def _opened(
        self,
        target: TableId,
        log: TableLog,
        turns: Turns,
        *,
        schema: TableSchema,
        source: str,
        layout: Layout,
        sid: Sid | None,
    ) -> OpenTable:
        require_layout(target, log.state.configuration.get(LAYOUT), layout)
        following = recorded(log.state, source) or Recorded(schema, layout.kept(schema), {})
        opened = OpenTable(
            target=target,
            source=source,
            log=log,
            turns=turns,
            sid=sid,
            layout=layout,
            upkeep=TableUpkeep(self._deferred_deletes(target), commits_since_expiry=log.version),
            structure=Structure.of(log.state),
            following=following,
            strayed=why_lost(log, source),
        )
        if following.fields or sid is not None:
            self._look(opened)
        return opened

    def _look(self, opened: OpenTable) -> None:
        """Read from the log what follows from its structure and files."""
        opened.structure = Structure.of(opened.log.state)
        fields, following = opened.structure.fields, opened.following
        if opened.sid is None:
            wanted = arrow_schema(following.kept)
            numbers = [following.fields[column.number] for column in following.kept.columns]
            opened.columns, opened.slice = located(opened.target, fields, wanted, numbers), None
        else:
            opened.columns, opened.slice = self._share(opened, opened.sid)
        opened.around = named_columns(opened.target, fields, opened.layout.around)
        opened.others = unfollowed(fields, [column.id for column in opened.stored])
        opened.state = opened.read_state()

    def _share(self, opened: OpenTable, sid: Sid) -> tuple[tuple[LakeColumn, ...], SourceSlice]:
        column = self._sid_column(opened, sid)
        if not opened.following.fields:  # not one of its sources yet
            return (), SourceSlice(sid.value, 0, (column,))
        own, kept = columns_in_union(opened.target, opened.structure, opened.following)
        return own, SourceSlice(sid.value, 0, (column, *kept))

    def _sid_column(self, opened: OpenTable, sid: Sid) -> LakeColumn:
        """Return the column of the sid. SchemaChanged when the table was not made for several sources."""
        type = with_sid(pa.schema([]), sid).field(0).type
        partitions = list(opened.structure.metadata.get("partitionColumns") or ())
        field = next((one for one in opened.structure.fields if one.name == sid.column), None)
        if field is None or field.type != type or partitions != [sid.column]:
            raise SchemaChanged(
                f"table {opened.target}: it is not partitioned by a sid, so it was not made for several sources",
                f"Give the sources' tables another `target`, or drop {opened.target}: it is made and copied again",
            )
        return field.column(type)

    def _take_in(self, opened: OpenTable, schema: TableSchema, start: Position | None, sid: Sid) -> None:
        """Make the source one of those that feed the table: its columns, and where it stands."""
        kept = opened.layout.kept(schema)
        key = tuple(json.loads(opened.log.state.configuration.get(KEY) or "[]"))
        steps = union_steps(opened.target, opened.structure, kept, sid, key=key)
        structure = opened.structure.evolved(steps)
        columns, _ = united_columns(structure, arrow_schema(kept), sid)
        fields = {one.number: column.id for one, column in zip(kept.columns, columns, strict=True)}
        entry = Entry(opened)
        if steps:
            entry.become(structure)
        entry.set_properties(
            {
                structure_property(opened.source): Recorded(schema, kept, fields).to_json(),
                **made_under(opened.source, opened.layout),
                **({copy_property(opened.source): COPYING} if start is None else {}),
            }
        )
        entry.stand(start)
        entry.put("SET TBLPROPERTIES", f"table {opened.target}: taking in source {sid.value}")

    def _clean_up(self, opened: OpenTable, keep: Sequence[str]) -> None:
        """Remove what killed writers left behind; put off when somebody commits at this very moment."""
        self.index_of(opened).remove_all_but([*(file.location for file in opened.files()), *keep])
        orphans = find_orphans(opened, keep)
        if not orphans:
            return
        try:
            remove_orphans(opened, orphans)
        except StaleBase:
            opened.state = None
            return
        self._look(opened)


def _is_of_family(log: TableLog, family: str) -> bool:
    """Return whether a source of the family feeds the table."""
    return any(source == family or source.startswith(f"{family}.") for source in sources_of(log.state))
