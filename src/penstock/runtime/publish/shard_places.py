"""Where the shards of a stream are: how far each is published, and which tables stand behind in it.

The destination keeps these places with the events. This is what the publish loop knows of them; places move on by a
batch's outcome (`now`), or without events (`advance`, `note_waiting`, `leave_behind`). Knows nothing of batches.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from penstock.destinations.stream_contract import Publisher, ShardPlace, StreamDestination
from penstock.model.place import Place, place_at, position_of
from penstock.model.position import Position


class ShardPlaces:
    """`now` has the place of each shard, as far as is known. Tables go by the names that places have for them."""

    def __init__(self, source: str, destination: StreamDestination) -> None:
        self._source, self._destination = source, destination
        self.now: list[ShardPlace] = []

    def read(self) -> None:
        """Ask the destination."""
        self.now = self._destination.places(self._source)

    def publisher(self, shard: int) -> Publisher:
        return self._destination.publisher(self._source, shard)

    def least(self) -> Position | None:
        """Return how far every shard is published; None when there are none."""
        return min((position_of(at.place) for at in self.now), default=None)

    def greatest(self) -> Position:
        """Return how far the most advanced shard is published."""
        return max(position_of(at.place) for at in self.now)

    def are_at(self, place: Place) -> bool:
        """Return whether every shard is there, or further."""
        return all(at.place >= place for at in self.now)

    def behind(self, table: str) -> Place | None:
        """Return how far a table is that is behind in some shard; None if it is behind in none."""
        return min((at.behind[table] for at in self.now if table in at.behind), default=None)

    def lacks_events(self, table: str) -> bool:
        """Return whether the table is not as far as the others somewhere."""
        return any(at.of(table) < at.place for at in self.now)

    def lacks_rows(self, table: str) -> bool:
        """Return whether a shard has only a part of the table's copy."""
        copies = [at.copies.get(table) for at in self.now]
        return any(copy is not None and not copy.complete for copy in copies)

    def leave_behind(self, table: str) -> None:
        """Put a table where the others are, in every shard, without publishing anything of it."""
        for shard in range(len(self.now)):
            publisher = self.publisher(shard)
            at = publisher.open()
            if table in at.behind:
                behind = {name: place for name, place in at.behind.items() if name != table}
                copies = {name: copy for name, copy in at.copies.items() if name != table}
                publisher.advance(replace(at, behind=behind, copies=copies))
        self.read()

    def advance(self, end: Position, followed: Collection[str], waiting: Sequence[str]) -> None:
        """Move places on over a stretch of the log that held no events for them."""
        reached = place_at(end)
        for shard, at in enumerate(self.now):
            if at.place >= reached:
                continue
            publisher = self.publisher(shard)
            if publisher.open() != at:
                continue  # another writer was here: the next batch begins where it ended
            behind = {name: place for name, place in at.behind.items() if name in followed}
            upto = replace(at, place=reached, behind={**dict.fromkeys(waiting, at.place), **behind})
            publisher.advance(upto)
            self.now[shard] = upto

    def note_waiting(self, waiting: Sequence[str]) -> None:
        """Have the shards say which tables wait: a batch is about to be passed over, and may hold changes of theirs."""
        for shard, at in enumerate(self.now):
            if all(name in at.behind for name in waiting):
                continue
            publisher = self.publisher(shard)
            opened = publisher.open()
            self.now[shard] = replace(opened, behind={**dict.fromkeys(waiting, opened.place), **opened.behind})
            publisher.advance(self.now[shard])
