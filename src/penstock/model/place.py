"""Places: boundaries in the ordered events of a source, by which a stream says how far it has been published.

A place is `{commit position}/{ordinal}`, 16 hexadecimal digits each, so text order is stream order. It is exclusive, as
a position is: every event before it is published, and none at or behind it. The place of an event is the boundary
right before it. No two events of a table have the same place.
"""

from __future__ import annotations

import re

from penstock.model.position import Position

Place = str

_PLACE = re.compile(r"([0-9a-f]{16})/([0-9a-f]{16})")


def place_at(position: Position, ordinal: int = 0) -> Place:
    """Return the place before the change `ordinal` of the transaction that commits at `position`."""
    return f"{position:016x}/{ordinal:016x}"


def parts_of(place: Place) -> tuple[Position, int]:
    """Return the commit position and the ordinal of a place. ValueError for any other text."""
    found = _PLACE.fullmatch(place)
    if found is None:
        raise ValueError(f"{place!r} is not a place in a stream")
    return int(found[1], 16), int(found[2], 16)


def position_of(place: Place) -> Position:
    """Return the position from which on the log is needed to go on from this place."""
    return parts_of(place)[0]
