"""What the pipeline file says of a user's destination, and the stream that is made of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from penstock.destinations.key_layout import Ordering
from penstock.destinations.python.destination import Destination
from penstock.destinations.python.stream import PythonStream


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


def python_stream(settings: PythonSettings) -> PythonStream:
    """Return the stream that a section describes."""
    return PythonStream(
        name=settings.name,
        found_at=settings.found_at or "",
        config=json.dumps(dict(settings.config)),
        folder=settings.module_folder,
        seconds=settings.timeout,
        most=settings.most_events,
        shards=settings.shards,
        ordering=settings.ordering,
        on_driver=settings.on_driver,
        made=settings.made,
    )
