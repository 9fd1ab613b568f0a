"""Files of tables by their location: a path, or any URI that `pyarrow.fs` knows.

No Java, no Spark: this runs on executors.

An unreachable store is DestinationUnreachable, and a file that cannot be read FileUnreadable, whatever the reason:
`lost_files` finds out which of the two it is. Folders above a table are never made here: a warehouse that is away must
not come back empty.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import pyarrow as pa
from pyarrow import fs

from penstock.errors import DestinationUnreachable, FileUnreadable
from penstock.model.location import in_one_request, local_path

SOLUTION = "See that the warehouse is there, has room and may be written"


def safe_name(name: str) -> str:
    """Return a name fit for every file system and URI.

    Plain lower-case names stay; of others no two become equal, in any case.
    """
    if re.fullmatch(r"[a-z0-9_]{1,100}", name):
        return name
    return f"{re.sub('[^a-z0-9_]+', '_', name.lower())[:60]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def opened(location: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a location, and the location's path in it."""
    path = local_path(location)
    if path is not None:
        return _local(), str(path)
    scheme, _, rest = location.partition("://")
    bucket, _, _ = rest.partition("/")
    return _remote({"s3a": "s3", "s3n": "s3"}.get(scheme, scheme), bucket), rest


def remove(location: str) -> None:
    """Remove a file; one that is not there is no error."""
    system, path = opened(location)
    try:
        system.delete_file(path)
    except FileNotFoundError:
        return


@contextmanager
def removed_on_error(location: str) -> Iterator[None]:
    """Remove the file that is written inside, if that fails."""
    try:
        yield
    except BaseException:
        remove(location)
        raise


def write_file(location: str, content: bytes) -> None:
    """Write a whole file. A folder of a table that somebody removed is made again."""
    system, path = opened(location)
    make_folder_again(location.rpartition("/")[0])
    with removed_on_error(location), system.open_output_stream(path, compression=None) as file:
        file.write(content)


def read_part(location: str, offset: int, size: int) -> bytes:
    """Read some octets of a file, fewer if it ends before."""
    system, path = opened(location)
    with system.open_input_file(path) as file:
        return bytes(file.read_at(size, offset))


def make_folder(location: str) -> None:
    """Make a folder and those above it, where a store has folders."""
    path = local_path(location)
    if path is not None:
        path.mkdir(parents=True, exist_ok=True)


def remove_folder(location: str) -> None:
    """Remove a folder with all that is in it; one that is not there is no error."""
    path = local_path(location)
    if path is not None:
        shutil.rmtree(path, ignore_errors=not path.exists())
        return
    system, key = opened(location)
    try:
        system.delete_dir(key)
    except FileNotFoundError:
        return


def sizes(locations: Sequence[str]) -> list[int | None]:
    """Return the size of each file; None where there is none."""
    found: list[int | None] = []
    for location in locations:
        system, path = opened(location)
        info = system.get_file_info(path)
        found.append(info.size if info.is_file else None)
    return found


def files_in(location: str) -> dict[str, float]:
    """Return the names of the files right in a folder, and when each was last written, in seconds since 1970."""
    system, path = opened(location)
    found = system.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return {info.base_name: (info.mtime_ns or 0) / 1e9 for info in found if info.is_file}


def folders_in(location: str) -> list[str]:
    """Return the names of the folders right in a folder; none if there is no such folder."""
    system, path = opened(location)
    found = system.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return sorted(info.base_name for info in found if info.type == fs.FileType.Directory)


@contextmanager
def reaching(what: str) -> Iterator[None]:
    """Turn what a store throws into DestinationUnreachable."""
    try:
        yield
    except OSError as error:
        raise DestinationUnreachable(f"{what}: {_said(error)}", SOLUTION) from error


@contextmanager
def reading(location: str) -> Iterator[None]:
    """Turn what reading one file throws into FileUnreadable, with its location."""
    try:
        yield
    except (OSError, pa.ArrowInvalid) as error:
        raise unreadable(location, _said(error), missing=isinstance(error, FileNotFoundError)) from error


def unreadable(location: str, said: str, *, missing: bool) -> FileUnreadable:
    error = FileUnreadable(f"file {location} {'is missing' if missing else 'cannot be read'}: {said}", SOLUTION)
    error.location, error.missing = location, missing
    return error


def is_readable(location: str) -> bool:
    """Return whether the store gives the file's first byte, now."""
    system, path = opened(location)
    try:
        with system.open_input_file(path) as file:
            file.read(1)
    except OSError:
        return False
    return True


def make_folder_again(location: str) -> bool:
    """Make a local folder that somebody removed, if the one above it is there; False when there was nothing to do."""
    path = local_path(location)
    if path is None or path.exists() or not path.parent.is_dir():
        return False
    path.mkdir(exist_ok=True)
    return True


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


@lru_cache(maxsize=1)
def _local() -> fs.FileSystem:
    return fs.LocalFileSystem()


@lru_cache(maxsize=16)
def _remote(scheme: str, bucket: str) -> fs.FileSystem:
    system, _ = fs.FileSystem.from_uri(in_one_request(f"{scheme}://{bucket}"))
    return system
