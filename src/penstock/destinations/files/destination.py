"""`type: files`: a folder of JSON lines, exactly once by the names of its files.

    {path}/{source}/stream.json        which stream this is: source, shards, history of the change log, start
    {path}/{source}/{shard}/…          the files of a shard (see `shard.py`)

The folder is local, or shared by all executors: files are put in place by rename and hard links. A file is never
changed once it has its name. The oldest files may be removed; one that is missing between two others is an error.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from penstock.destinations.files.names import hole, parse_range
from penstock.destinations.files.shard import WRITING, FilePublisher, newest, storing
from penstock.destinations.key_layout import KeyLayout, Ordering
from penstock.destinations.stream_contract import Layout, ShardPlace, StreamId
from penstock.errors import StreamBroken
from penstock.model.place import Place

FORMAT = 1
DESCRIPTION = "stream.json"
LEFTOVERS_AFTER = 86400.0  # seconds, after which an unfinished file is nobody's


@dataclass(frozen=True)
class Description:
    """What `stream.json` says: written once, before anything else."""

    format: int
    source: str
    history: str
    shards: int
    start: Place
    ordering: Ordering = "key"


class FilesSettings(Protocol):
    """What the pipeline file says of a stream of files; `config.model.FilesDestination` has this shape."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def shards(self) -> int: ...

    @property
    def ordering(self) -> Ordering: ...


class FilesDestination:
    tombstones = False

    def __init__(self, name: str, path: Path, shards: int = 1, ordering: Ordering = "key") -> None:
        self._name, self._path, self._shards, self._ordering = name, path, shards, ordering

    @property
    def name(self) -> str:
        return self._name

    def ensure(self, stream: StreamId) -> Layout:
        folder = self._folder(stream.source)
        with storing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            wanted = Description(FORMAT, stream.source, stream.history, self._shards, stream.start, self._ordering)
            known = _described(folder) or _describe(folder, wanted)
        self._require_same(folder, known, wanted)
        for shard in range(known.shards):
            self._require_whole(folder / _shard_name(shard), known.start)
        return KeyLayout(known.shards, known.ordering)

    def topics(self, source: str, names: Sequence[str]) -> Layout:
        """A folder has no topics, and its layout asks for none."""
        return KeyLayout(self._shards, self._ordering)

    def places(self, source: str) -> list[ShardPlace]:
        folder = self._folder(source)
        with storing(folder):
            known = _described(folder)
            if known is None:
                return []
            return [newest(folder / _shard_name(shard), known.start).at for shard in range(known.shards)]

    def publisher(self, source: str, shard: int) -> FilePublisher:
        folder = self._folder(source)
        with storing(folder):
            known = _described(folder)
        if known is None:
            raise StreamBroken(f"{folder / DESCRIPTION} is missing", "Put it back, or remove the folder")
        return FilePublisher(folder / _shard_name(shard), known.start)

    def _folder(self, source: str) -> Path:
        return self._path / source

    def _require_same(self, folder: Path, known: Description, wanted: Description) -> None:
        elsewhere = "give the destination another `path`"
        if known.format != FORMAT:
            raise StreamBroken(
                f"{folder} has format {known.format}, and this penstock writes format {FORMAT}",
                f"Use the penstock that wrote it, or {elsewhere}",
            )
        if known.source != wanted.source:
            raise StreamBroken(f"{folder} is the stream of source {known.source}", elsewhere.capitalize())
        if known.shards != wanted.shards:
            raise StreamBroken(
                f"{folder} has {known.shards} shards, and the file says `shards: {wanted.shards}`: keys would move "
                "between shards and lose their order",
                f"Set `shards` to {known.shards}, or {elsewhere}",
            )
        if known.ordering != wanted.ordering:
            raise StreamBroken(
                f"{folder} was made with `ordering: {known.ordering}`, and the file says `{wanted.ordering}`: "
                "events would move between shards and lose their order",
                f"Set `ordering` to {known.ordering}, or {elsewhere}",
            )
        if known.history != wanted.history:
            raise StreamBroken(
                f"{folder} was published from another change log than the present one: where it ended means nothing "
                "here",
                f"To start a new stream, {elsewhere} or remove the folder",
            )

    def _require_whole(self, shard: Path, start: Place) -> None:
        """Complete what was interrupted, look for holes, and remove what killed writers left long ago."""
        publisher = FilePublisher(shard, start)
        publisher.open()
        with storing(shard):
            names = [found for path in shard.iterdir() if (found := parse_range(path.name)) is not None]
            missing = hole(names, newest(shard, start).ends)
            for path in (shard / WRITING).iterdir():
                if time.time() - path.stat().st_mtime > LEFTOVERS_AFTER:
                    path.unlink(missing_ok=True)
        if missing is not None:
            raise StreamBroken(
                f"{shard} has a hole: no file covers {missing[0]} to {missing[1]}",
                "Put the missing files back, or give the destination another `path`",
            )


def _shard_name(shard: int) -> str:
    return f"{shard:04d}"


def _described(folder: Path) -> Description | None:
    try:
        return Description(**json.loads((folder / DESCRIPTION).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise StreamBroken(f"{folder / DESCRIPTION} cannot be read: {error}", "Put it back from a copy") from error


def _describe(folder: Path, wanted: Description) -> Description:
    """Write the description, unless another writer was first; return what counts."""
    draft = folder / f".{uuid.uuid4().hex}"
    try:
        with draft.open("w", encoding="utf-8") as file:
            json.dump(asdict(wanted), file)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, folder / DESCRIPTION)
        except FileExistsError:
            return _described(folder) or wanted
        return wanted
    finally:
        draft.unlink(missing_ok=True)
