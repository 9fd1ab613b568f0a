"""Remove files that no snapshot refers to any more, but only when queries in flight no longer read them.

A commit writes all snapshots of the table into its metadata again, so few are kept; their files stay longer than they
do. What an expiry has let go is noted in a list of its own, named by the time when it is due, beside the key index.
When that has come, the files are removed between batches, a few at a time, and then the list. A removal that was killed
is begun again. A list that is lost costs room until the table's folder is swept.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import structlog

from penstock.destinations.lake.storage import remove
from penstock.failpoints import reach

AT_ONCE = 100  # files that are removed between two batches, at most
LONGEST = 0.5  # seconds that it takes, at most
LOG = structlog.get_logger("housekeeping")
SUFFIX = ".files"


class DeferredDeletes:
    """The files of one table that are to be removed, each at its time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lists = sorted(self._listed())  # by name, which begins with the time
        self._left: list[str] | None = None  # of the first list, as far as it has been read

    def put(self, locations: Sequence[str], due: float) -> None:
        """Note files that may be removed at that time, in seconds since 1970. OSError if they cannot be noted."""
        if not locations:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        place = self._folder / f"{int(due * 1000):015d}-{uuid.uuid4().hex}{SUFFIX}"
        partial = place.with_suffix(".partial")
        content = "\n".join(locations).encode()
        with partial.open("wb") as file:
            file.write(_checksum(content) + b"\n" + content)
            file.flush()
            os.fsync(file.fileno())  # half a path could be that of something else
        partial.replace(place)
        if self._left is None:
            self._lists = sorted([*self._lists, place])
        else:  # the one that is worked on stays the first
            self._lists = [self._lists[0], *sorted([*self._lists[1:], place])]

    def locations(self) -> set[str]:
        """Return all that are noted, by whatever driver of the pipeline."""
        return {location for place in self._listed() for location in _read(place)}

    def remove_due(self, needed: Callable[[], Collection[str]] = frozenset) -> int:
        """Remove as many as batches may wait for of those whose time has come, and return how many.

        `needed`, asked when there are any, gives files that are in the table again, and stay.
        """
        removed = 0
        while self._lists and removed < AT_ONCE and _due(self._lists[0]) <= time.time():
            place = self._lists[0]
            if self._left is None:
                back = needed()
                self._left = [location for location in _read(place) if location not in back]
            done = remove_some(self._left, AT_ONCE - removed, "leaving.file_removed")
            removed, self._left = removed + done, self._left[done:]
            if self._left:
                break
            place.unlink(missing_ok=True)
            self._lists, self._left = self._lists[1:], None
        return removed

    def _listed(self) -> Iterator[Path]:
        return self._folder.glob(f"*{SUFFIX}")


def remove_some(locations: Sequence[str], most: int, failpoint: str) -> int:
    """Remove the first files, as many as batches may wait for, and return how many."""
    until = time.monotonic() + LONGEST
    for number, location in enumerate(locations[:most], 1):
        remove(location)
        reach(failpoint)
        if time.monotonic() >= until:
            return number
    return min(len(locations), most)


def _due(place: Path) -> float:
    return int(place.name.partition("-")[0]) / 1000


def _read(place: Path) -> list[str]:
    """Return the locations of a list; none of one that is damaged, whose files the next sweep removes."""
    try:
        checksum, _, content = place.read_bytes().partition(b"\n")
    except FileNotFoundError:  # another one has removed them all meanwhile
        return []
    if checksum != _checksum(content):
        LOG.warning("list of files to remove is damaged, left to the sweep", list=str(place))
        return []
    return content.decode().splitlines()


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
