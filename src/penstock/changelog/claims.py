"""Let one writer at a time extend a shared change log, however long another one has slept.

Where a standby may take over, two captures may believe that the log is theirs: the old one was stopped in the middle of
anything, and wakes up. A lock does not help, for a machine that stands still keeps it. So whoever extends the log does
it by a file that can be created only once, named by the log's end as the writer knows it and by a number:

    000000000a3f1c28.000000.claim    empty: a writer has taken the log over at this end
    000000000a3f1c28.000001.claim    a segment that begins the next piece; its own name comes after this one

A writer that takes over creates an empty claim behind all others at the log's end; only it knows the number that comes
next. To seal a segment it gives the whole file that number, and then its own name. A writer that slept knows an earlier
number, which is taken: LeaseLost. If the sleeper came first, its claim holds a whole segment, which the new writer
gives its name, and takes over behind it. Empty claims stay: a sleeper may wake up at any time.

A folder needs hard links and exclusive creation, which local ones and NFS have. In S3 a claim is a PUT that succeeds
only where there is no such file, and the store itself copies a claim to the segment's name. Used by `writer.py`.
"""

from __future__ import annotations

import os
import re
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from penstock.changelog.log import ChangeLog
from penstock.changelog.segment import HEADER_KEY, SegmentHeader, segment_name
from penstock.errors import LeaseLost, LockedError
from penstock.model.position import Position
from penstock.s3_folder import S3Folder, has_s3_client

_CLAIM = re.compile(r"([0-9a-f]{16})\.(\d{6})\.claim")

Whole = TypeVar("Whole", contravariant=True)  # a whole segment, as the writer has it


class ClaimFiles(Protocol[Whole]):
    """The files of a shared log. Whatever does not work is an OSError."""

    def sizes(self) -> dict[str, int]:
        """Return the names of the files, and how many bytes each has."""
        ...

    def mark(self, claim: str) -> None:
        """Create an empty claim. FileExistsError where there is one."""
        ...

    def claim(self, whole: Whole, claim: str) -> None:
        """Make a whole segment a claim. FileExistsError where there is one."""
        ...

    def name(self, claim: str, name: str) -> None:
        """Give a claim's segment its name too, if it has not got it. FileNotFoundError where there is no claim."""
        ...

    def header(self, claim: str) -> bytes:
        """Return the header of a claim's segment. FileNotFoundError where there is no claim."""
        ...

    def exists(self, name: str) -> bool: ...

    def remove(self, name: str) -> None: ...


class Claims(Generic[Whole]):
    """Of one writer of a log. OSError where its folder or store does not work."""

    def __init__(self, log: ChangeLog, files: ClaimFiles[Whole]) -> None:
        self._log, self._files = log, files
        self._end: Position = 0
        self._next = 0
        self._claimed: tuple[str, str] | None = None  # a claim of ours whose segment may not have its name yet

    def take_over(self) -> None:
        """Shut out whoever has written to the log, at its end as it is then."""
        while True:
            end = self._log.end() or 0
            taken = self._taken(end)
            if taken and taken[-1][2]:
                self._complete(taken[-1][1])
                continue
            number = taken[-1][0] + 1 if taken else 0
            try:
                self._files.mark(_claim(end, number))
            except FileExistsError:
                continue
            if (self._log.end() or 0) == end:
                self._end, self._next = end, number + 1
                return

    def seal(self, whole: Whole, name: str, end: Position) -> None:
        """Give a whole and durable file its name as the log's next segment, up to `end`, or raise LeaseLost.

        After an OSError it may be called again, for the same segment. LockedError for another one: whoever opens the
        log next finishes the first.
        """
        claim = _claim(self._end, self._next)
        if self._claimed is not None and self._claimed != (claim, name):
            raise self._unfinished()
        if self._claimed is None:
            try:
                self._files.claim(whole, claim)
            except FileExistsError:
                raise self._lost() from None
            self._claimed = claim, name
        try:
            self._files.name(claim, name)
        except FileNotFoundError:
            if not self._files.exists(name):
                raise self._lost() from None  # whoever has taken over has named and removed it since
        self._files.remove(claim)
        self._claimed, self._end, self._next = None, end, 0

    def _unfinished(self) -> LeaseLost | LockedError:
        """Say why nothing can be sealed behind a claim of ours whose segment may have its name by now."""
        if self._claimed is None or not self._files.exists(self._claimed[0]):
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

    def _complete(self, claim: str) -> None:
        """Give a segment its name whose writer did not come to it."""
        with suppress(FileNotFoundError):  # its writer has, meanwhile
            content = self._files.header(claim)
            header = SegmentHeader.from_bytes(content)
            self._files.name(claim, segment_name(header.start, header.end, zlib.crc32(content)))
            self._files.remove(claim)

    def _taken(self, end: Position) -> list[tuple[int, str, int]]:
        """Return number, name and size of each claim at an end."""
        found = [(match, size) for name, size in self._files.sizes().items() if (match := _CLAIM.fullmatch(name))]
        return sorted((int(match[2]), match[0], size) for match, size in found if int(match[1], 16) == end)


