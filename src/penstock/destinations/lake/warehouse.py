"""The folder or store in which a lake destination keeps its tables.

A local warehouse that is missing is one that cannot be reached: made again, empty, it would take changes without the
rows before them. It is made once, when there is no folder of key indexes yet.
"""

from __future__ import annotations

from pathlib import Path

from penstock.destinations.lake.settings import LakeSettings
from penstock.destinations.lake.storage import safe_name
from penstock.errors import DestinationUnreachable
from penstock.model.location import local_path
from penstock.model.table import TableId


def table_folder(settings: LakeSettings, target: TableId) -> str:
    """Return the table's folder: one per schema and table."""
    return f"{settings.warehouse.rstrip('/')}/{safe_name(target.schema)}/{safe_name(target.name)}"


def require_warehouse(settings: LakeSettings) -> None:
    """DestinationUnreachable if a local warehouse is away. A store is asked when it is used."""
    root = local_path(settings.warehouse)
    if root is not None and not root.is_dir():
        raise DestinationUnreachable(
            f"destination {settings.name}: the warehouse {root} is not there", "Bring it back (mount it?)"
        )


def open_warehouse(settings: LakeSettings, index: Path) -> None:
    """Make a local warehouse when it is opened for the first time, which is when there is no index folder."""
    root = local_path(settings.warehouse)
    if root is not None and not root.is_dir():
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
