"""A folder in an S3 store whose files can be created only once, which `pyarrow.fs` cannot promise.

S3 is spoken by boto3, with a PUT that has `If-None-Match: *`. Both libraries find credentials and the endpoint in the
same places. Whatever a store says is raised as OSError. Delta's logs and the claims of a shared change log use it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from penstock.errors import EnvironmentMissing

TAKEN = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")
ABSENT = ("NoSuchKey", "NotFound", "404")


@dataclass(frozen=True)
class Mark:
    """What distinguishes a file from another of the same name, and when it was made, in seconds since 1970."""

    identity: str
    at: float = field(compare=False)


@dataclass(frozen=True)
class S3Folder:
    bucket: str
    folder: str  # the keys' prefix, without the slash

    def names(self) -> dict[str, float]:
        """Return the names of the files, and when each was last written, in seconds since 1970."""
        return {name: one["LastModified"].timestamp() for name, one in self._listed()}

    def sizes(self) -> dict[str, int]:
        """Return the names of the files, and how many bytes each has."""
        return {name: int(one["Size"]) for name, one in self._listed()}

    def read(self, name: str) -> bytes:
        """Return a file's content. FileNotFoundError if there is none."""
        with _as_files(name):
            return bytes(_client().get_object(**self._at(name))["Body"].read())

    def mark(self, name: str) -> Mark | None:
        """Return what distinguishes the file from others; None if there is none."""
        try:
            with _as_files(name):
                told = _client().head_object(**self._at(name))
        except FileNotFoundError:
            return None
        return Mark(told["ETag"], told["LastModified"].timestamp())

    def create(self, name: str, content: bytes) -> Mark | None:
        """Make a file. FileExistsError if there is one."""
        with _as_files(name):
            told = _client().put_object(**self._at(name), Body=content, IfNoneMatch="*")
        return Mark(told["ETag"], time.time())

    def write(self, name: str, content: bytes) -> None:
        """Replace a file, or write it if there is none."""
        with _as_files(name):
            _client().put_object(**self._at(name), Body=content)

    def copy(self, name: str, to: str) -> None:
        """Have the store write a file under another name too. FileNotFoundError if there is none."""
        with _as_files(name):
            _client().copy_object(**self._at(to), CopySource=self._at(name))

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is no error."""
        with _as_files(name):
            _client().delete_object(**self._at(name))

    def _listed(self) -> Iterator[tuple[str, dict[str, Any]]]:
        with _as_files(self.folder):
            pages = _client().get_paginator("list_objects_v2")
            found = pages.paginate(Bucket=self.bucket, Prefix=f"{self.folder}/", Delimiter="/")
            listed = [one for page in found for one in page.get("Contents", ())]
        for one in listed:
            if name := one["Key"].rpartition("/")[2]:
                yield name, one

    def _at(self, name: str) -> dict[str, str]:
        return {"Bucket": self.bucket, "Key": f"{self.folder}/{name}"}


def has_s3_client() -> bool:
    """Return whether the library that speaks to S3 is installed."""
    return find_spec("boto3") is not None


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
            "files in S3 that must be created only once need the library boto3, which is not installed",
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
