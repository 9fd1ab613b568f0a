"""What the pipeline file says of a stream of files, as the destination needs it."""

from __future__ import annotations

from typing import Protocol

from penstock.destinations.files.destination import FilesDestination
from penstock.destinations.files.encoding import Compression, Encoding, Format
from penstock.destinations.files.growing import GrowingFile, is_growing
from penstock.destinations.files.shard import Roll
from penstock.destinations.key_layout import Ordering
from penstock.destinations.places.folder import folder_at
from penstock.destinations.stream_contract import StreamDestination


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


def files_stream(settings: FilesSettings) -> StreamDestination:
    """Return the destination that a section of the file describes: a folder, or one file that grows."""
    if is_growing(settings.path):
        return GrowingFile(settings.name, settings.path)
    roll = None if settings.roll is None else Roll(settings.roll.bytes, settings.roll.age)
    encoding = Encoding(settings.format, settings.compression)
    folder = folder_at(settings.path)
    return FilesDestination(settings.name, folder, settings.shards, settings.ordering, encoding, roll)
