"""What a table consists of at one moment, as its current snapshot says: live data files, live delete files, positions.

Read from the manifests when somebody else touched the table, and otherwise carried on by the driver from its own
commits: a metadata file is immutable, so the same name means the same state. The driver's side of the table;
`destination` keeps one for each, `plan` gets the extract that a write needs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.destinations.iceberg.java import Java, JavaObject
from penstock.destinations.iceberg.live_files import LiveFile, TableState
from penstock.destinations.iceberg.storage import local_path
from penstock.destinations.iceberg.table_schema import IcebergColumn
from penstock.errors import SchemaChanged
from penstock.model.position import Position, parse_position
from penstock.model.table import TableId


@dataclass
class OpenTable:
    """A table that this driver works on: Java's table object, and the state as last read; None when it must be read
    anew.
    """

    target: TableId
    table: JavaObject
    columns: tuple[IcebergColumn, ...]
    key: tuple[str, ...]
    location: str
    specs: JavaObject
    spec: int  # the unpartitioned one
    state: TableState | None
    commits_since_expiry: int
    settled: TableState | None = None  # in which there was nothing to compact

    @property
    def is_local(self) -> bool:
        return local_path(self.location) is not None

    @property
    def folder(self) -> str:
        return f"{self.location}/data"


def position_property(source: str) -> str:
    return f"penstock.position.{source}"


def position_of(metadata: JavaObject, source: str) -> Position | None:
    text = metadata.properties().get(position_property(source))
    return None if text is None else parse_position(text)


def unpartitioned_spec(table: JavaObject, target: TableId) -> int:
    """The spec under which our files go. Tables are made with it; a person may have added others since."""
    for number in table.specs().keySet():
        if table.specs().get(number).isUnpartitioned():
            return int(number)
    raise SchemaChanged(
        f"table {target}: it was made partitioned, and not by penstock",
        f"Give the table another `target`, or drop {target}",
    )


def read_state(java: Java, table: JavaObject, metadata: JavaObject, known: TableState | None = None) -> TableState:
    """The state under a metadata file. Manifests are read unless `known` is of the same snapshot: that has the same
    files.
    """
    location, snapshots = metadata.metadataFileLocation(), metadata.snapshots().size()
    snapshot = metadata.currentSnapshot()
    if snapshot is None:
        return TableState(location, None, 0, snapshots, (), ())
    if known is not None and known.snapshot == snapshot.snapshotId():
        return replace(known, metadata=location, snapshots=snapshots)
    io, specs = table.io(), table.specs()
    data: list[LiveFile] = []
    deletes: list[LiveFile] = []
    for manifest in snapshot.dataManifests(io):
        data += _files(java, java.manifests.read(manifest, io, specs))
    for manifest in snapshot.deleteManifests(io):
        deletes += _files(java, java.manifests.readDeleteManifest(manifest, io, specs))
    return TableState(
        location, snapshot.snapshotId(), snapshot.sequenceNumber(), snapshots, tuple(data), tuple(deletes)
    )


def _files(java: Java, reader: JavaObject) -> list[LiveFile]:
    return [
        LiveFile(
            file.location(),
            file.recordCount(),
            file.fileSizeInBytes(),
            file.dataSequenceNumber(),
            file.content().name().lower().replace("_", "-"),
            file.specId(),
        )
        for file in java.listed(reader)
    ]
