"""Files that nobody knows any more go: what a killed expiry left of old snapshots, and what killed writers left.

Once in a while a table's folder is listed, beside batches, and compared with what the table's metadata knows: every
snapshot's files, manifests and lists, and the metadata files themselves. What is unknown, not in `deferred_deletes`
anyway, ours or Iceberg's by its name, and older than a safe age, is removed between batches, a few files at a time; the
listing comes first, so whatever is committed meanwhile is known. Should a writer be at work that is older than that, it
is shut out before its files go: a strict commit of a mark changes the table's metadata, so that nothing planned before
it can be committed. A copy's files are left to `snapshot_expiry`, which is told which copies go on. A sweep that was
killed is begun again: when the last one ended, a file beside the key index says. Neighbour: `destination`, which calls
it between batches.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import structlog
from pyarrow import fs

from penstock.destinations.iceberg.java import Java, JavaObject, present, translated
from penstock.destinations.iceberg.open_table import OpenTable
from penstock.destinations.iceberg.snapshot_expiry import referenced, shut_out
from penstock.destinations.lake.background_work import BackgroundWork, Sweeping
from penstock.destinations.lake.data_files import COPY_PREFIX, PREFIX
from penstock.destinations.lake.deferred_deletes import AT_ONCE, remove_some
from penstock.destinations.lake.settings import MaintenanceSettings
from penstock.destinations.lake.storage import opened as opened_storage
from penstock.destinations.lake.storage import reaching
from penstock.errors import DestinationError, TableDropped
from penstock.failpoints import reach

LOG = structlog.get_logger("iceberg")
OURS = re.compile(rf"(?!{COPY_PREFIX}){PREFIX}.+")
METADATA = re.compile(r"snap-.+\.avro|.+-m\d+\.avro|.+\.metadata\.json")


def is_due(marker: Path, settings: MaintenanceSettings) -> bool:
    """Return whether the last sweep, as the marker says, is long ago; one that nobody knows of is."""
    try:
        return time.time() - marker.stat().st_mtime >= settings.sweep_every
    except FileNotFoundError:
        return True


def note_swept(marker: Path) -> None:
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()


def sweep(
    java: Java,
    opened: OpenTable,
    *,
    load: Callable[[], JavaObject | None],
    settings: MaintenanceSettings,
    background: BackgroundWork,
    marker: Path,
    mark: bool,
) -> int:
    """Begin a sweep that is due, or continue it, and return how many files it has removed. StaleBase if somebody else
    commits at this very moment. `load` gives the table for another thread. A search that fails, since somebody else's
    expiry removes what it reads, say, costs nothing but time: the next one comes when it is due."""
    state, sweeping = opened.state, opened.upkeep.sweeping
    if state is None or opened.upkeep.merging is not None:
        return 0
    if sweeping is None:
        if not background.busy and is_due(marker, settings):
            opened.upkeep.sweeping = Sweeping(
                background.submit(lambda: _unknown(java, opened, load, settings.sweep_age))
            )
        return 0
    if not sweeping.found.done():
        return 0
    opened.upkeep.sweeping = None  # an error ends it: it is begun again
    failed = sweeping.found.exception()
    if isinstance(failed, DestinationError):
        LOG.warning("folder not swept", table=str(opened.target), what=failed.what)
        note_swept(marker)
        return 0
    left = sweeping.left if sweeping.is_shut else sweeping.found.result()
    if left and not sweeping.is_shut:
        opened.state = shut_out(java, opened, state, mark=mark)
        reach("sweep.shut")
    with reaching(f"table {opened.target}: files that nobody knows cannot be removed"):
        removed = remove_some(left, AT_ONCE, "sweep.file_removed")
    if left[removed:]:
        opened.upkeep.sweeping = Sweeping(sweeping.found, is_shut=True, left=left[removed:])
    else:
        note_swept(marker)
    return removed


def _unknown(java: Java, opened: OpenTable, load: Callable[[], JavaObject | None], age: float) -> list[str]:
    before = time.time() - age
    what = f"table {opened.target}: its folder cannot be listed"
    with reaching(what):
        listed = _listed(opened.folder, OURS, before) + _listed(f"{opened.location}/metadata", METADATA, before)
    if not listed:
        return []
    try:
        with translated(what):
            with opened.turns.lock:  # what an expiry has let go is in one of the two
                table = load()
                leaving = opened.upkeep.deferred.locations()
            if table is None:
                return []
            metadata = present(table.operations().current(), opened.target)
            known = referenced(java, table, metadata) | leaving
            known.update(entry.file() for entry in metadata.previousFiles())
            known.add(metadata.metadataFileLocation())
    except TableDropped:
        return []
    names = {path.rpartition("/")[2] for path in known}
    unknown = sorted(path for path in listed if path.rpartition("/")[2] not in names)
    if unknown:
        reach("sweep.found")
    return unknown


def _listed(folder: str, names: re.Pattern[str], before: float) -> list[str]:
    """Files right in a folder that are older than that."""
    system, path = opened_storage(folder)
    return [
        f"{folder}/{info.base_name}"
        for info in system.get_file_info(fs.FileSelector(path, allow_not_found=True))
        if info.is_file and names.fullmatch(info.base_name) and (info.mtime_ns or 0) / 1e9 < before
    ]