class FolderFiles:
    """The files of a log in a folder. A whole segment is a durable file in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def sizes(self) -> dict[str, int]:
        sizes = {}
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # it has got its name meanwhile
                    sizes[entry.name] = entry.stat().st_size
        return sizes

    def mark(self, claim: str) -> None:
        os.close(os.open(self._folder / claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        self._fsync()

    def claim(self, whole: Path, claim: str) -> None:
        os.link(whole, self._folder / claim)

    def name(self, claim: str, name: str) -> None:
        self._fsync()
        with suppress(FileExistsError):
            os.link(self._folder / claim, self._folder / name)
        self._fsync()

    def header(self, claim: str) -> bytes:
        with pa.memory_map(str(self._folder / claim)) as file:
            return bytes(pa.ipc.open_file(file).schema.metadata[HEADER_KEY])

    def exists(self, name: str) -> bool:
        return (self._folder / name).exists()

    def remove(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)

    def _fsync(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class StoreFiles:
    """The files of a log in an S3 store. A whole segment is its content."""

    def __init__(self, folder: S3Folder) -> None:
        self._folder = folder

    def sizes(self) -> dict[str, int]:
        return self._folder.sizes()

    def mark(self, claim: str) -> None:
        self._folder.create(claim, b"")

    def claim(self, whole: bytes, claim: str) -> None:
        try:
            self._folder.create(claim, whole)
        except FileExistsError:
            # An answer that was lost on its way makes the client ask again
            if not whole or self._folder.read(claim) != whole:
                raise

    def name(self, claim: str, name: str) -> None:
        self._folder.copy(claim, name)

    def header(self, claim: str) -> bytes:
        content = pa.BufferReader(self._folder.read(claim))
        return bytes(pa.ipc.open_file(content).schema.metadata[HEADER_KEY])

    def exists(self, name: str) -> bool:
        return self._folder.mark(name) is not None

    def remove(self, name: str) -> None:
        self._folder.remove(name)


def claims_in_folder(log: ChangeLog) -> Claims[Path]:
    return Claims(log, FolderFiles(Path(log.folder)))


def is_found_by_environment(log: ChangeLog) -> bool:
    """Return whether a log is in S3 and its URI leaves endpoint and keys to the environment, which boto3 goes by."""
    return bool(log.filesystem.type_name == "s3") and not {"?", "@"} & {*log.uri}


def claims_in_store(log: ChangeLog) -> Claims[bytes] | None:
    """Return the claims of a log in S3; None where they cannot be, and `--standby` is refused."""
    if not is_found_by_environment(log) or not has_s3_client():
        return None
    bucket, _, folder = log.folder.partition("/")
    return Claims(log, StoreFiles(S3Folder(bucket, folder)))


def _claim(end: Position, number: int) -> str:
    return f"{end:016x}.{number:06d}.claim"
