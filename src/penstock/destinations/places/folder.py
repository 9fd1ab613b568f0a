"""A folder on a file system or in an object store, as streams use it: whole files, nothing changed in place.

`LocalFolder` is a POSIX file system, local or shared by all executors: it has hard links and atomic renames.
`StoreFolder` is anything else that `pyarrow.fs` reaches: a file appears whole when it is closed, listings show what was
written before them (S3, Google Cloud Storage and Azure promise both), and a rename is a copy followed by a removal.

Both are picklable, and raise DestinationUnreachable when the storage does not answer.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from penstock.errors import DestinationUnreachable


class Folder(Protocol):
    @property
    def has_links(self) -> bool:
        """Whether `create` works: `chain.py` tells writers apart by it."""

    def under(self, name: str) -> Folder: ...

    def make(self) -> None:
        """Create the folder if it is not there."""

    def remove(self) -> bool:
        """Remove the folder with everything in it; False if there is no such folder."""

    def names(self) -> list[str]:
        """Return the names of its files; none if there is no such folder."""

    def read(self, name: str) -> bytes | None:
        """Return a file's content, or None if there is no such file."""

    def write(self, name: str, content: bytes) -> None:
        """Write a whole file durably; it replaces one of the same name."""

    def create(self, name: str, content: bytes) -> bool:
        """Write a whole file, durably, unless there is one of that name: then return False. Needs hard links."""

    def delete(self, name: str) -> None:
        """Remove a file, if it is there."""

    def writing(self, name: str) -> AbstractContextManager[Any]:
        """Give a binary stream into a new file, which is durable when the block is left."""

    def reading(self, name: str) -> Any:
        """Open a file for reading, as an Arrow file. FileNotFoundError if there is none."""

    def move(self, name: str, to: Folder, new_name: str) -> bool:
        """Give a file of this folder a name in another one of the same storage; False if there is no such file."""

    def age(self, name: str) -> float:
        """Return the seconds since a file was written; 0 if there is none."""


@dataclass(frozen=True)
class LocalFolder:
    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def has_links(self) -> bool:
        return True

    def under(self, name: str) -> LocalFolder:
        return LocalFolder(self.path / name)

    def make(self) -> None:
        with storing(self):
            self.path.mkdir(parents=True, exist_ok=True)

    def remove(self) -> bool:
        with storing(self):
            try:
                shutil.rmtree(self.path)
            except FileNotFoundError:
                return False
            return True

    def names(self) -> list[str]:
        with storing(self):
            try:
                with os.scandir(self.path) as found:
                    return [entry.name for entry in found if entry.is_file()]
            except FileNotFoundError:
                return []

    def read(self, name: str) -> bytes | None:
        with storing(self):
            try:
                return (self.path / name).read_bytes()
            except FileNotFoundError:
                return None

    def write(self, name: str, content: bytes) -> None:
        with storing(self), self._draft(content) as draft:
            draft.rename(self.path / name)
            sync(self.path)

    def create(self, name: str, content: bytes) -> bool:
        with storing(self), self._draft(content) as draft:
            try:
                os.link(draft, self.path / name)
            except FileExistsError:
                return False
            sync(self.path)
            return True

    def delete(self, name: str) -> None:
        with storing(self):
            (self.path / name).unlink(missing_ok=True)

    @contextmanager
    def writing(self, name: str) -> Iterator[Any]:
        with storing(self), (self.path / name).open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())

    def reading(self, name: str) -> Any:
        return pa.memory_map(str(self.path / name))

    def move(self, name: str, to: Folder, new_name: str) -> bool:
        if not isinstance(to, LocalFolder):
            raise TypeError("files are moved within one storage")
        with storing(self):
            try:
                (self.path / name).rename(to.path / new_name)
            except FileNotFoundError:
                return False
            sync(to.path)
            return True

    def age(self, name: str) -> float:
        with storing(self):
            try:
                return time.time() - (self.path / name).stat().st_mtime
            except FileNotFoundError:
                return 0.0

    @contextmanager
    def _draft(self, content: bytes) -> Iterator[Path]:
        draft = self.path / f".{uuid.uuid4().hex}"
        try:
            with draft.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            yield draft
        finally:
            draft.unlink(missing_ok=True)


