"""`type: stdout`: every event as a line of JSON on the standard output of `penstock run`, at least once.

Executors have outputs of their own, which nobody sees. So their tasks publish to files, in a folder beside the change
log and exactly as `type: files` does. A thread of the driver prints each file, in the order of their names, and removes
it when its lines are out. After a crash the file that was being printed is printed again.
"""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Sequence
from typing import Any, Protocol

from penstock.destinations.files.destination import FilesDestination
from penstock.destinations.files.names import parse_range
from penstock.destinations.files.shard import FilePublisher
from penstock.destinations.key_layout import Ordering
from penstock.destinations.places.description import shard_name
from penstock.destinations.places.folder import Folder, folder_at
from penstock.destinations.stream_contract import Layout, ShardPlace, StreamId
from penstock.errors import DestinationUnreachable, PenstockError

POLL_SECONDS = 0.1


class StdoutSettings(Protocol):
    """`config.destinations.StdoutDestination` has this shape."""

    @property
    def name(self) -> str: ...

    @property
    def shards(self) -> int: ...

    @property
    def ordering(self) -> Ordering: ...


class StdoutDestination:
    tombstones = False
    holds_rows = False

    def __init__(
        self, name: str, folder: Folder, shards: int = 1, ordering: Ordering = "key", output: Any = None
    ) -> None:
        """`output` is a binary stream; by default the process's standard output."""
        self._files = FilesDestination(name, folder, shards, ordering)
        self._folder, self._shards = folder, shards
        self._output = sys.stdout.buffer if output is None else output
        self._sources: set[str] = set()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._trouble: PenstockError | None = None

    @property
    def name(self) -> str:
        return self._files.name

    def ensure(self, stream: StreamId) -> Layout:
        layout = self._files.ensure(stream)
        self._sources.add(stream.source)
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep_printing, name=f"print {self.name}", daemon=True)
            self._thread.start()
        return layout

    def topics(self, source: str, names: Sequence[str]) -> Layout:
        return self._files.topics(source, names)

    def places(self, source: str) -> list[ShardPlace]:
        return self._files.places(source)

    def publisher(self, source: str, shard: int) -> FilePublisher:
        """Raise what keeps events from being printed: otherwise they would pile up unseen."""
        if self._trouble is not None:
            raise self._trouble
        return self._files.publisher(source, shard)

    def close(self) -> None:
        """Print what is left."""
        if self._thread is None:
            return
        self._stop.set()
        self._thread.join()
        self._thread = None
        if self._trouble is not None:
            raise self._trouble

    def _keep_printing(self) -> None:
        last = False
        while not last:
            last = self._stop.wait(POLL_SECONDS)  # once more after that: everything is published by then
            try:
                for source in sorted(self._sources):
                    for shard in range(self._shards):
                        self._print(self._folder.under(source).under(shard_name(shard)))
                self._trouble = None
            except PenstockError as error:
                self._trouble = error

    def _print(self, shard: Folder) -> None:
        for name in sorted(name for name in shard.names() if parse_range(name) is not None):
            with shard.reading(name) as file:
                try:
                    shutil.copyfileobj(file, self._output)
                    self._output.flush()
                except (OSError, ValueError) as error:
                    raise DestinationUnreachable(
                        f"standard output cannot be written: {error}", "Events wait; start penstock again to print them"
                    ) from error
            shard.delete(name)


def make_stream(settings: StdoutSettings, places: str) -> StdoutDestination:
    """Make the destination that a section of the pipeline file describes. `places` is a folder for where it is."""
    return StdoutDestination(settings.name, folder_at(places).under(settings.name), settings.shards, settings.ordering)
