"""The files of a table's log: listed, read, and put there whole or not at all. On a local disk, or in an S3 store.

`create` is what commits stand on: of all who try to make a file of one name, one succeeds. On a disk that is a hard
link, in S3 a PUT with `If-None-Match: *`. S3 is spoken by boto3, since `pyarrow.fs` cannot put a file only if it is
absent; both find credentials and the endpoint in the same places. Whatever a store says is raised as OSError.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from penstock.errors import EnvironmentMissing
from penstock.model.location import local_path

FOLDER = "_delta_log"
TAKEN = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")
ABSENT = ("NoSuchKey", "NotFound", "404")


@dataclass(frozen=True)
class Mark:
    """What distinguishes a file from another of the same name, and when it was made, in seconds since 1970."""

    identity: str
    at: float = field(compare=False)


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
    return S3LogFiles(bucket, f"{key}/{FOLDER}")


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


@dataclass(frozen=True)
class S3LogFiles:
    bucket: str
    folder: str  # the keys' prefix, without the slash

    def names(self) -> dict[str, float]:
        with _as_files(self.folder):
            pages = _client().get_paginator("list_objects_v2")
            found = pages.paginate(Bucket=self.bucket, Prefix=f"{self.folder}/", Delimiter="/")
            keys = [(one["Key"], one["LastModified"].timestamp()) for page in found for one in page.get("Contents", ())]
        return {name: at for key, at in keys if (name := key.rpartition("/")[2])}

    def read(self, name: str) -> bytes:
        with _as_files(name):
            return bytes(_client().get_object(**self._at(name))["Body"].read())

    def mark(self, name: str) -> Mark | None:
        try:
            with _as_files(name):
                told = _client().head_object(**self._at(name))
        except FileNotFoundError:
            return None
        return Mark(told["ETag"], told["LastModified"].timestamp())

    def create(self, name: str, content: bytes) -> Mark | None:
        with _as_files(name):
            told = _client().put_object(**self._at(name), Body=content, IfNoneMatch="*")
        return Mark(told["ETag"], time.time())

    def write(self, name: str, content: bytes) -> None:
        with _as_files(name):
            _client().put_object(**self._at(name), Body=content)

    def remove(self, name: str) -> None:
        with _as_files(name):
            _client().delete_object(**self._at(name))

    def _at(self, name: str) -> dict[str, str]:
        return {"Bucket": self.bucket, "Key": f"{self.folder}/{name}"}


def require_s3_client() -> None:
    """EnvironmentMissing if the library that speaks to S3 is not installed."""
    _boto("boto3")


@lru_cache(maxsize=1)
def _client() -> Any:
    config = _boto("botocore.config").Config(
        connect_timeout=10, read_timeout=30, retries={"mode": "standard", "total_max_attempts": 3}
    )
    return _boto("boto3").client("s3", config=config)


def _boto(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise EnvironmentMissing(
            "a Delta warehouse in S3 needs the library boto3, which is not installed",
            "Install it on the host that runs penstock: pip install 'penstock[s3]'",
        ) from error


@contextmanager
def _as_files(name: str) -> Iterator[None]:
    """Turn what boto3 raises into what a file system would."""
    errors = _boto("botocore.exceptions")
    try:
        yield
    except errors.ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        if code in ABSENT:
            raise FileNotFoundError(f"{name}: there is no such file") from error
        if code in TAKEN:
            raise FileExistsError(f"{name}: there is such a file") from error
        raise OSError(f"{name}: {error}") from error
    except errors.BotoCoreError as error:
        raise OSError(f"{name}: {error}") from error
