"""`type: files`: a folder of files, exactly once by the names of its files.

    {path}/{source}/stream.json        which stream this is (see `places/description.py`)
    {path}/{source}/{shard}/…          the files of a shard (see `shard.py`)

The folder is local, shared by all executors, or in an object store. A file is never changed once it has its name. The
oldest files may be removed; one that is missing between two others is an error.
"""

from __future__ import annotations

from pathlib import Path

from penstock.destinations.files.encoding import Encoding
from penstock.destinations.files.names import hole, parse_range
from penstock.destinations.files.settings import FilesSettings
from penstock.destinations.files.shard import PLAIN, WRITING, FilePublisher, Roll, newest
from penstock.destinations.key_layout import Ordering
from penstock.destinations.places.description import described, required, shard_name
from penstock.destinations.places.folder import Folder, LocalFolder, folder_at
from penstock.destinations.places.keyed_stream import KeyedStream
from penstock.destinations.stream_contract import Layout, ShardPlace, StreamId
from penstock.errors import StreamBroken

LEFTOVERS_AFTER = 86400.0  # seconds, after which an unfinished file is nobody's


class FilesDestination(KeyedStream):
    elsewhere = "give the destination another `path`"

    def __init__(
        self,
        name: str,
        folder: Folder | Path,
        shards: int = 1,
        ordering: Ordering = "key",
        encoding: Encoding = PLAIN,
        roll: Roll | None = None,
    ) -> None:
        super().__init__(name, LocalFolder(folder) if isinstance(folder, Path) else folder, shards, ordering)
        self._encoding, self._roll = encoding, roll

    @staticmethod
    def of(settings: FilesSettings) -> FilesDestination:
        """Return the destination that a section of the pipeline file describes."""
        roll = None if settings.roll is None else Roll(settings.roll.bytes, settings.roll.age)
        encoding = Encoding(settings.format, settings.compression)
        folder = folder_at(settings.path)
        return FilesDestination(settings.name, folder, settings.shards, settings.ordering, encoding, roll)

    def ensure(self, stream: StreamId) -> Layout:
        layout = super().ensure(stream)
        for shard in range(layout.shards):
            self._require_whole(self.publisher(stream.source, shard))
        return layout

    def places(self, source: str) -> list[ShardPlace]:
        folder = self._folder.under(source)
        known = described(folder)
        if known is None:
            return []
        return [newest(folder.under(shard_name(shard)), known.start).at for shard in range(known.shards)]

    def publisher(self, source: str, shard: int) -> FilePublisher:
        folder = self._folder.under(source)
        known = required(folder)
        return FilePublisher(folder.under(shard_name(shard)), known.start, self._encoding, self._roll)

    def _require_whole(self, publisher: FilePublisher) -> None:
        """Complete what was interrupted, look for holes, and remove what killed writers left long ago."""
        publisher.open()
        shard, record = publisher.folder, newest(publisher.folder, publisher.start)
        missing = hole(filter(None, map(parse_range, shard.names())), record.ends)
        writing = shard.under(WRITING)
        for name in writing.names():
            if name not in record.parts and writing.age(name) > LEFTOVERS_AFTER:
                writing.delete(name)
        if missing is not None:
            raise StreamBroken(
                f"{shard} has a hole: no file covers {missing[0]} to {missing[1]}",
                "Put the missing files back, or give the destination another `path`",
            )
