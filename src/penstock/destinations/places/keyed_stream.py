"""Describe streams whose shards are told apart by keys, as files, webhooks and a user's destination have them.

A folder holds the description. None of these streams has topics.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.destinations.key_layout import KeyLayout, Ordering
from penstock.destinations.places.description import describe
from penstock.destinations.places.folder import Folder
from penstock.destinations.stream_contract import Layout, StreamId


class KeyedStream:
    """The part of `StreamDestination` that does not depend on where events go.

    `elsewhere` says how to begin a new stream, in words that follow "or".
    """

    tombstones = False
    elsewhere = "give the destination another `name`"

    def __init__(self, name: str, folder: Folder, shards: int, ordering: Ordering) -> None:
        self._name, self._folder, self._shards, self._ordering = name, folder, shards, ordering

    @property
    def name(self) -> str:
        return self._name

    @property
    def holds_rows(self) -> bool:
        return False

    def ensure(self, stream: StreamId) -> Layout:
        folder = self._folder.under(stream.source)
        known = describe(folder, stream, self._shards, self._ordering, elsewhere=self.elsewhere)
        return KeyLayout(known.shards, known.ordering)

    def topics(self, source: str, names: Sequence[str]) -> Layout:
        """Return the layout, which asks for no topics."""
        return KeyLayout(self._shards, self._ordering)
