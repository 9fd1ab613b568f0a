"""The section of the pipeline file that describes a destination of Delta Lake tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator

from penstock.config.destinations import TableSection
from penstock.config.values import Located, Name, local_path


def _folder(located: str) -> str:
    """A local folder, without its `file://`."""
    path = local_path(located)
    if path is None:
        raise ValueError("must be a folder: Delta tables in object stores are not written yet")
    return str(path)


class DeltaDestination(TableSection):
    """Delta Lake tables, a folder for each below the warehouse."""

    name: Name = "delta"
    type: Literal["delta"]
    warehouse: Annotated[Located, AfterValidator(_folder)]

    @property
    def folder(self) -> Path | None:
        return Path(self.warehouse)

    @property
    def where(self) -> str:
        return f"warehouse {self.warehouse}"
