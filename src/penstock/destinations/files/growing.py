"""`type: files` with a path like `./changes.jsonl`: one file that grows, with its position beside it.

    {path}              one line per event
    {path}.position     which stream this is, how far it is, and how many bytes of the file belong to it

Records are appended and made durable, then the position is replaced. A writer that opens the file cuts off what lies
behind the position: the end of a publication that was interrupted. A reader that must not see such an end reads as many
bytes as the position says.

The file is local to all executors, which in practice means one machine or a shared file system with locks. It is locked
while it is written, so there is one writer at a time; one that was overtaken sees it in the position's number.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from penstock.destinations.files.destination import FilesDestination
from penstock.destinations.files.encoding import Encoding
from penstock.destinations.files.settings import FilesSettings
from penstock.destinations.key_layout import KeyLayout
from penstock.destinations.places.folder import LocalFolder, storing
from penstock.destinations.stream_contract import Layout, Published, Records, ShardPlace, StreamId
from penstock.errors import DestinationUnreachable, Overtaken, StreamBroken
from penstock.failpoints import reach

FORMAT = 1
ENDING = ".jsonl"


def is_growing(located: str) -> bool:
    """Whether a path names one file, and not a folder."""
    return located.endswith(ENDING)


@dataclass(frozen=True)
class FilePosition:
    """`length` bytes of the file are published, in `number` publications and advances."""

    source: str
    history: str
    at: ShardPlace
    number: int = 0
    length: int = 0

    def to_text(self) -> str:
        own: dict[str, Any] = {"format": FORMAT, "source": self.source, "history": self.history}
        own |= {"number": self.number, "bytes": self.length}
        return json.dumps({**own, **json.loads(self.at.to_text())}, ensure_ascii=False)

    @classmethod
    def from_text(cls, content: bytes) -> FilePosition:
        own = json.loads(content)
        if own["format"] != FORMAT:
            raise ValueError(f"it has format {own['format']}, and this penstock writes format {FORMAT}")
        return cls(own["source"], own["history"], ShardPlace.from_text(content), own["number"], own["bytes"])


class GrowingFile:
    """The driver's side. There is one shard, and one source."""

    tombstones = False
    holds_rows = False

    def __init__(self, name: str, path: str) -> None:
        self._name, self._path = name, Path(path)

    @property
    def name(self) -> str:
        return self._name

    def ensure(self, stream: StreamId) -> Layout:
        with storing(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(self._path) as file:
                known = read_position(self._path)
                if known is None and os.fstat(file.fileno()).st_size:
                    raise StreamBroken(
                        f"{self._path} has content and no {_beside(self._path)}",
                        "Put that back, or give the destination another `path`",
                    )
                if known is None:
                    known = FilePosition(stream.source, stream.history, ShardPlace(stream.start))
                    _write_position(self._path, known)
        if (known.source, known.history) != (stream.source, stream.history):
            what = "another change log" if known.source == stream.source else f"source {known.source}"
            raise StreamBroken(
                f"{self._path} was published from {what}: where it ended means nothing here",
                "Give the destination another `path`; one file takes the events of one source",
            )
        self.publisher(stream.source, 0).open()
        return KeyLayout(1, "source")

    def topics(self, source: str, names: Sequence[str]) -> Layout:
        """Return no topics: a file has none, and its layout asks for none."""
        return KeyLayout(1, "source")

    def places(self, source: str) -> list[ShardPlace]:
        with storing(self._path):
            known = read_position(self._path)
        return [] if known is None or known.source != source else [known.at]

    def publisher(self, source: str, shard: int) -> GrowingPublisher:
        return GrowingPublisher(self._path)


@dataclass
class GrowingPublisher:
    path: Path
    _position: FilePosition | None = None

    def open(self) -> ShardPlace:
        with storing(self.path), _locked(self.path) as file:
            self._position = _required(self.path)
            size = os.fstat(file.fileno()).st_size
            if size < self._position.length:
                raise StreamBroken(
                    f"{self.path} has {size} bytes, and {self._position.length} were published: events are missing",
                    "Put the file back, or remove it with its position to start a new stream",
                )
            file.truncate(self._position.length)
        return self._position.at

    def publish(self, records: Iterable[Records], upto: Callable[[], ShardPlace]) -> Published:
        with storing(self.path), self._unmoved() as (file, before):
            try:
                file.truncate(before.length)
                file.seek(before.length)
                count = Encoding().write(file, records)
                file.flush()
                os.fsync(file.fileno())
                at, size = upto(), file.tell() - before.length
            except BaseException:
                file.truncate(before.length)
                raise
            reach("publish.file_written")
            self._move(replace(before, at=at, number=before.number + 1, length=before.length + size))
            reach("publish.committed")
        return Published(count, size)

    def advance(self, upto: ShardPlace) -> None:
        with storing(self.path), self._unmoved() as (_, before):
            self._move(replace(before, at=upto, number=before.number + 1))

    @contextmanager
    def _unmoved(self) -> Iterator[tuple[BinaryIO, FilePosition]]:
        """Lock the file, if nobody has published since `open`."""
        if self._position is None:
            raise ValueError("the file is not open")
        with _locked(self.path) as file:
            if _required(self.path).number != self._position.number:
                raise Overtaken(
                    f"{self.path} was moved on by another writer",
                    "Nothing: what is not published yet is published from where the other writer ended",
                )
            yield file, self._position

    def _move(self, position: FilePosition) -> None:
        _write_position(self.path, position)
        self._position = position


def read_position(path: Path) -> FilePosition | None:
    """Return what the position beside a file says; None without one."""
    content = LocalFolder(path.parent).read(_beside(path))
    if content is None:
        return None
    try:
        return FilePosition.from_text(content)
    except (ValueError, KeyError) as error:
        raise StreamBroken(f"{path.parent / _beside(path)} cannot be read: {error}", "Put it back") from error


def _required(path: Path) -> FilePosition:
    position = read_position(path)
    if position is None:
        raise StreamBroken(f"{path.parent / _beside(path)} is missing", "Put it back, or remove the file as well")
    return position


def _write_position(path: Path, position: FilePosition) -> None:
    LocalFolder(path.parent).write(_beside(path), position.to_text().encode())


def _beside(path: Path) -> str:
    return f"{path.name}.position"


@contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    """Open the file, creating it, with a lock that no other writer has."""
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DestinationUnreachable(
                f"{path} is locked by another writer", "It is tried again; is another pipeline writing to it?"
            ) from None
        yield file


def make_stream(settings: FilesSettings, places: str) -> FilesDestination | GrowingFile:
    """Make the destination that a section of the pipeline file describes: files, or one file that grows."""
    if is_growing(settings.path):
        return GrowingFile(settings.name, settings.path)
    return FilesDestination.of(settings)
