"""Cells that the source did not send because an update left them unchanged: where their values are.

Such a cell has the value of the row's image before it. A row keeps its **lineage** when its key changes, so the search
runs along lineages, not keys: back to the last image of the batch that has the cell, or to the destination's row.
Used by `clone.py`, for the few rows that are left with such cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.decode.reader import Images, Mask, Octets, Places, RowReader
from penstock.decode.rescue import Into
from penstock.fold.events import NOT_MOVED, Events
from penstock.model.change import INSERT

# What an event says of a cell. Nothing before a cell that an INSERT lacks has its value.
_GONE, _SENT, _NULL, _UNSENT, _NEVER_SENT = range(5)


@dataclass(frozen=True)
class UnsentCells:
    """Of one column: which rows of the upserts lack it, and the events that made those rows."""

    rows: Places
    events: Places


@dataclass(frozen=True)
class FoundCells:
    """The earlier cells that fill one column, for rows of the upserts: of which source, and of which of its `images`.

    Cells of images from before the column are NULL, as the rows are already, and not among them.
    """

    rows: Places
    source: Places
    at: Places
    sizes: Places  # in bytes, if they are text or binary
    images: Mapping[int, tuple[Images, int]]  # by source, with the column's place there

    def values(self, source: int, at: Places, into: Into | None) -> pa.Array:
        """Return the cells of some images of a source."""
        images, column = self.images[source]
        return images.values(column, into, at)


@dataclass(frozen=True)
class MissingCells:
    """Of one column: rows of the upserts whose cell only the destination has, and the key (its number) it has there."""

    rows: Places
    keys: Places


def resolve(
    events: Events,
    sources: Sequence[RowReader],
    unsent: Mapping[int, UnsentCells],
    where: Sequence[Sequence[int | None]],
) -> dict[int, tuple[FoundCells, MissingCells]]:
    """Return for each column: what earlier images of the batch fill, and what they don't.

    `where` says for each source and column at which place the source has it; an image from before the column has NULL.
    """
    lineage = lineages(events)
    wanted = np.zeros(int(lineage.max()) + 1, np.bool_)
    for cells in unsent.values():
        wanted[lineage[cells.events]] = True
    members = np.flatnonzero(wanted[lineage] & ~events.moved_away)
    members = members[np.argsort(lineage[members], kind="stable")]
    earlier = _Earlier(events, sources, lineage, members, where)
    return {column: earlier.search(column, cells) for column, cells in unsent.items()}


def lineages(events: Events) -> Places:
    """Return the row that an event belongs to, as a number: that of the key which it has at the destination.

    Rows that take a key after another row left it in this batch have numbers past those of the keys.
    """
    lineage = events.key.copy()
    moves = events.moved_from != NOT_MOVED
    if not moves.any():
        return lineage
    involved = np.zeros(len(events.keys), np.bool_)
    involved[events.key[moves]] = True
    involved[events.moved_from[moves]] = True
    current: dict[int, int] = {}
    fresh = len(events.keys)
    carried = fresh
    touching = np.flatnonzero(involved[events.key])
    followed: list[int] = []
    for key, moved_away, arrives in zip(
        events.key[touching].tolist(), events.moved_away[touching].tolist(), moves[touching].tolist(), strict=True
    ):
        if moved_away:
            carried, current[key] = current.get(key, key), fresh
            fresh += 1
        elif arrives:
            current[key] = carried
        followed.append(current.get(key, key))
    lineage[touching] = followed
    return lineage


class _Earlier:
    """The images of some lineages, each lineage in stream order, one after the other."""

    def __init__(
        self,
        events: Events,
        sources: Sequence[RowReader],
        lineage: Places,
        members: Places,
        where: Sequence[Sequence[int | None]],
    ) -> None:
        self._events, self._sources, self._members = events, sources, members
        self._lineage = lineage[members]
        begins = np.flatnonzero(np.diff(self._lineage, prepend=-1) != 0)
        self._begin = np.repeat(begins, np.diff(begins, append=len(members)))
        self._place = np.full(len(events.key), -1, np.int64)
        self._place[members] = np.arange(len(members))
        self._images: list[tuple[int, Places, Images, Sequence[int | None]]] = []
        self._number = np.zeros(len(members), np.int64)  # of an image among those of its source
        images = np.flatnonzero(events.is_image[members])
        images = images[np.lexsort((events.row[members[images]], events.source[members[images]]))]
        ends = np.searchsorted(events.source[members[images]], np.arange(1, len(sources)))
        for source, (reader, at, places) in enumerate(zip(sources, np.split(images, ends), where, strict=True)):
            if len(at):
                found = reader.images(events.row[members[at]], whole_inserts=False)
                self._images.append((source, at, found, places))
                self._number[at] = np.arange(len(at))

    def search(self, column: int, unsent: UnsentCells) -> tuple[FoundCells, MissingCells]:
        kind: Octets = np.full(len(self._members), _GONE, np.uint8)  # a search ends where a row was deleted, too
        size = np.zeros(len(self._members), np.int64)
        having: dict[int, tuple[Images, int]] = {}
        for source, at, images, places in self._images:
            place = places[column]
            if place is None:
                kind[at] = _NULL
                continue
            having[source] = images, place
            unsent_here = images.unsent(place)
            kind[at] = np.where(unsent_here, np.where(self._is_insert(at), _NEVER_SENT, _UNSENT), _SENT)
            size[at] = images.sizes(place, np.arange(len(at)))
        last_known = np.maximum.accumulate(np.where(kind != _UNSENT, np.arange(len(kind)), -1))
        event = self._place[unsent.events]
        known = last_known[event]
        found = known >= self._begin[event]
        self._check_origin(found, known, event)
        self._check_sent(known[found & (kind[known] == _NEVER_SENT)])
        sent = found & (kind[known] == _SENT)
        at = known[sent]
        source = self._events.source[self._members[at]]
        return (
            FoundCells(unsent.rows[sent], source, self._number[at], size[at], having),
            MissingCells(unsent.rows[~found], self._lineage[event[~found]]),
        )

    def _is_insert(self, at: Places) -> Mask:
        """Return that of images of one source."""
        reader = self._sources[self._events.source[self._members[at[0]]]]
        inserts: Mask = reader.op[self._events.row[self._members[at]]] == INSERT
        return inserts

    def _check_sent(self, lacking: Places) -> None:
        if len(lacking):
            event = self._members[lacking[0]]
            raise self._sources[self._events.source[event]].incomplete(int(self._events.row[event]))

    def _check_origin(self, found: Mask, known: Places, place: Places) -> None:
        """Require that an update has a row to update: not one deleted before it, nor one that never was."""
        gone = found.copy()
        gone[found] = ~self._events.is_image[self._members[known[found]]]
        gone |= ~found & (self._lineage[place] >= len(self._events.keys))
        if gone.any():
            event = self._members[place[np.argmax(gone)]]
            reader = self._sources[self._events.source[event]]
            raise reader.broken(int(self._events.row[event]), "it updates a row that is not there")
