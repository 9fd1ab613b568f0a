"""What the pipeline file says of a stream of files, as the destination needs it."""

from __future__ import annotations

from typing import Protocol

from penstock.destinations.files.encoding import Compression, Format
from penstock.destinations.key_layout import Ordering


class RollSettings(Protocol):
    @property
    def bytes(self) -> int: ...

    @property
    def age(self) -> float: ...


class FilesSettings(Protocol):
    """`config.destinations.FilesDestination` has this shape."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def format(self) -> Format: ...

    @property
    def compression(self) -> Compression: ...

    @property
    def roll(self) -> RollSettings | None: ...

    @property
    def shards(self) -> int: ...

    @property
    def ordering(self) -> Ordering: ...
