"""What the pipeline file says of a lake destination and of the upkeep of its tables."""

from __future__ import annotations

from typing import Protocol


class MaintenanceSettings(Protocol):
    """How tables are kept compact; `config.model.Maintenance` has this shape."""

    @property
    def expire_every(self) -> int: ...

    @property
    def keep_snapshots(self) -> int: ...

    @property
    def time_travel(self) -> float: ...

    @property
    def keep_for(self) -> float: ...

    @property
    def compact_files(self) -> int: ...

    @property
    def read_cost(self) -> float: ...

    @property
    def merge_at_once(self) -> int: ...

    @property
    def sweep_every(self) -> float: ...

    @property
    def sweep_age(self) -> float: ...

    @property
    def key_index(self) -> int: ...


class LakeSettings(Protocol):
    """What the pipeline file says of every lake destination."""

    @property
    def name(self) -> str: ...

    @property
    def warehouse(self) -> str: ...

    @property
    def maintenance(self) -> MaintenanceSettings: ...
