"""Open a Delta destination's warehouse, on a disk or in an S3 store."""

from __future__ import annotations

from pathlib import Path

from penstock.destinations.lake import warehouse
from penstock.destinations.lake.settings import LakeSettings
from penstock.destinations.lake.storage import folders_in, reaching
from penstock.model.location import local_path
from penstock.s3_folder import require_s3_client


def open_warehouse(settings: LakeSettings, index: Path) -> None:
    """Make a local warehouse when it is opened for the first time, and ask a store whether it answers."""
    if local_path(settings.warehouse) is None:
        require_s3_client()
        with reaching(f"destination {settings.name}: the warehouse {settings.warehouse} does not answer"):
            folders_in(settings.warehouse)
    warehouse.open_warehouse(settings, index)
