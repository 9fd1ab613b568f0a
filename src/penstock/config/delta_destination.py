"""The section of the pipeline file that describes a destination of Delta Lake tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator

from penstock.config.destinations import TableSection
from penstock.config.values import Located, Name
from penstock.model.location import local_path

S3 = re.compile(r"s3[an]?://([^/?#@]+)/*([^?#]*)")


def _warehouse(located: str) -> str:
    """Return a local folder, without its `file://`, or `s3://bucket/folder`."""
    path = local_path(located)
    if path is not None:
        return str(path)
    found = S3.fullmatch(located)
    if found is None:
        raise ValueError("must be a folder or s3://bucket/folder")
    return f"s3://{found[1]}/{found[2]}".rstrip("/")


class DeltaDestination(TableSection):
    """Delta Lake tables, a folder for each below the warehouse."""

    name: Name = "delta"
    type: Literal["delta"]
    warehouse: Annotated[Located, AfterValidator(_warehouse)]

    @property
    def folder(self) -> Path | None:
        return local_path(self.warehouse)

    @property
    def where(self) -> str:
        return f"warehouse {self.warehouse}"
