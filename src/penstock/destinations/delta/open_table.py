"""A table that this driver works on, as one source sees it, and what its log says of where it stands.

The position is a transaction of the log (`txn`), which every entry of ours carries with the rows: state of the table,
which checkpoints keep and no reader minds. What changes rarely is in the table's properties. Neighbours: `tables`,
which keeps one of these for each table and source, and `commit`, which moves it on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from penstock.decode.choices import fitted
from penstock.destinations.delta.actions import AddedFile, LogState
from penstock.destinations.delta.data_files import DeltaFormat
from penstock.destinations.delta.log import TableLog
from penstock.destinations.delta.structure import Structure
from penstock.destinations.delta.type_map import DELTA_TYPES
from penstock.destinations.lake.file_list import TableState
from penstock.destinations.lake.known_table import CopyBase, KnownTable
from penstock.destinations.lake.properties import copy_property, structure_property
from penstock.destinations.lake.recorded_structure import Recorded
from penstock.errors import LineageLost
from penstock.model.position import Position
from penstock.model.table import TableSchema

KEY = "penstock.key"
APP = "penstock/"
_SIGN = 1 << 63


@dataclass(kw_only=True)
class OpenTable(KnownTable):
    """`log` is shared by the sources of a table, as `turns` is."""

    log: TableLog
    structure: Structure

    @property
    def root(self) -> str:
        return self.log.root

    @property
    def folder(self) -> str:
        return self.root if self.slice is None else f"{self.root}/{self.slice.folder}"

    @property
    def fence(self) -> str:
        return f"{APP}opened" if self.slice is None else f"{APP}{self.source}/opened"

    @property
    def position(self) -> Position | None:
        return position_of(self.log.state, self.source)

    @property
    def moment(self) -> int:
        """Of a table of versions: the last moment that was applied to it, in microseconds; 0 before the first."""
        return self.log.state.transaction(moment_app(self.source)) or 0

    @property
    def table_format(self) -> DeltaFormat:
        return self.structure.table_format(self.root)

    @property
    def partition(self) -> Mapping[str, str]:
        """What the log says of files of this source."""
        if self.slice is None:
            return {}
        physical = next(field.physical for field in self.structure.fields if field.number == self.slice.column.id)
        return {physical: str(self.slice.value)}

    def files(self) -> Iterator[AddedFile]:
        """Yield the data files of this source."""
        own = self.partition
        for file in self.log.state.files.values():
            if not own or own.items() <= file.partition.items():
                yield file

    def read_state(self) -> TableState:
        """Return what the log says of the files of this source."""
        files = list(self.files())
        deletes = tuple(file.deletes for file in files if file.deletes is not None)
        return TableState(
            self.log.name, self.log.version, self.log.version, 1, tuple(file.live for file in files), deletes
        )

    def copy_base_now(self) -> CopyBase:
        return CopyBase(self.position, self.log.state.transaction(self.fence))


def position_app(source: str) -> str:
    return f"{APP}{source}"


def moment_app(source: str) -> str:
    return f"{APP}{source}/moment"


def entry_app(source: str) -> str:
    """Name the transaction whose version is that of the last entry which we made for a source."""
    return f"{APP}{source}/entry"


def position_of(state: LogState, source: str) -> Position | None:
    found = state.transaction(position_app(source))
    return None if found is None else found % (2 * _SIGN)


def stored_position(position: Position) -> int:
    """Return a position as the log has it: Delta's numbers have a sign."""
    return position if position < _SIGN else position - 2 * _SIGN


def recorded(state: LogState, source: str) -> Recorded | None:
    """Return the structure that the table says it follows."""
    text = state.configuration.get(structure_property(source))
    if text is None:
        return None
    raw = json.loads(text)
    fields = {int(number): field for number, field in raw["fields"].items()}
    schema = _read_schema(raw["schema"])
    return Recorded(schema, _read_schema(raw["kept"]) if raw["kept"] else schema, fields)


def _read_schema(raw: object) -> TableSchema:
    return fitted(TableSchema.from_json(json.dumps(raw)), DELTA_TYPES)


def sources_of(state: LogState) -> set[str]:
    """Return the sources that feed the table, or are to be copied into it."""
    prefix = copy_property("")
    told = {name.removeprefix(prefix) for name in state.configuration if name.startswith(prefix)}
    apps = {app.removeprefix(APP) for app in state.transactions if app.startswith(APP)}
    return told | {app for app in apps if "/" not in app and app != "opened"}


def why_lost(log: TableLog, source: str) -> str:
    """Say why the table no longer descends from what we last committed; "" if it does.

    A RESTORE takes rows back while the position stays. One to an entry of ours, or to what descends from it, puts back
    what was taken."""
    state = log.state
    ours = state.transaction(entry_app(source))
    if ours is None:
        return ""
    if structure_property(source) not in state.configuration:
        return "it was replaced: it does not say any more what it follows"
    if ours > log.version:
        return f"it was replaced: it is at version {log.version}, and we have made version {ours}"
    descends = {ours: True}
    for version in range(ours + 1, log.version + 1):
        operation = log.operation(version)
        if operation is None:
            return f"it is not known what was done to it since our version {ours}: entry {version} of its log is gone"
        if "REPLACE TABLE" in operation.name.upper():
            return f"it was replaced by version {version}"
        back = operation.restored
        descends[version] = descends[version - 1] if back is None else descends.get(back, False)
    return "" if descends[log.version] else f"it was restored to what it was before our version {ours}"


def require_lineage(opened: OpenTable) -> None:
    """LineageLost if what we committed is no longer in the table: its position then says more than is there."""
    if opened.strayed:
        ours = opened.log.state.transaction(entry_app(opened.source))
        raise LineageLost(
            f"table {opened.target}: somebody changed it at the destination: {opened.strayed}",
            f"Put our version back (`RESTORE TABLE … TO VERSION AS OF {ours}`) and `penstock retry`; or "
            "`penstock resync`, which copies the table as it is now",
        )