@dataclass(frozen=True)
class StoreFolder:
    filesystem: fs.FileSystem
    path: str
    shown: str  # in messages: never with what an address may hold beside host and path

    def __str__(self) -> str:
        return self.shown

    @property
    def has_links(self) -> bool:
        return False

    def under(self, name: str) -> StoreFolder:
        return StoreFolder(self.filesystem, f"{self.path}/{name}", f"{self.shown}/{name}")

    def make(self) -> None:
        with storing(self):
            self.filesystem.create_dir(self.path, recursive=True)

    def remove(self) -> bool:
        with storing(self):
            try:
                self.filesystem.delete_dir(self.path)
            except FileNotFoundError:
                return False
            return True

    def names(self) -> list[str]:
        with storing(self):
            found = self.filesystem.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return [info.base_name for info in found if info.type == fs.FileType.File]

    def read(self, name: str) -> bytes | None:
        with storing(self):
            try:
                with self.filesystem.open_input_stream(self._at(name), compression=None) as file:
                    return bytes(file.read())
            except FileNotFoundError:
                return None

    def write(self, name: str, content: bytes) -> None:
        with self.writing(name) as file:
            file.write(content)

    def create(self, name: str, content: bytes) -> bool:
        raise NotImplementedError("an object store has no way to create a file only if it is not there")

    def delete(self, name: str) -> None:
        with storing(self):
            try:
                self.filesystem.delete_file(self._at(name))
            except FileNotFoundError:
                return

    @contextmanager
    def writing(self, name: str) -> Iterator[Any]:
        with storing(self), self.filesystem.open_output_stream(self._at(name), compression=None) as file:
            yield file

    def reading(self, name: str) -> Any:
        return self.filesystem.open_input_file(self._at(name))

    def move(self, name: str, to: Folder, new_name: str) -> bool:
        if not isinstance(to, StoreFolder):
            raise TypeError("files are moved within one storage")
        with storing(self):
            try:
                self.filesystem.copy_file(self._at(name), to._at(new_name))
            except FileNotFoundError:
                return False
        self.delete(name)
        return True

    def age(self, name: str) -> float:
        with storing(self):
            info = self.filesystem.get_file_info(self._at(name))
        return 0.0 if info.mtime_ns is None else time.time() - info.mtime_ns / 1e9

    def _at(self, name: str) -> str:
        return f"{self.path}/{name}"


def folder_at(located: str) -> LocalFolder | StoreFolder:
    """Return the folder of a path or URI. DestinationUnreachable for an address that `pyarrow.fs` does not take."""
    parts = urlsplit(located)
    if "://" not in located or parts.scheme == "file":
        return LocalFolder(Path(located if "://" not in located else unquote(parts.path)))
    shown = f"{parts.scheme}://{parts.hostname or ''}{parts.path.rstrip('/')}"
    try:
        filesystem, path = fs.FileSystem.from_uri(located)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DestinationUnreachable(f"{shown}: {_first_line(error)}", "Use a path, s3://, gs:// or abfs://") from error
    return StoreFolder(filesystem, path.rstrip("/"), shown)


@contextmanager
def storing(folder: object) -> Iterator[None]:
    """Turn what a file system or store says into an error of the destination."""
    try:
        yield
    except OSError as error:
        raise DestinationUnreachable(
            f"folder {folder}: {error.strerror or _first_line(error)}",
            "Check that the folder is there, can be written by every executor, and has space left",
        ) from error


def sync(folder: Path) -> None:
    """Make the names in a local folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
