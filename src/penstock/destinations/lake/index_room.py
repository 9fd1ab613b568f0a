"""Keep the key index of one destination within a size on the disk of each machine that has some of it.

Sidecars are a cache, so those that nobody has used for longest go first, whichever table they are of. A process looks
after it has written some: all sidecars are listed then, which takes a moment, so not for each of them. What a process
has mapped stays readable after it is removed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SUFFIXES = (".keys", ".gone")
LOOK_AFTER = 32  # a process looks when it has written that part of the room
LEAVE = 0.8  # of the room, when it was too small

_written: dict[Path, int] = {}  # by this process since it last looked


@dataclass(frozen=True)
class IndexRoom:
    """The folder of a destination's sidecars, and how many bytes it may have. Picklable."""

    folder: Path
    most: int

    def note(self, size: int) -> None:
        """Note that a sidecar of that size was written, and make room from time to time."""
        written = _written.get(self.folder, self.most) + size  # a new process looks at once
        _written[self.folder] = written
        if written * LOOK_AFTER >= self.most:
            _written[self.folder] = 0
            self.make_room()

    def make_room(self) -> int:
        """Remove the sidecars longest unused if there are too many, and return how many."""
        found = sorted(self._found())
        size, removed = sum(size for _, size, _ in found), 0
        if size <= self.most:
            return 0
        for _, one, path in found:
            if size <= self.most * LEAVE:
                break
            Path(path).unlink(missing_ok=True)
            size, removed = size - one, removed + 1
        return removed

    def _found(self) -> Iterator[tuple[int, int, str]]:
        """Yield when each sidecar was last used, its size and its path."""
        for parent, _, names in os.walk(self.folder):
            for name in names:
                if name.endswith(SUFFIXES):
                    path = os.path.join(parent, name)  # noqa: PTH118 - there are many
                    try:
                        stat = os.stat(path)  # noqa: PTH116
                    except FileNotFoundError:
                        continue
                    yield stat.st_atime_ns, stat.st_size, path


def note_use(path: Path, stat: os.stat_result) -> None:
    """Note that a sidecar is used now. Not every disk does so by itself."""
    try:
        os.utime(path, ns=(time.time_ns(), stat.st_mtime_ns))
    except OSError:
        return  # it goes sooner
