"""What the pipeline file says of a user's destination, as the stream needs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from penstock.destinations.key_layout import Ordering
from penstock.destinations.python.destination import Destination


class PythonSettings(Protocol):
    """What the section of the pipeline file must have."""

    @property
    def name(self) -> str: ...

    @property
    def type(self) -> str: ...

    @property
    def found_at(self) -> str | None: ...

    @property
    def config(self) -> Mapping[str, Any]: ...

    @property
    def module_folder(self) -> str: ...

    @property
    def timeout(self) -> float: ...

    @property
    def most_events(self) -> int: ...

    @property
    def shards(self) -> int: ...

    @property
    def ordering(self) -> Ordering: ...

    @property
    def on_driver(self) -> bool: ...

    @property
    def made(self) -> Destination | None: ...
