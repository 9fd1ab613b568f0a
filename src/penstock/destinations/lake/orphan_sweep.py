"""Find and remove files of a table that nobody knows, once in a while and a few at a time.

A search lists the table's folder beside batches; what it finds goes between batches. Writers that are older than the
search are shut out before, so that none of them can commit a file that is being removed. A killed sweep is begun again:
a file beside the key index says when the last one ended. Each format says how it searches and how it shuts out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import structlog

from penstock.destinations.lake.background_work import BackgroundWork, Sweeping
from penstock.destinations.lake.deferred_deletes import AT_ONCE, remove_some
from penstock.destinations.lake.known_table import KnownTable
from penstock.destinations.lake.settings import MaintenanceSettings
from penstock.destinations.lake.storage import reaching
from penstock.errors import DestinationError
from penstock.failpoints import reach

LOG = structlog.get_logger("lake")


def is_due(marker: Path, settings: MaintenanceSettings) -> bool:
    """Return whether the last sweep, as the marker says, is long ago; an unknown one is."""
    try:
        return time.time() - marker.stat().st_mtime >= settings.sweep_every
    except FileNotFoundError:
        return True


def note_swept(marker: Path) -> None:
    """Note that the table's folder has been swept now."""
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()


def sweep(
    opened: KnownTable,
    *,
    search: Callable[[], list[str]],
    shut_out: Callable[[list[str]], list[str]],
    settings: MaintenanceSettings,
    background: BackgroundWork,
    marker: Path,
) -> int:
    """Begin a sweep that is due, or continue it, and return how many files it has removed.

    `search` runs in another thread and returns unknown files; if it fails, since somebody else's expiry removes what it
    reads, say, the next one comes when it is due. `shut_out` ends the rights of older writers and returns the files
    that are still unknown. StaleBase if somebody else commits at this very moment.
    """
    sweeping = opened.upkeep.sweeping
    if opened.state is None or opened.upkeep.merging is not None:
        return 0
    if sweeping is None:
        if not background.busy and is_due(marker, settings):
            opened.upkeep.sweeping = Sweeping(background.submit(search))
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
        left = shut_out(left)
        reach("sweep.shut")
    with reaching(f"table {opened.target}: files that nobody knows cannot be removed"):
        removed = remove_some(left, AT_ONCE, "sweep.file_removed")
    if left[removed:]:
        opened.upkeep.sweeping = Sweeping(sweeping.found, is_shut=True, left=left[removed:])
    else:
        note_swept(marker)
    return removed
