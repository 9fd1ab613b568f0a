"""Where the tables of a Delta destination lie: a folder for each below the warehouse, on a disk or in an S3 store."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from penstock.destinations.delta.log_files import require_s3_client
from penstock.destinations.lake.settings import MaintenanceSettings
from penstock.destinations.lake.storage import folders_in, reaching, safe_name
from penstock.errors import DestinationUnreachable
from penstock.model.location import local_path
from penstock.model.table import TableId


class DeltaSettings(Protocol):
    """What the pipeline file says of a Delta destination; `config.delta_destination` has this shape."""

    @property
    def name(self) -> str: ...

    @property
    def warehouse(self) -> str: ...

    @property
    def maintenance(self) -> MaintenanceSettings: ...


def table_location(settings: DeltaSettings, target: TableId) -> str:
    return f"{settings.warehouse}/{safe_name(target.schema)}/{safe_name(target.name)}"


def require_warehouse(settings: DeltaSettings) -> None:
    """DestinationUnreachable if the warehouse is a folder that is away: made again, empty, it would take changes
    without the rows before them. A store needs no such question."""
    root = local_path(settings.warehouse)
    if root is not None and not root.is_dir():
        raise DestinationUnreachable(
            f"destination {settings.name}: the warehouse {root} is not there", "Bring it back (mount it?)"
        )


def open_warehouse(settings: DeltaSettings, index: Path) -> None:
    """Make the warehouse when it is opened for the first time, which is when there is no index folder."""
    root = local_path(settings.warehouse)
    if root is None:
        require_s3_client()
        with reaching(f"destination {settings.name}: the warehouse {settings.warehouse} does not answer"):
            folders_in(settings.warehouse)
    elif not root.is_dir():
        if index.exists() or root.exists():
            raise DestinationUnreachable(
                f"destination {settings.name}: the warehouse {root} is not there",
                f"Bring it back (mount it?); if it is gone for good, remove {index} and start again",
            )
        try:
            root.mkdir(parents=True)
        except OSError as error:
            raise DestinationUnreachable(
                f"destination {settings.name}: the warehouse {root} cannot be made: {error.strerror}",
                "Make the folder, or give its owner the right to",
            ) from error
    index.mkdir(parents=True, exist_ok=True)
