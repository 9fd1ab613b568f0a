"""What no reader needs any more goes: old snapshots with their files, and files that killed writers left behind.

Snapshots expire by number and age, as the destination's settings say. What only they referred to stays for a while, for
queries in flight: Iceberg says which files these are, and `deferred_deletes` removes them later. A
file of ours that is younger than the current snapshot and in none was written by somebody who died, or who has not
committed yet; a file of a copy may be of any age, and is kept if somebody says that the copy goes on. Whoever lives is
shut out first: a strict commit of a mark changes the table's metadata, so that no write planned before it can be
committed. Neighbour: `destination`, which calls it between batches, after copies and when a table is opened."""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection

import structlog
from pyarrow import fs

from penstock.destinations.iceberg.commit import carried_on, note_turn, strict
from penstock.destinations.iceberg.java import Collected, Java, JavaObject, present, translated
from penstock.destinations.iceberg.open_table import OpenTable
from penstock.destinations.lake.data_files import COPY_PREFIX, PREFIX
from penstock.destinations.lake.file_list import TableState
from penstock.destinations.lake.settings import MaintenanceSettings
from penstock.destinations.lake.storage import opened as opened_storage
from penstock.destinations.lake.storage import reaching, remove
from penstock.errors import StaleBase
from penstock.failpoints import reach

LOG = structlog.get_logger("iceberg")


def keeps_history(opened: OpenTable) -> bool:
    """Return whether nobody may remove what only the table's history refers to: its property `gc.enabled` says so.

    Nessie has its own history of each table, and sets it.
    """
    with translated(f"table {opened.target}: its properties cannot be read"):
        properties = present(opened.operations.current(), opened.target).properties()
        return str(properties.get("gc.enabled") or "true").lower() == "false"


def expire_snapshots(java: Java, opened: OpenTable, state: TableState, settings: MaintenanceSettings) -> None:
    """Keep few snapshots, for every commit writes all of them again; what they let go leaves after `keep_for`.

    StaleBase if somebody else has changed the table since `state` was read: they may have rolled it back, and then the
    snapshot that was ours is what an operator puts back.
    """
    oldest = int((time.time() - settings.time_travel) * 1000)
    let_go = Collected(java)
    what = f"table {opened.target}: its old snapshots cannot be removed"
    with opened.turns.lock, translated(what):
        start = present(opened.operations.refresh(), opened.target).metadataFileLocation()
        if not opened.turns.spans(state.metadata, start, opened.source):
            opened.has_others = True
            raise StaleBase(f"{what}: the table has changed since its state was read", "It is read again")
        expiry = opened.table.expireSnapshots().expireOlderThan(oldest).retainLast(settings.keep_snapshots)
        (expiry.planWith(java.at_once) if opened.is_local else expiry).deleteWith(let_go.consumer).commit()
        note_turn(opened, start, columns=False)
        _put_off(opened, let_go.strings(), time.time() + settings.keep_for)
    reach("leaving.listed")


def _put_off(opened: OpenTable, files: list[str], due: float) -> None:
    """Leave files that cannot be noted to the sweep: their snapshots are gone, and they cost room and nothing else."""
    try:
        opened.upkeep.deferred.put(files, due)
    except OSError as error:
        LOG.warning(
            "files of old snapshots not noted: they stay until the table's folder is swept",
            table=str(opened.target),
            files=len(files),
            what=str(error),
        )


def find_orphans(java: Java, opened: OpenTable, state: TableState, keep: Collection[str] = ()) -> list[str]:
    """Return files of ours that no snapshot refers to and that need not be kept.

    Kept are those younger than the current snapshot, and those of a copy, which may be older and not committed yet.
    """
    with opened.turns.lock, translated(f"table {opened.target}: its snapshots cannot be read"):
        return _orphans(java, opened, state, keep)


def _orphans(java: Java, opened: OpenTable, state: TableState, keep: Collection[str]) -> list[str]:
    """In turn, and of the table as it is now: of what it was, another source may have expired the manifests."""
    metadata = present(opened.operations.refresh(), opened.target)
    snapshot = metadata.currentSnapshot()
    since = snapshot.timestampMillis() if snapshot is not None else 0
    live = {file.path for file in (*state.data, *state.deletes)}
    with reaching(f"table {opened.target}: its folder cannot be listed"):
        system, path = opened_storage(opened.folder)
        suspected = {
            f"{opened.folder}/{info.base_name}"
            for info in system.get_file_info(fs.FileSelector(path, allow_not_found=True))
            if info.is_file
            and (
                info.base_name.startswith(COPY_PREFIX)
                or (info.base_name.startswith(PREFIX) and (info.mtime_ns or 0) // 1_000_000 > since)
            )
        }
    candidates = suspected - live - set(keep)
    if candidates:
        candidates -= opened.upkeep.deferred.locations()
    return sorted(candidates - referenced(java, opened.table, metadata)) if candidates else []


def remove_orphans(java: Java, opened: OpenTable, state: TableState, orphans: list[str], *, mark: bool) -> None:
    """Shuts out writers that have not committed yet, then removes the files; the table's state is what it is then.

    StaleBase if one has committed meanwhile.
    """
    opened.state = shut_out(java, opened, state, mark=mark)
    with reaching(f"table {opened.target}: files of killed writers cannot be removed"):
        for location in orphans:
            remove(location)


def shut_out(java: Java, opened: OpenTable, state: TableState, *, mark: bool) -> TableState | None:
    """Whatever was planned before cannot be committed any more; gives the state that follows.

    StaleBase if somebody has committed meanwhile.
    """
    what = f"table {opened.target}: files that nobody knows cannot be removed"
    with strict(java, opened, state.metadata, what) as transaction:
        transaction.set_properties({opened.fence: uuid.uuid4().hex})
        if mark:
            transaction.mark()
        if mark and not opened.strayed:
            transaction.stand({})  # some catalogs keep no history by which the mark would be known to be ours
    return carried_on(java, opened, state)


def referenced(java: Java, table: JavaObject, metadata: JavaObject) -> set[str]:
    """Return every file that any snapshot of the table refers to: data, deletes, manifests and their lists."""
    io, specs = table.io(), table.specs()
    manifests: set[str] = set()
    files: set[str] = set()
    for snapshot in metadata.snapshots():
        files.add(snapshot.manifestListLocation())
        for manifest in snapshot.allManifests(io):
            if manifest.path() not in manifests:
                manifests.add(manifest.path())
                files.update(java.joined(java.listed(java.manifests.readPaths(manifest, io, specs))))
    return files | manifests
