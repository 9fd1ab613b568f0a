"""Files of a table that nobody needs: what killed writers left behind, found when it is opened and by a sweep.

A file of ours that is younger than the last entry and in no version was written by somebody who died, or who has not
committed yet; a file of a copy may be of any age, and is kept if somebody says that the copy goes on. Whoever lives is
shut out first: an entry of the log makes every plan stale. A sweep lists the folder once in a while, beside batches,
for whatever else is unknown and older than a safe age; a copy's files it leaves alone.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Collection, Iterator

import structlog

from penstock.destinations.delta.commit import Entry, require_base
from penstock.destinations.delta.log_files import FOLDER as LOG_FOLDER
from penstock.destinations.delta.open_table import OpenTable
from penstock.destinations.delta.vectors import FOLDER as VECTORS
from penstock.destinations.lake.data_files import COPY_PREFIX, PREFIX
from penstock.destinations.lake.storage import files_in, reaching, remove
from penstock.failpoints import reach

LOG = structlog.get_logger("delta")
_VECTORS = re.compile(r"deletion_vector_.+\.bin")
_UNFINISHED = re.compile(r"\..+\.tmp")


def find_orphans(opened: OpenTable, keep: Collection[str] = ()) -> list[str]:
    """Return files of ours that no version refers to and that are not to be kept."""
    since = opened.log.committed_at
    with reaching(f"table {opened.target}: its folder cannot be listed"):
        suspected = {path for path, changed in _listed(opened) if _is_copied(path) or changed > since}
    candidates = suspected - set(keep)
    return sorted(candidates - _known(opened)) if candidates else []


def _known(opened: OpenTable) -> set[str]:
    """Return every file that the table consists of, or that leaves anyway."""
    state = opened.log.state
    return state.locations() | state.removed_locations(state.removed.values()) | opened.upkeep.deferred.locations()


def _listed(opened: OpenTable) -> Iterator[tuple[str, float]]:
    """Yield the files of ours in the table's folder, and when each was last changed."""
    places = [(opened.folder, re.compile(rf"{PREFIX}.+")), (f"{opened.root}/{VECTORS}", _VECTORS)]
    for folder, names in places:
        for name, changed in files_in(folder).items():
            if names.fullmatch(name):
                yield f"{folder}/{name}", changed


def _is_copied(path: str) -> bool:
    return path.rpartition("/")[2].startswith(COPY_PREFIX)


def remove_orphans(opened: OpenTable, orphans: Collection[str]) -> None:
    """Shut out writers that have not committed yet, then remove the files. StaleBase if one has committed meanwhile."""
    shut_out(opened)
    with reaching(f"table {opened.target}: files of killed writers cannot be removed"):
        for location in orphans:
            remove(location)


def still_unknown(opened: OpenTable, left: Collection[str]) -> list[str]:
    """Shut out older writers, and return the files that are unknown after that."""
    shut_out(opened)
    return [path for path in left if path not in _known(opened)]


def shut_out(opened: OpenTable) -> None:
    """Make an entry, after which whatever was planned before cannot be committed.

    StaleBase if somebody has committed meanwhile.
    """
    what = f"table {opened.target}: files that nobody knows cannot be removed"
    with opened.turns.lock:
        if opened.state is not None:
            require_base(opened, opened.state.metadata, what)
        entry = Entry(opened)
        entry.note(opened.fence, secrets.randbits(62))
        entry.put("SET TBLPROPERTIES", what)
        opened.state = opened.read_state()


def unknown(opened: OpenTable, age: float) -> list[str]:
    """Return files older than a safe age that nobody knows.

    What is known is asked after they were listed: whatever is committed meanwhile is known then.
    """
    before = time.time() - age
    with reaching(f"table {opened.target}: its folder cannot be listed"):
        listed = {path for path, changed in _listed(opened) if changed < before and not _is_copied(path)}
        log = f"{opened.root}/{LOG_FOLDER}"
        listed |= {
            f"{log}/{name}"
            for name, changed in files_in(log).items()
            if _UNFINISHED.fullmatch(name) and changed < before
        }
    if not listed:
        return []
    with opened.turns.lock:
        found = sorted(listed - _known(opened))
    if found:
        reach("sweep.found")
    return found
