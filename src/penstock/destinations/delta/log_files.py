"""The files of a table's log: listed, read, and put there whole or not at all. On a local disk, or in an S3 store.

`create` is what commits stand on: of all who try to make a file of one name, one succeeds. On a disk that is a hard
link, in S3 a PUT with `If-None-Match: *` (`s3_folder.py`). Whatever a store says is raised as OSError.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from penstock.model.location import local_path
from penstock.s3_folder import Mark, S3Folder

FOLDER = "_delta_log"


class LogFiles(Protocol):
    def names(self) -> dict[str, float]:
        """Return the names of the files, and when each was last written, in seconds since 1970."""
        ...

    def read(self, name: str) -> bytes:
        """Return a file's content. FileNotFoundError if there is none."""
        ...

    def mark(self, name: str) -> Mark | None:
        """Return what distinguishes the file from others; None if there is none."""
        ...

    def create(self, name: str, content: bytes) -> Mark | None:
        """Make a file. FileExistsError if there is one, FileNotFoundError if the log is gone."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Replace a file, or write it if there is none."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is no error."""
        ...


def log_files(root: str) -> LogFiles:
    """Return the files of the log of the table at a location."""
    path = local_path(root)
    if path is not None:
        return LocalLogFiles(path / FOLDER)
    bucket, _, key = root.partition("://")[2].partition("/")
    return S3Folder(bucket, f"{key}/{FOLDER}")


@dataclass(frozen=True)
class LocalLogFiles:
    folder: Path

    def names(self) -> dict[str, float]:
        try:
            with os.scandir(self.folder) as found:
                return {entry.name: entry.stat().st_mtime for entry in found}
        except FileNotFoundError:
            return {}

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def mark(self, name: str) -> Mark | None:
        try:
            stat = (self.folder / name).stat()
        except FileNotFoundError:
            return None
        return Mark(f"{stat.st_ino}-{stat.st_mtime_ns}-{stat.st_size}", stat.st_mtime_ns / 1e9)

    def create(self, name: str, content: bytes) -> Mark | None:
        with self._unfinished(content) as unfinished:
            mark = self.mark(unfinished.name)
            os.link(unfinished, self.folder / name)
        return mark

    def write(self, name: str, content: bytes) -> None:
        with self._unfinished(content) as unfinished:
            unfinished.replace(self.folder / name)

    def remove(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    @contextmanager
    def _unfinished(self, content: bytes) -> Iterator[Path]:
        """Give a whole file, on the disk, under a name that means nothing."""
        place = self.folder / f".{uuid.uuid4().hex}.tmp"
        try:
            with place.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            yield place
        finally:
            place.unlink(missing_ok=True)
