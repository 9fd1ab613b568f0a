"""Files that nobody knows any more go: what a killed expiry left of old snapshots, and what killed writers left.

Once in a while a table's folder is listed, beside batches, and compared with what the table's metadata knows: every
snapshot's files, manifests and lists, and the metadata files themselves. What is unknown, not in `deferred_deletes`
anyway, ours or Iceberg's by its name, and older than a safe age, is removed between batches, a few files at a time; the
listing comes first, so whatever is committed meanwhile is known. Should a writer be at work that is older than that, it
is shut out before its files go: a strict commit of a mark changes the table's metadata, so that nothing planned before
it can be committed. A copy's files are left to `snapshot_expiry`, which is given the copies in progress. A sweep that
was killed is begun again: a file beside the key index says when the last one ended. Neighbour: `destination`, which
calls it between batches.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import structlog
from pyarrow import fs

from penstock.destinations.iceberg.java import Java, JavaObject, present, translated
from penstock.destinations.iceberg.open_table import OpenTable
from penstock.destinations.iceberg.snapshot_expiry import keeps_history, referenced, shut_out
from penstock.destinations.lake.data_files import COPY_PREFIX, PREFIX
from penstock.destinations.lake.storage import opened as opened_storage
from penstock.destinations.lake.storage import reaching
from penstock.errors import TableDropped
from penstock.failpoints import reach

LOG = structlog.get_logger("iceberg")
OURS = re.compile(rf"(?!{COPY_PREFIX}){PREFIX}.+")
METADATA = re.compile(r"snap-.+\.avro|.+-m\d+\.avro|.+\.metadata\.json")


def still_unknown(java: Java, opened: OpenTable, left: list[str], *, mark: bool) -> list[str]:
    """Shut out older writers, and return the files that are unknown after that.

    `mark`: the catalog compares snapshots and nothing else.
    """
    assert opened.state is not None
    opened.state = shut_out(java, opened, opened.state, mark=mark)
    return left


def unknown(java: Java, opened: OpenTable, load: Callable[[], JavaObject | None], age: float) -> list[str]:
    """Return files older than a safe age that nobody knows.

    What is known is asked after they were listed: whatever is committed meanwhile is known then. `load` gives the table
    for another thread.
    """
    before = time.time() - age
    what = f"table {opened.target}: its folder cannot be listed"
    with reaching(what):
        listed = _listed(opened.folder, OURS, before) + _listed(f"{opened.location}/metadata", METADATA, before)
    if not listed or keeps_history(opened):
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
    found = sorted(path for path in listed if path.rpartition("/")[2] not in names)
    if found:
        reach("sweep.found")
    return found


def _listed(folder: str, names: re.Pattern[str], before: float) -> list[str]:
    """Return files right in a folder that are older than that."""
    system, path = opened_storage(folder)
    return [
        f"{folder}/{info.base_name}"
        for info in system.get_file_info(fs.FileSelector(path, allow_not_found=True))
        if info.is_file and names.fullmatch(info.base_name) and (info.mtime_ns or 0) / 1e9 < before
    ]
