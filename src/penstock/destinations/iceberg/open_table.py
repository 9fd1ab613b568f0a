"""What a table consists of at one moment, as its current snapshot says: live data files, live delete files, positions.

Read from the manifests when somebody else touched the table, and otherwise carried on by the driver from its own
commits: a metadata file is immutable, so the same name means the same state. The driver's side of the table;
`tables` keeps one for each, plans get the extract that a write needs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from penstock.decode.rescue import RESCUED
from penstock.destinations.iceberg.bounds import bounds, described_bounds
from penstock.destinations.iceberg.columns import rescued_column
from penstock.destinations.iceberg.java import Java, JavaObject
from penstock.destinations.iceberg.source_partition import is_in_slice
from penstock.destinations.lake.columns import LakeColumn
from penstock.destinations.lake.data_files import WrittenFile
from penstock.destinations.lake.file_list import LiveFile, TableState
from penstock.destinations.lake.known_table import CopyBase, KnownTable
from penstock.destinations.lake.properties import COPYING, copy_property
from penstock.destinations.lake.source_partition import SourceSlice
from penstock.errors import SchemaChanged
from penstock.model.location import local_path
from penstock.model.position import Position, parse_position
from penstock.model.table import TableId

FORMAT_VERSION = 2
FENCE = "penstock.opened"  # changed by whoever removes leftovers of others


@dataclass(frozen=True)
class Standing:
    """What a metadata file says that every plan needs."""

    metadata: str
    position: Position | None
    moment: int  # 0: none yet
    rescued: LakeColumn  # the column RESCUED, or what it will be when it comes


@dataclass(kw_only=True)
class OpenTable(KnownTable):
    """With Java's table object, and what plans need of its metadata."""

    table: JavaObject
    location: str
    specs: JavaObject
    spec: int  # the unpartitioned one, or the one by sid
    rescued: LakeColumn | None = None  # None: it had not come when somebody last looked
    standing: Standing | None = None

    @cached_property
    def operations(self) -> JavaObject:
        return self.table.operations()

    @property
    def is_local(self) -> bool:
        return local_path(self.location) is not None

    @property
    def folder(self) -> str:
        return f"{self.location}/data" if self.slice is None else f"{self.location}/data/{self.slice.folder}"

    @property
    def fence(self) -> str:
        return FENCE if self.slice is None else f"{FENCE}.{self.source}"


def look_for_rescued(java: Java, opened: OpenTable) -> LakeColumn | None:
    """Return the column RESCUED of the table as it was last read; None when it has not come yet.

    Once there it stays.
    """
    if opened.rescued is None:
        schema = opened.table.schema()
        if schema.findField(RESCUED) is not None:
            opened.rescued = rescued_column(java.schemas.toJson(schema))
    return opened.rescued


def position_property(source: str) -> str:
    return f"penstock.position.{source}"


def position_of(metadata: JavaObject, source: str) -> Position | None:
    text = metadata.properties().get(position_property(source))
    return None if text is None else parse_position(text)


def moment_property(source: str) -> str:
    return f"penstock.moment.{source}"


def moment_of(metadata: JavaObject, source: str) -> int:
    """Of a table of versions: the last moment that was applied to it, in microseconds; 0 before the first."""
    return int(metadata.properties().get(moment_property(source)) or 0)


def is_copying(metadata: JavaObject, source: str) -> bool:
    """Return whether the table was made to be copied from the source, and no copy has been committed."""
    return bool(metadata.properties().get(copy_property(source)) == COPYING)


def copy_base(metadata: JavaObject, source: str, fence: str) -> CopyBase:
    return CopyBase(position_of(metadata, source), metadata.properties().get(fence))


def unpartitioned_spec(table: JavaObject, target: TableId) -> int:
    """Return the spec under which our files go. Tables are made with it; an operator may have added others since."""
    for number in table.specs().keySet():
        if table.specs().get(number).isUnpartitioned():
            return int(number)
    raise SchemaChanged(
        f"table {target}: it was made partitioned, and not by penstock",
        f"Give the table another `target`, or drop {target}",
    )


def require_format(metadata: JavaObject, target: TableId) -> None:
    """SchemaChanged if somebody upgraded the table: a later version wants rows to be ended in another way."""
    if metadata.formatVersion() > FORMAT_VERSION:
        raise SchemaChanged(
            f"table {target}: somebody changed it at the destination: it has Iceberg's format version "
            f"{metadata.formatVersion()}, and penstock writes version {FORMAT_VERSION}",
            f"Versions cannot be taken back: drop {target} there and `penstock retry`: it is copied again",
        )


def read_state(
    java: Java,
    table: JavaObject,
    metadata: JavaObject,
    known: TableState | None = None,
    slice: SourceSlice | None = None,
    leading: LakeColumn | None = None,
) -> TableState:
    """Return the state under a metadata file; of a slice, its files. `leading` is the key's first column.

    Manifests are read unless `known` is of the same snapshot: that has the same files.
    """
    location, snapshots = metadata.metadataFileLocation(), metadata.snapshots().size()
    snapshot = metadata.currentSnapshot()
    if snapshot is None:
        return TableState(location, None, 0, snapshots, (), ())
    if known is not None and known.snapshot == snapshot.snapshotId():
        return replace(known, metadata=location, snapshots=snapshots)
    data, deletes = held_files(java, table, snapshot, slice)
    return TableState(
        location,
        snapshot.snapshotId(),
        snapshot.sequenceNumber(),
        snapshots,
        tuple(_described(java, file, leading) for file in data),
        tuple(_described(java, file, None) for file in deletes),
    )


def carried(state: TableState, metadata: JavaObject) -> TableState:
    """Return the same files under a newer metadata file, which changed those of other sources only."""
    snapshot = metadata.currentSnapshot()
    return replace(
        state,
        metadata=metadata.metadataFileLocation(),
        snapshots=metadata.snapshots().size(),
        snapshot=None if snapshot is None else snapshot.snapshotId(),
        sequence=state.sequence if snapshot is None else snapshot.sequenceNumber(),
    )


def held_files(
    java: Java, table: JavaObject, snapshot: JavaObject, slice: SourceSlice | None = None
) -> tuple[list[JavaObject], list[JavaObject]]:
    """Return the data files and delete files of a snapshot, or those of a slice, as Iceberg has them."""
    io, specs = table.io(), table.specs()
    data: list[JavaObject] = []
    deletes: list[JavaObject] = []
    for manifest in snapshot.dataManifests(io):
        data.extend(java.listed(java.manifests.read(manifest, io, specs)))
    for manifest in snapshot.deleteManifests(io):
        deletes.extend(java.listed(java.manifests.readDeleteManifest(manifest, io, specs)))
    if slice is not None:
        data = [file for file in data if is_in_slice(file, slice)]
        deletes = [file for file in deletes if is_in_slice(file, slice)]
    return data, deletes


def _described(java: Java, file: JavaObject, leading: LakeColumn | None) -> LiveFile:
    return LiveFile(
        file.location(),
        file.recordCount(),
        file.fileSizeInBytes(),
        file.dataSequenceNumber(),
        file.content().name().lower().replace("_", "-"),
        file.specId(),
        bounds=None if leading is None else bounds(*java.bounds(file, leading.id), leading),
    )


def live(written: WrittenFile, sequence: int, opened: OpenTable) -> LiveFile:
    """Describe a file of ours as it is once committed."""
    content = str(written.description["content"])
    found = described_bounds(written.description, opened.leading) if content == "data" else None
    return LiveFile(
        written.path, written.records, written.size, sequence, content, opened.spec, written.hits, bounds=found
    )
