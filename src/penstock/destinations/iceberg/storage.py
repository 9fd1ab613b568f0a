"""Files of tables by their location: a path, or any URI that `pyarrow.fs` knows. No Java, no Spark: this runs on
executors.

An unreachable store is DestinationUnreachable. Folders above a table are never made here: a warehouse that is away
must not come back empty. Neighbours: `data_files` and `key_index` read and write through it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from penstock.errors import DestinationUnreachable


def local_path(location: str) -> Path | None:
    """The path of a local location (`/x`, `file:/x`, `file:///x`); None for any other store."""
    if location.startswith("file:"):
        return Path(unquote(urlsplit(location).path))
    return None if "://" in location else Path(location)


def opened(location: str) -> tuple[fs.FileSystem, str]:
    """The file system of a location, and the location's path in it."""
    path = local_path(location)
    if path is not None:
        return _local(), str(path)
    scheme, _, rest = location.partition("://")
    bucket, _, _ = rest.partition("/")
    return _remote({"s3a": "s3", "s3n": "s3"}.get(scheme, scheme), bucket), rest


def remove(location: str) -> None:
    """Removes a file; one that is not there is no error."""
    system, path = opened(location)
    try:
        system.delete_file(path)
    except FileNotFoundError:
        return


@contextmanager
def removed_on_error(location: str) -> Iterator[None]:
    """Removes the file that is written inside, if that fails."""
    try:
        yield
    except BaseException:
        remove(location)
        raise


def sizes(locations: Sequence[str]) -> list[int | None]:
    """The size of each file; None where there is none."""
    found: list[int | None] = []
    for location in locations:
        system, path = opened(location)
        info = system.get_file_info(path)
        found.append(info.size if info.is_file else None)
    return found


def names_in(location: str) -> list[str]:
    """The names of the files right in a folder; none if there is no such folder."""
    system, path = opened(location)
    return [
        info.base_name for info in system.get_file_info(fs.FileSelector(path, allow_not_found=True)) if info.is_file
    ]


@contextmanager
def reaching(what: str) -> Iterator[None]:
    """Turns what a store throws into DestinationUnreachable. A damaged file counts as one: trying again costs
    nothing.
    """
    try:
        yield
    except (OSError, pa.ArrowInvalid) as error:
        raise DestinationUnreachable(
            f"{what}: {' '.join(str(error).split())[:300]}",
            "See that the warehouse is there, has room and may be written",
        ) from error


@lru_cache(maxsize=1)
def _local() -> fs.FileSystem:
    return fs.LocalFileSystem()


@lru_cache(maxsize=16)
def _remote(scheme: str, bucket: str) -> fs.FileSystem:
    system, _ = fs.FileSystem.from_uri(f"{scheme}://{bucket}")
    return system
