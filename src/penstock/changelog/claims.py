"""Let one writer at a time extend a change log in a shared folder, however long another one has slept.

Where a standby may take over, two captures may believe that the log is theirs: the old one was stopped in the middle of
anything, and wakes up. A lock does not help, for a machine that stands still keeps it. So whoever extends the log does
it by a file that can be created only once, named by the log's end as the writer knows it and by a number:

    000000000a3f1c28.000000.claim    empty: a writer has taken the log over at this end
    000000000a3f1c28.000001.claim    a segment that begins the next piece; its own name comes after this one

A writer that takes over creates an empty claim behind all others at the log's end; only it knows the number that comes
next. To seal a segment it links the whole file to that number, and then gives it its own name. A writer that slept
knows an earlier number, which is taken: LeaseLost. If the sleeper came first, its claim holds a whole segment, which
the new writer gives its name, and takes over behind it. Empty claims stay: a sleeper may wake up at any time.

Needs hard links and exclusive creation, which local folders and NFS have. Used by `writer.py`.
"""

from __future__ import annotations

import os
import re
import zlib
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from penstock.changelog.log import ChangeLog
from penstock.changelog.segment import HEADER_KEY, SegmentHeader, segment_name
from penstock.errors import LeaseLost, LockedError
from penstock.model.position import Position

_CLAIM = re.compile(r"([0-9a-f]{16})\.(\d{6})\.claim")


class Claims:
    """Of one writer of a log in a folder. OSError where the folder does not work."""

    def __init__(self, log: ChangeLog) -> None:
        self._log, self._folder = log, Path(log.folder)
        self._end: Position = 0
        self._next = 0
        self._linked: tuple[Path, str] | None = None  # a claim of ours whose segment may not have its name yet

    def take_over(self) -> None:
        """Shut out whoever has written to the log, at its end as it is then."""
        while True:
            end = self._log.end() or 0
            taken = self._taken(end)
            if taken and taken[-1][1].stat().st_size:
                self._complete(taken[-1][1])
                continue
            number = taken[-1][0] + 1 if taken else 0
            try:
                os.close(os.open(self._path(end, number), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
            except FileExistsError:
                continue
            _fsync(self._folder)
            if (self._log.end() or 0) == end:
                self._end, self._next = end, number + 1
                return

    def seal(self, temporary: Path, name: str, end: Position) -> None:
        """Give a whole and durable file its name as the log's next segment, up to `end`, or raise LeaseLost.

        After an OSError it may be called again, for the same segment. LockedError for another one: whoever opens the
        log next finishes the first.
        """
        claim, named = self._path(self._end, self._next), self._folder / name
        if self._linked is not None and self._linked != (claim, name):
            raise self._unfinished()
        if self._linked is None:
            try:
                os.link(temporary, claim)
            except FileExistsError:
                raise self._lost() from None
            self._linked = claim, name
        _fsync(self._folder)
        try:
            os.link(claim, named)
        except FileExistsError:
            pass
        except FileNotFoundError:
            if not named.exists():
                raise self._lost() from None  # whoever has taken over has named and removed it since
        _fsync(self._folder)
        claim.unlink(missing_ok=True)
        temporary.unlink(missing_ok=True)
        self._linked, self._end, self._next = None, end, 0

    def _unfinished(self) -> LeaseLost | LockedError:
        """Say why nothing can be sealed behind a claim of ours whose segment may have its name by now."""
        if self._linked is None or not self._linked[0].exists():
            return self._lost()
        return LockedError(
            f"an earlier segment of the change log {self._log.uri} has no name yet", "Capture is started again"
        )

    def _lost(self) -> LeaseLost:
        return LeaseLost(
            f"another capture has taken over the change log {self._log.uri}; what this one still had is not "
            "written, and the other one reads it from the source",
            "Nothing is lost or written twice. With --standby this run waits for its turn again",
        )

    def _complete(self, claim: Path) -> None:
        """Give a segment its name whose writer did not come to it."""
        with suppress(FileNotFoundError), pa.memory_map(str(claim)) as file:  # its writer has, meanwhile
            content = pa.ipc.open_file(file).schema.metadata[HEADER_KEY]
            header = SegmentHeader.from_bytes(content)
            with suppress(FileExistsError):
                os.link(claim, self._folder / segment_name(header.start, header.end, zlib.crc32(content)))
            _fsync(self._folder)
            claim.unlink(missing_ok=True)

    def _taken(self, end: Position) -> list[tuple[int, Path]]:
        found = [match for name in os.listdir(self._folder) if (match := _CLAIM.fullmatch(name))]  # noqa: PTH208
        return sorted((int(match[2]), self._folder / match[0]) for match in found if int(match[1], 16) == end)

    def _path(self, end: Position, number: int) -> Path:
        return self._folder / f"{end:016x}.{number:06d}.claim"


def _fsync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
