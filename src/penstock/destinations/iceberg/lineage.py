"""Whether a table still descends from what we last committed to it.

A table's position is a property, and properties survive what takes rows back: `rollback_to_snapshot`,
`set_current_snapshot`, `CREATE OR REPLACE`. So the property `penstock.snapshot.<source>` names the snapshot that was
current when the position was last written, in the same transaction, and the table's current snapshot must be that one
or descend from it. Somebody's compaction, cherry-pick, tag or branch leaves that true; what they append, delete or
update on top of it is not seen here, and `penstock verify` finds it.

Snapshots that somebody expired are looked for in the metadata files that the table still names. Where those do not
reach far enough either, nobody can tell, and the lineage counts as lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from penstock.destinations.iceberg.java import JavaObject

NONE = "none"  # the table had no snapshot yet: whatever came since is on top of that


@dataclass(frozen=True)
class Snapshot:
    """`sequence` grows from a snapshot to those that descend from it."""

    id: int
    sequence: int
    parent: int | None


def lineage_property(source: str) -> str:
    return f"penstock.snapshot.{source}"


def lineage_text(current: JavaObject | None) -> str:
    """Return the property's value when this is the table's current snapshot."""
    return NONE if current is None else f"{current.snapshotId()} {current.sequenceNumber()}"


def why_lost(metadata: JavaObject, source: str, earlier: Callable[[JavaObject], Iterator[JavaObject]]) -> str:
    """Why the table no longer descends from what we last committed; "" if it does, or if it does not say what that was.

    `earlier` gives the metadata files before this one, the newest first, as far as they can be read.
    """
    text = metadata.properties().get(lineage_property(source))
    if text is None or text == NONE:
        return ""
    number, sequence = (int(word) for word in text.split())
    current = metadata.currentSnapshot()
    if current is None:
        return "it was replaced: it has no snapshot any more"
    if current.snapshotId() == number:
        return ""
    return why_not_descended(_known(current), number, sequence, _Ancestors(metadata, earlier).get)


def why_not_descended(current: Snapshot, number: int, sequence: int, find: Callable[[int], Snapshot | None]) -> str:
    """Say why `current` does not descend from the snapshot of that number and sequence; "" if it does."""
    at = current
    while at.id != number and at.parent != number:
        if at.sequence <= sequence or at.parent is None:
            return f"it was rolled back or replaced: its snapshot {current.id} does not descend from ours, {number}"
        parent = find(at.parent)
        if parent is None:
            return (
                f"it is not known whether its snapshot {current.id} descends from ours, {number}: the snapshots "
                "between them have expired"
            )
        at = parent
    return ""


class _Ancestors:
    """Snapshots by number, those that have expired too, as far as older metadata files have them."""

    def __init__(self, metadata: JavaObject, earlier: Callable[[JavaObject], Iterator[JavaObject]]) -> None:
        self._metadata, self._earlier = metadata, earlier
        self._read: list[JavaObject] = []
        self._left: Iterator[JavaObject] | None = None

    def get(self, number: int) -> Snapshot | None:
        found = self._metadata.snapshot(number)
        if found is not None:
            return _known(found)
        if self._left is None:
            self._left = self._earlier(self._metadata)
        for metadata in self._read:
            found = metadata.snapshot(number)
            if found is not None:
                return _known(found)
        for metadata in self._left:
            self._read.append(metadata)
            found = metadata.snapshot(number)
            if found is not None:
                return _known(found)
        return None


def _known(snapshot: JavaObject) -> Snapshot:
    return Snapshot(snapshot.snapshotId(), snapshot.sequenceNumber(), snapshot.parentId())
