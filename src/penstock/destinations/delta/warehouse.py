"""Where the tables of a Delta destination lie: a folder for each below the warehouse, on a local disk."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from penstock.destinations.lake.settings import MaintenanceSettings
from penstock.destinations.lake.storage import local_path, safe_name
from penstock.errors import ConfigError, DestinationUnreachable
from penstock.model.table import TableId

NOT_LOCAL = "a Delta warehouse must be a folder of this machine for now, not {}"


class DeltaSettings(Protocol):
    """What the pipeline file says of a Delta destination; `config.delta_destination` has this shape."""

    @property
    def name(self) -> str: ...

    @property
    def warehouse(self) -> str: ...

    @property
    def maintenance(self) -> MaintenanceSettings: ...


def root_of(settings: DeltaSettings) -> Path:
    """Return the warehouse's folder. ConfigError for a store: an entry of the log cannot be put there safely."""
    path = local_path(settings.warehouse)
    if path is None:
        raise ConfigError(NOT_LOCAL.format(settings.warehouse), "Name a folder; it may be mounted from elsewhere")
    return path


def table_location(settings: DeltaSettings, target: TableId) -> str:
    return f"{root_of(settings)}/{safe_name(target.schema)}/{safe_name(target.name)}"


def require_warehouse(settings: DeltaSettings) -> None:
    """DestinationUnreachable if the warehouse is away. Made again, empty, it would take changes without the rows before
    them."""
    root = root_of(settings)
    if not root.is_dir():
        raise DestinationUnreachable(
            f"destination {settings.name}: the warehouse {root} is not there", "Bring it back (mount it?)"
        )


def open_warehouse(settings: DeltaSettings, index: Path) -> None:
    """Make the warehouse when it is opened for the first time, which is when there is no index folder."""
    root = root_of(settings)
    if not root.is_dir():
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
