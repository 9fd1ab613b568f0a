"""`type: files`: a folder of files, exactly once by the names of its files.

    {path}/{source}/stream.json        which stream this is (see `places/description.py`)
    {path}/{source}/{shard}/…          the files of a shard (see `shard.py`)

The folder is local, shared by all executors, or in an object store. A file is never changed once it has its name. The
oldest files may be removed; one that is missing between two others is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock.destinations.files.encoding import Encoding
from penstock.destinations.files.names import hole, parse_range
from penstock.destinations.files.shard import PLAIN, WRITING, FilePublisher, Roll, newest
from penstock.destinations.key_layout import KeyLayout, Ordering
from penstock.destinations.places.description import describe, described, required, shard_name
from penstock.destinations.places.folder import Folder, LocalFolder
from penstock.destinations.stream_contract import Layout, ShardPlace, StreamId
from penstock.errors import StreamBroken

LEFTOVERS_AFTER = 86400.0  # seconds, after which an unfinished file is nobody's


class FilesDestination:
    tombstones = False

    def __init__(
        self,
        name: str,
        folder: Folder | Path,
        shards: int = 1,
        ordering: Ordering = "key",
        encoding: Encoding = PLAIN,
        roll: Roll | None = None,
    ) -> None:
        self._name, self._shards, self._ordering = name, shards, ordering
        self._folder = LocalFolder(folder) if isinstance(folder, Path) else folder
        self._encoding, self._roll = encoding, roll

    @property
    def name(self) -> str:
        return self._name

    def ensure(self, stream: StreamId) -> Layout:
        folder = self._folder.under(stream.source)
        elsewhere = "give the destination another `path`"
        known = describe(folder, stream, self._shards, self._ordering, elsewhere=elsewhere)
        for shard in range(known.shards):
            self._require_whole(self.publisher(stream.source, shard))
        return KeyLayout(known.shards, known.ordering)

    def topics(self, source: str, names: Sequence[str]) -> Layout:
        """A folder has no topics, and its layout asks for none."""
        return KeyLayout(self._shards, self._ordering)

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
